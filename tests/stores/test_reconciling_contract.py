"""Every backend remembers which types were ignored, and when; and which gaps were accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest
from support.redis_servers import RedisServer

from hookonce.stores.protocols import DEFAULT_RETENTION, Store
from hookonce.stores.reconciling import JOIN_SECONDS, MOST_SPANS, ReconcilingStore, Span
from hookonce.stores.redis import RedisStore
from hookonce.stores.values import Claimed, delivery_key, new_token

pytestmark = pytest.mark.anyio

PassTime = Callable[[float], None]

NOW = 1_700_000_000
RETENTION = int(DEFAULT_RETENTION.total_seconds())
TYPE = "comment.received"


class _Both(Store, ReconcilingStore, Protocol):
    """A store that helps to reconcile."""


@pytest.fixture
def reconciling(store: _Both) -> _Both:
    assert isinstance(store, ReconcilingStore)
    return store


async def spans(store: ReconcilingStore, event_type: str = TYPE) -> tuple[Span, ...]:
    return (await store.ignored("default", [event_type])).get(event_type, ())


async def test_an_empty_store_knows_of_nothing_ignored(reconciling: _Both) -> None:
    assert await reconciling.ignored("default", [TYPE, "other"]) == {}
    assert await reconciling.ignored("default", []) == {}


async def test_what_was_ignored_is_known_by_endpoint_and_type(reconciling: _Both) -> None:
    noted = {TYPE: [Span(NOW, NOW + 5)], "a:b 12": [Span(NOW - 7, NOW)]}
    await reconciling.note_ignored("default", noted)
    await reconciling.note_ignored("other", {TYPE: [Span(NOW + 1, NOW + 1)]})
    found = await reconciling.ignored("default", [TYPE, "a:b 12", "a"])
    assert found == {event_type: tuple(some) for event_type, some in noted.items()}
    assert await reconciling.ignored("other", [TYPE, "a:b 12"]) == {TYPE: (Span(NOW + 1, NOW + 1),)}


async def test_spans_that_are_near_are_one(reconciling: _Both) -> None:
    await reconciling.note_ignored("default", {TYPE: [Span(NOW, NOW + 10)]})
    for first, last in (
        (NOW + 2, NOW + 3),  # within it
        (NOW + 10 + JOIN_SECONDS, NOW + 20 + JOIN_SECONDS),
        (NOW - JOIN_SECONDS - 5, NOW - JOIN_SECONDS),
    ):
        await reconciling.note_ignored("default", {TYPE: [Span(first, last)]})
    whole = Span(NOW - JOIN_SECONDS - 5, NOW + 20 + JOIN_SECONDS)
    assert await spans(reconciling) == (whole,)
    await reconciling.note_ignored("default", {TYPE: [whole]})  # a repeated call
    assert await spans(reconciling) == (whole,)


async def test_spans_that_are_apart_stay_apart_until_one_lies_between(reconciling: _Both) -> None:
    """Between them a handler may have been there, and what it handled may be lost."""
    early, late = Span(NOW, NOW + 9), Span(NOW + 10 + JOIN_SECONDS, NOW + 12 + JOIN_SECONDS)
    await reconciling.note_ignored("default", {TYPE: [late]})
    await reconciling.note_ignored("default", {TYPE: [early], "other": [Span(NOW, NOW + 99)]})
    assert await spans(reconciling) == (early, late)
    await reconciling.note_ignored("default", {TYPE: [Span(NOW + 10, NOW + 10)]})
    assert await spans(reconciling) == (Span(early.first, late.last),)
    assert await spans(reconciling, "other") == (Span(NOW, NOW + 99),)


async def test_a_span_is_forgotten_when_the_retention_has_passed_since_its_end(
    reconciling: _Both, pass_time: PassTime
) -> None:
    await reconciling.note_ignored("default", {TYPE: [Span(NOW - 50, NOW)]})
    pass_time(RETENTION - 1)
    assert await spans(reconciling) == (Span(NOW - 50, NOW),)
    await reconciling.note_ignored("default", {TYPE: [Span(NOW + RETENTION, NOW + RETENTION)]})
    pass_time(1)
    assert await spans(reconciling) == (Span(NOW + RETENTION, NOW + RETENTION),)


async def test_of_more_spans_than_the_bound_those_that_ended_last_are_kept(
    reconciling: _Both,
) -> None:
    """The sender chooses the types, so their number has no other bound."""
    kinds = [f"type.{number}" for number in range(MOST_SPANS + 7)]
    noted = {kind: [Span(NOW + number, NOW + number)] for number, kind in enumerate(kinds)}
    await reconciling.note_ignored("default", noted)
    assert set(await reconciling.ignored("default", kinds)) == set(kinds[7:])


async def test_an_accepted_gap_is_known_until_the_retention_is_over(
    reconciling: _Both, pass_time: PassTime
) -> None:
    ids = [f"evt_{number}" for number in range(1200)]
    await reconciling.accept("default", ids)
    await reconciling.accept("default", [])
    assert await reconciling.accepted("default", [*ids, "evt_none"]) == frozenset(ids)
    assert await reconciling.accepted("other", ids) == frozenset()
    pass_time(RETENTION - 1)
    await reconciling.accept("default", ["evt_7"])
    assert await reconciling.accepted("default", ids) == frozenset(ids)
    pass_time(2)
    assert await reconciling.accepted("default", ids) == {"evt_7"}
    await reconciling.prune()
    assert await reconciling.accepted("default", ids) == {"evt_7"}


async def test_pruning_removes_what_was_accepted_too_long_ago(
    reconciling: _Both, pass_time: PassTime
) -> None:
    await reconciling.accept("default", ["evt_1", "evt_2"])
    assert await reconciling.prune() == 0
    pass_time(RETENTION + 1)
    assert await reconciling.prune() == 2


async def test_an_accepted_gap_is_claimed_and_completed_like_any_event(reconciling: _Both) -> None:
    await reconciling.accept("default", ["evt_1"])
    assert await reconciling.known("default", ["evt_1"]) == {}
    claim = await reconciling.claim(delivery_key("default", "evt_1"), new_token(), 30.0)
    assert isinstance(claim, Claimed)
    assert claim.attempt == 1
    await reconciling.complete(claim)
    assert await reconciling.known("default", ["evt_1"]) == {"evt_1": "done"}


async def test_accepted_gaps_of_several_shards_are_known(valkey: RedisServer) -> None:
    store = RedisStore(valkey.url, shards=7)
    ids = [f"evt_{number}" for number in range(50)]
    await store.accept("default", ids[::2])
    await store.note_ignored("default", {TYPE: [Span(NOW, NOW)]})
    assert await store.accepted("default", ids) == frozenset(ids[::2])
    await store.aclose()


async def test_a_server_forgets_by_itself(valkey: RedisServer) -> None:
    """Without a clock of the caller's, each key ends with the retention."""
    store = RedisStore(valkey.url, prefix="own", shards=1)
    await store.accept("default", ["evt_1"])
    await store.note_ignored("default", {TYPE: [Span(2 * NOW, 2 * NOW)]})
    with valkey.client() as client:
        names = list(client.scan_iter("{own:*}:[cf]:*"))
        assert len(names) == 2
        for name in names:
            assert RETENTION - 60 < client.ttl(name) <= RETENTION
    await store.aclose()
