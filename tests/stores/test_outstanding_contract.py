"""How every backend remembers what has finished and what is outstanding, and which attempts count.

The stores come from conftest; what a backend may leave out is asked of ``Store.keeps_bodies``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.values import (
    INTERRUPTED,
    Claimed,
    DeadReason,
    Delivery,
    Done,
    Ownership,
    Stored,
    Token,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
DELIVERY = Delivery("default", "evt_1", "post.target.failed", 1_700_000_000.0, b'{"id": "evt_1"}')
KEY = DELIVERY.key
NONE: frozenset[str] = frozenset()
A, B, C = (frozenset({name}) for name in ("a", "b", "c"))

PassTime = Callable[[float], None]


async def claim(store: Store, token: Token | None = None) -> Claimed:
    """Claim what must be free, or one's own."""
    result = await store.claim(KEY, token or new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def bury(store: Store, claim: Claimed, outstanding: frozenset[str] = NONE) -> None:
    ownership = await store.bury(
        claim, DeadReason.EXHAUSTED, outstanding=outstanding, delivery=DELIVERY
    )
    assert ownership is Ownership.HELD


async def replay(store: Store) -> Claimed:
    result = await store.replay(KEY, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def take(store: InboxStore) -> Claimed | None:
    batch = await store.fetch(1, LEASE, endpoint="default", worker="worker", token=new_token())
    return batch.fetched[0].claim if batch.fetched else None


async def taken(store: InboxStore) -> Claimed:
    claim = await take(store)
    assert claim is not None
    return claim


@pytest.fixture
async def inbox(store: Store) -> InboxStore:
    """Return a store in whose inbox the event is."""
    if not isinstance(store, InboxStore):
        pytest.skip("this store has no inbox")
    assert await store.enqueue(DELIVERY, new_token()) == Stored()
    return store


class TestOutstanding:
    async def test_a_new_event_owes_nothing(self, store: Store) -> None:
        assert (await claim(store)).outstanding == NONE

    async def test_what_is_owed_is_what_was_given_without_what_has_finished(
        self, store: Store
    ) -> None:
        first = await claim(store)
        await store.extend(first, A, A | B)
        assert await claim(store, first.token) == Claimed(KEY, first.token, 1, A, LEASE, B)
        await store.release(first, NONE, "it failed", outstanding=C)
        second = await claim(store)
        assert (second.finished, second.outstanding) == (A, B | C)
        await store.extend(second, B)
        await store.release(second, C, outstanding=B | C)
        third = await claim(store)
        assert (third.finished, third.outstanding) == (A | B | C, NONE)

    async def test_a_claim_repeated_in_the_moment_of_its_extension_knows_what_is_owed(
        self, store: Store
    ) -> None:
        first = await claim(store)
        await store.extend(first, NONE, A)
        assert (await claim(store, first.token)).outstanding == A

    async def test_a_handler_that_has_finished_is_never_owed_again(self, store: Store) -> None:
        first = await claim(store)
        await store.release(first, A)
        await store.release(await claim(store), NONE, outstanding=A | B)
        assert (await claim(store)).outstanding == B

    async def test_an_expired_claim_keeps_what_is_owed(
        self, store: Store, pass_time: PassTime
    ) -> None:
        await store.extend(await claim(store), NONE, A)
        pass_time(LEASE)
        assert (await claim(store)).outstanding == A

    async def test_a_dead_letter_and_its_replays_keep_what_is_owed(
        self, keeping_store: Store
    ) -> None:
        store = keeping_store
        await store.release(await claim(store), NONE, outstanding=A | C)
        await bury(store, await claim(store), B)
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert letter.outstanding == A | B | C
        replayed = await replay(store)
        assert replayed.outstanding == A | B | C
        await store.extend(replayed, A)
        assert [letter.outstanding for letter in await store.dead_letters()] == [B | C]
        await store.release(replayed, B)
        [letter] = await store.dead_letters()
        assert (letter.finished, letter.outstanding) == (A | B, C)
        assert (await replay(store)).outstanding == C

    async def test_a_kept_delivery_that_is_given_up_says_what_is_owed(
        self, keeping_store: Store
    ) -> None:
        owned = await claim(keeping_store)
        await keeping_store.extend(owned, NONE, A)
        await keeping_store.keep(owned, DELIVERY)
        await keeping_store.release(owned, B, outstanding=B | C)
        letter = await keeping_store.dead_letter(KEY)
        assert letter is not None
        assert (letter.finished, letter.outstanding) == (B, A | C)

    async def test_the_inbox_keeps_what_is_owed(self, inbox: InboxStore) -> None:
        first = await taken(inbox)
        assert first.outstanding == NONE
        await inbox.retry(first, 0.0, A, outstanding=A | B)
        second = await taken(inbox)
        assert (second.finished, second.outstanding) == (A, B)
        entry = await inbox.entry(KEY)
        assert entry is not None
        assert (entry.finished, entry.outstanding) == (A, B)
        assert [entry.outstanding for entry in await inbox.entries()] == [B]
        assert await inbox.bury(second, DeadReason.EXHAUSTED, outstanding=C) is Ownership.HELD
        letter = await inbox.dead_letter(KEY)
        assert letter is not None
        assert letter.outstanding == B | C

    async def test_names_that_are_owed_come_back_as_they_were(self, store: Store) -> None:
        names = frozenset({"module:f", "ünïcode 名", 'quo"te', "with,comma", "line\nbreak"})
        await store.release(await claim(store), NONE, outstanding=names)
        assert (await claim(store)).outstanding == names

    async def test_what_is_done_owes_nothing_when_it_is_forgotten(
        self, store: Store, pass_time: PassTime
    ) -> None:
        first = await claim(store)
        await store.extend(first, NONE, A)
        await store.complete(first)
        pass_time(100 * 24 * 3600.0)
        assert (await claim(store)).outstanding == NONE


class TestAttemptsThatBeganNothing:
    async def test_the_next_claim_has_the_same_number_and_the_history_no_failure(
        self, store: Store
    ) -> None:
        for _ in range(3):
            owned = await claim(store)
            assert owned.attempt == 1
            assert await store.release(owned, NONE, began=False) is Ownership.HELD
        await store.release(await claim(store), NONE, "it failed")
        for _ in range(3):
            owned = await claim(store)
            assert owned.attempt == 2
            await store.release(owned, NONE, began=False)
        await bury(store, await claim(store))
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert letter.attempts == 2
        assert [(one.number, one.error) for one in letter.history] == [(1, "it failed")]

    async def test_an_error_that_is_given_goes_into_the_history(self, store: Store) -> None:
        await store.release(await claim(store), NONE, "no secrets", began=False)
        await bury(store, await claim(store))
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert [(one.number, one.error) for one in letter.history] == [(1, "no secrets")]

    async def test_an_expired_claim_counts_all_the_same(
        self, store: Store, pass_time: PassTime
    ) -> None:
        await claim(store)
        pass_time(LEASE)
        owned = await claim(store)
        await store.release(owned, NONE, began=False)
        await bury(store, await claim(store))
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert letter.attempts == 2
        assert [(one.number, one.error) for one in letter.history] == [(1, INTERRUPTED)]

    async def test_of_a_kept_delivery_the_letter_counts_none(self, keeping_store: Store) -> None:
        owned = await claim(keeping_store)
        await keeping_store.keep(owned, DELIVERY)
        await keeping_store.release(owned, NONE, began=False)
        letter = await keeping_store.dead_letter(KEY)
        assert letter is not None
        assert (letter.reason, letter.attempts) == (DeadReason.EXHAUSTED, 0)

    async def test_the_next_take_has_the_same_number(self, inbox: InboxStore) -> None:
        for _ in range(3):
            claim = await taken(inbox)
            assert claim.attempt == 1
            await inbox.retry(claim, 0.0, began=False)
        entry = await inbox.entry(KEY)
        assert entry is not None
        assert (entry.attempts, entry.history) == (0, ())
        await inbox.retry(await taken(inbox), 0.0)
        assert (await taken(inbox)).attempt == 2


class TestFacts:
    """A success is a fact, whoever holds the claim by now."""

    @pytest.mark.parametrize("step", ["extend", "release", "bury"])
    async def test_what_has_finished_is_remembered_of_a_lost_claim_and_nothing_else(
        self, store: Store, pass_time: PassTime, step: str
    ) -> None:
        stale = await claim(store)
        await store.extend(stale, NONE, A | B)
        pass_time(LEASE)
        owner = await claim(store)
        match step:
            case "extend":
                ownership = await store.extend(stale, A, C)
            case "release":
                ownership = await store.release(stale, A, "it failed", outstanding=C, began=False)
            case _:
                ownership = await store.bury(
                    stale, DeadReason.REJECTED, finished=A, outstanding=C, delivery=DELIVERY
                )
        assert ownership is Ownership.LOST
        again = await claim(store, owner.token)
        assert (again.attempt, again.finished, again.outstanding) == (2, A, B)
        assert (await store.stats()).in_flight == 1
        assert await store.release(owner, NONE) is Ownership.HELD
        assert (await claim(store)).finished == A

    async def test_it_goes_into_the_dead_letter(self, store: Store, pass_time: PassTime) -> None:
        stale = await claim(store)
        pass_time(LEASE)
        await bury(store, await claim(store), A | B)
        assert await store.release(stale, A, "it failed") is Ownership.LOST
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert (letter.finished, letter.outstanding, letter.attempts) == (A, B, 2)
        assert letter.error == ""
        if store.keeps_bodies:
            replayed = await replay(store)
            assert (replayed.finished, replayed.outstanding) == (A, B)

    async def test_it_reaches_an_event_that_was_given_back(self, store: Store) -> None:
        stale = await claim(store)
        await store.release(stale, NONE, outstanding=A)
        assert await store.extend(stale, A) is Ownership.LOST
        later = await claim(store)
        assert (later.attempt, later.finished, later.outstanding) == (2, A, NONE)

    async def test_it_changes_nothing_of_what_is_done(
        self, store: Store, pass_time: PassTime
    ) -> None:
        owned = await claim(store)
        await store.complete(owned)
        assert await store.extend(owned, A) is Ownership.LOST
        assert await store.release(owned, A, "it failed") is Ownership.LOST
        assert await store.bury(owned, DeadReason.REJECTED, finished=A, delivery=DELIVERY) is (
            Ownership.LOST
        )
        assert await store.claim(KEY, new_token(), LEASE) == Done()
        assert await store.dead_letter(KEY) is None
        pass_time(100 * 24 * 3600.0)
        assert (await claim(store)).finished == NONE

    async def test_it_makes_no_event_known_that_is_not(self, store: Store) -> None:
        stranger = Claimed(KEY, Token("nobody's"), 1, NONE, LEASE)
        assert await store.extend(stranger, A) is Ownership.LOST
        first = await claim(store)
        assert (first.attempt, first.finished) == (1, NONE)

    async def test_it_reaches_an_event_in_the_inbox(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        stale = await taken(inbox)
        pass_time(LEASE)
        owner = await taken(inbox)
        assert await inbox.retry(stale, 0.0, A, "it failed") is Ownership.LOST
        assert await take(inbox) is None
        await inbox.retry(owner, 0.0)
        later = await taken(inbox)
        assert (later.attempt, later.finished) == (3, A)
