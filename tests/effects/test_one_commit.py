"""A ledger in the PostgreSQL store's database: an effect's commit also records the success."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, IsolationLevel
from psycopg_pool import AsyncConnectionPool
from support.deliveries import SECRET, answer_of, comment, deliver, empty_inbox, receiver_on
from support.postgres import PostgresServer
from support.postgres_proxy import postgres_proxy
from support.waiting import until

from hookonce import Inbox, Receiver
from hookonce.clock import ManualClock
from hookonce.effects import Effect, Ledger
from hookonce.effects.contract import Bench
from hookonce.effects.ledger import is_async_ledger
from hookonce.effects.once import ClaimLostError, Once, Performed, rolled_back
from hookonce.effects.psycopg import PsycopgLedger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.effects.threads import on_ledger
from hookonce.events import CommentReceived
from hookonce.receiver.ledgers import ledgers_that_share
from hookonce.routing.handler import Handler
from hookonce.stores.finishes import Finish
from hookonce.stores.memory import MemoryStore
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    Done,
    KeyLock,
    Known,
    Ownership,
    Stored,
    delivery_key,
    new_token,
)

from .benches import ON_POSTGRES, postgres_bench

pytestmark = [pytest.mark.anyio, pytest.mark.sample(20, of="file")]

LEASE = 30.0
HANDLER = "app.handlers.book"
NONE: frozenset[str] = frozenset()


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    postgres.execute("DROP SCHEMA IF EXISTS hookonce CASCADE")
    return postgres


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(server: PostgresServer, clock: ManualClock) -> AsyncIterator[PostgresStore]:
    async with aclosing(PostgresStore(server.url, clock=clock)) as store:
        yield store


@pytest.fixture(params=sorted(ON_POSTGRES))
async def bench(
    request: pytest.FixtureRequest, server: PostgresServer
) -> AsyncIterator[Bench[Any]]:
    async with postgres_bench(request.param, server) as bench:
        yield bench


@pytest.fixture
async def psycopg_bench(server: PostgresServer) -> AsyncIterator[Bench[Any]]:
    async with postgres_bench("psycopg", server) as bench:
        yield bench


def delivery_of(event_id: str = "evt_1") -> Delivery:
    return Delivery("default", event_id, "comment.received", 1_700_000_000.0, b"{}")


async def claimed(store: PostgresStore, event_id: str = "evt_1") -> Claimed:
    claim = await store.claim(delivery_key("default", event_id), new_token(), LEASE)
    assert isinstance(claim, Claimed)
    return claim


async def fetched(store: PostgresStore, worker: str = "one") -> Claimed:
    batch = await store.fetch(1, LEASE, endpoint="default", worker=worker, token=new_token())
    [event] = batch.fetched
    return event.claim


async def written(bench: Bench[Any], transaction: Any, key: str) -> None:
    result = bench.write(transaction, key)
    if isinstance(result, Awaitable):
        await result


def rows_of(bench: Bench[Any]) -> list[str]:
    rows = bench.read()
    assert isinstance(rows, list)
    return rows


async def perform(
    bench: Bench[Any],
    store: PostgresStore,
    claim: Claimed,
    *,
    handler: str = HANDLER,
    others: frozenset[str] = NONE,
    during: Callable[[], Awaitable[object]] | None = None,
    completes: bool = True,
) -> Performed:
    """Perform a handler's effect within the ledger, for the attempt that has this claim.

    Args:
        completes: whether the commit also records the success in the store.
    """
    event_id = claim.key.partition(":")[2]

    async def work(transaction: Any) -> None:
        await written(bench, transaction, handler)
        if during is not None:
            await during()

    def finish() -> Finish:
        return store.finish(claim, handler, others)

    def step(ledger: Ledger[Any]) -> Coroutine[Any, Any, Performed]:
        effect = Effect("default", event_id, handler)
        return Once(ledger).perform(effect, work, finish=finish if completes else None)

    return await on_ledger(bench.ledger, step)


async def test_the_commit_of_the_only_handler_completes_the_event(
    bench: Bench[Any], store: PostgresStore
) -> None:
    claim = await claimed(store)
    assert await perform(bench, store, claim) is Performed.NOW
    assert bench.read() == [HANDLER]
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DONE}
    assert (await store.stats()).in_flight == 0
    assert await store.claim(claim.key, new_token(), LEASE) == Done()
    await store.complete(claim)
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DONE}


async def test_the_commit_completes_an_event_of_the_inbox(
    bench: Bench[Any], store: PostgresStore, clock: ManualClock
) -> None:
    assert await store.enqueue(delivery_of(), new_token()) == Stored()
    claim = await fetched(store)
    await perform(bench, store, claim)
    assert await store.entries() == []
    assert await store.entry(claim.key) is None
    stats = await store.stats()
    assert (stats.depth, stats.bytes, stats.in_flight, stats.oldest_age_seconds) == (0, 0, 0, None)
    assert await store.enqueue(delivery_of(), new_token()) == Done()
    clock.advance(LEASE)  # as if the process had died after the commit
    batch = await store.fetch(9, LEASE, endpoint="default", worker="two", token=new_token())
    assert (batch.fetched, batch.next_due_seconds) == ((), None)


@pytest.mark.parametrize("kind", ON_POSTGRES)
async def test_to_complete_the_event_takes_no_further_round_trip(
    kind: str, server: PostgresServer, store: PostgresStore
) -> None:
    async with (
        postgres_proxy(server.url) as proxy,
        postgres_bench(kind, server, url=proxy.url) as bench,
    ):

        async def round_trips(claim: Claimed, *, completes: bool) -> int:
            before = proxy.round_trips
            assert await perform(bench, store, claim, completes=completes) is Performed.NOW
            return proxy.round_trips - before

        # The first events connect, and let the driver and the ledger ask what they ask only once.
        claims = [await claimed(store, f"evt_{number}") for number in range(4)]
        *_, without, within = [
            await round_trips(claim, completes=bool(number % 2))
            for number, claim in enumerate(claims)
        ]
    assert within == without >= 4  # BEGIN and the ledger's row, the handler's, the end, COMMIT
    known = await store.known("default", ["evt_2", "evt_3"])
    assert known == {"evt_2": Known.IN_FLIGHT, "evt_3": Known.DONE}


async def test_a_stale_attempt_is_rolled_back(
    bench: Bench[Any], store: PostgresStore, clock: ManualClock
) -> None:
    stale = await claimed(store)
    clock.advance(LEASE)
    owner = await claimed(store)
    with pytest.raises(ClaimLostError):
        await perform(bench, store, stale)
    assert bench.read() == []
    assert await perform(bench, store, owner) is Performed.NOW
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DONE}


async def test_a_lease_that_merely_expired_is_not_stale(
    bench: Bench[Any], store: PostgresStore, clock: ManualClock
) -> None:
    await store.enqueue(delivery_of(), new_token())
    claim = await fetched(store)
    clock.advance(2 * LEASE)
    assert await perform(bench, store, claim) is Performed.NOW
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DONE}


async def test_an_event_that_was_buried_meanwhile_takes_no_effect(
    psycopg_bench: Bench[Any], store: PostgresStore, clock: ManualClock
) -> None:
    stale = await claimed(store)
    clock.advance(LEASE)
    owner = await claimed(store)
    await store.bury(owner, DeadReason.REJECTED, delivery=delivery_of())
    with pytest.raises(ClaimLostError):
        await perform(psycopg_bench, store, stale)
    assert psycopg_bench.read() == []
    assert len(await store.dead_letters()) == 1


async def test_a_kept_delivery_that_was_finished_is_no_dead_letter(
    psycopg_bench: Bench[Any], store: PostgresStore, clock: ManualClock
) -> None:
    claim = await claimed(store)
    assert await store.keep(claim, delivery_of()) is Ownership.HELD
    await perform(psycopg_bench, store, claim)
    clock.advance(LEASE)  # as if the process had died after the commit
    assert await store.dead_letters() == []
    assert await store.dead_letter(claim.key) is None
    stats = await store.stats()
    assert (stats.dead, stats.kept, stats.in_flight) == (0, 0, 0)
    assert await store.replay(claim.key, new_token(), LEASE) is None


async def test_a_replayed_dead_letter_is_done_by_the_commit(
    psycopg_bench: Bench[Any], store: PostgresStore
) -> None:
    claim = await claimed(store)
    await store.bury(claim, DeadReason.REJECTED, delivery=delivery_of())
    replayed = await store.replay(claim.key, new_token(), LEASE)
    assert isinstance(replayed, Claimed)
    await perform(psycopg_bench, store, replayed)
    assert await store.dead_letters() == []
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DONE}


@pytest.mark.parametrize("in_inbox", [False, True])
async def test_the_last_finish_of_several_handlers_completes_the_event(
    psycopg_bench: Bench[Any], store: PostgresStore, in_inbox: bool
) -> None:
    if in_inbox:
        await store.enqueue(delivery_of(), new_token())
        claim = await fetched(store)
    else:
        claim = await claimed(store)
    # As if both handlers ran at the same time: each call says that the other has not finished.
    await perform(psycopg_bench, store, claim, handler="a", others=frozenset({"b"}))
    assert await store.known("default", ["evt_1"]) != {"evt_1": Known.DONE}
    await perform(psycopg_bench, store, claim, handler="b", others=frozenset({"a"}))
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DONE}


async def test_the_next_attempt_leaves_out_handlers_that_have_finished(
    psycopg_bench: Bench[Any], store: PostgresStore, clock: ManualClock, server: PostgresServer
) -> None:
    claim = await claimed(store)
    await perform(psycopg_bench, store, claim, handler="a", others=frozenset({"b"}))
    clock.advance(LEASE)  # as if the process had died while handler b ran
    again = await claimed(store)
    assert again.finished == {"a"}
    assert server.execute("SELECT 1 FROM hookonce.finishes") == []  # now in the event's record
    await perform(psycopg_bench, store, again, handler="b")
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DONE}


LEVELS = [
    IsolationLevel.READ_COMMITTED,
    IsolationLevel.REPEATABLE_READ,
    IsolationLevel.SERIALIZABLE,
]


@pytest.fixture(params=LEVELS, ids=lambda level: level.name)
async def level_bench(
    request: pytest.FixtureRequest, psycopg_bench: Bench[Any], server: PostgresServer
) -> AsyncIterator[Bench[Any]]:
    async with AsyncConnectionPool(server.url, min_size=0, max_size=5, open=False) as pool:
        ledger = PsycopgLedger(pool, isolation=request.param)
        yield replace(psycopg_bench, ledger=ledger)


@pytest.mark.parametrize("in_inbox", [False, True])
async def test_heartbeats_during_the_handler_disturb_no_isolation_level(
    level_bench: Bench[Any], store: PostgresStore, in_inbox: bool
) -> None:
    await store.enqueue(delivery_of(), new_token())
    claim = await (fetched(store) if in_inbox else claimed(store, "evt_2"))
    begun = 0

    async def extend() -> None:
        nonlocal begun
        begun += 1
        for _ in range(3):
            assert await store.extend(claim, frozenset({"other"})) is Ownership.HELD

    assert await perform(level_bench, store, claim, during=extend) is Performed.NOW
    assert begun == 1
    event_id = claim.key.partition(":")[2]
    assert await store.known("default", [event_id]) == {event_id: Known.DONE}


@pytest.mark.parametrize("in_inbox", [False, True])
async def test_a_claim_that_is_lost_during_the_handler_rolls_it_back(
    level_bench: Bench[Any], store: PostgresStore, clock: ManualClock, in_inbox: bool
) -> None:
    await store.enqueue(delivery_of(), new_token())
    claim = await (fetched(store) if in_inbox else claimed(store, "evt_2"))
    owners: list[Claimed] = []

    async def take_over() -> None:
        if not owners:
            await store.extend(claim)
            clock.advance(LEASE)
            owners.append(await (fetched(store, "two") if in_inbox else claimed(store, "evt_2")))

    with pytest.raises(ClaimLostError):
        await perform(level_bench, store, claim, during=take_over)
    assert level_bench.read() == []
    assert await perform(level_bench, store, owners[0]) is Performed.NOW
    assert level_bench.read() == [HANDLER]


async def test_an_event_that_moves_during_the_handler_is_still_owned(
    level_bench: Bench[Any], store: PostgresStore
) -> None:
    claim = await claimed(store)

    async def keep() -> None:  # as if another delivery of the event arrived
        await store.keep_in_flight(delivery_of())

    assert await perform(level_bench, store, claim, during=keep) is Performed.NOW
    assert await store.dead_letters() == []
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DONE}


async def test_a_claim_waits_for_the_commit_and_then_finds_the_event_done(
    level_bench: Bench[Any], store: PostgresStore, clock: ManualClock, server: PostgresServer
) -> None:
    claim = await claimed(store)
    clock.advance(LEASE)
    ledger, effect = level_bench.ledger, Effect("default", "evt_1", HANDLER)
    assert isinstance(ledger, PsycopgLedger)
    async with ledger.transaction() as transaction:
        await ledger.insert(transaction, effect)
        finish = store.finish(claim, HANDLER, NONE)
        assert await ledger.finish(transaction, effect, finish)
        assert await store.extend(claim) is Ownership.HELD  # extending a lease does not wait
        clock.advance(LEASE)
        other = asyncio.create_task(store.claim(claim.key, new_token(), LEASE))
        await until(lambda: _waits_for_a_lock(server), what="the claim waits")
        assert not other.done()
    assert await other == Done()


async def test_a_claim_is_granted_after_a_finish_was_rolled_back(
    level_bench: Bench[Any], store: PostgresStore, clock: ManualClock
) -> None:
    claim = await claimed(store)
    ledger, effect = level_bench.ledger, Effect("default", "evt_1", HANDLER)
    assert isinstance(ledger, PsycopgLedger)
    async with rolled_back(ledger) as transaction:
        await ledger.insert(transaction, effect)
        await ledger.finish(transaction, effect, store.finish(claim, HANDLER, NONE))
    clock.advance(LEASE)
    again = await claimed(store)
    assert (again.attempt, again.finished) == (2, NONE)


async def test_a_process_that_stops_before_its_commit_does_not_keep_the_event(
    psycopg_bench: Bench[Any], store: PostgresStore, clock: ManualClock, server: PostgresServer
) -> None:
    claim = await claimed(store)
    [(function,)] = server.execute("SELECT pg_get_functiondef('hookonce.finish'::regproc)")
    assert "'5s'" in function
    server.execute(function.replace("'5s'", "'50ms'"))
    ledger, effect = psycopg_bench.ledger, Effect("default", "evt_1", HANDLER)
    assert isinstance(ledger, PsycopgLedger)
    finish = store.finish(claim, HANDLER, NONE)

    async def stop_before_the_commit() -> None:
        async with ledger.transaction() as transaction:
            await ledger.insert(transaction, effect)
            assert await ledger.finish(transaction, effect, finish)
            clock.advance(LEASE)
            assert isinstance(await store.claim(claim.key, new_token(), LEASE), Claimed)

    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        await stop_before_the_commit()
    assert psycopg_bench.read() == []


async def test_completed_events_whose_process_died_are_pruned(
    psycopg_bench: Bench[Any], store: PostgresStore, clock: ManualClock, server: PostgresServer
) -> None:
    claim = await claimed(store)
    await perform(psycopg_bench, store, claim)
    await store.prune()
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DONE}
    clock.advance(store.retention_seconds + LEASE)
    await store.prune()
    assert server.execute("SELECT 1 FROM hookonce.ids") == []
    assert server.execute("SELECT 1 FROM hookonce.finishes") == []
    assert isinstance(await store.claim(claim.key, new_token(), LEASE), Claimed)


async def test_a_ledger_finds_out_whether_it_shares_the_store_s_database(
    bench: Bench[Any], server: PostgresServer, tmp_path: Path
) -> None:
    handlers = [_handler(bench.ledger), _handler(SQLiteLedger(tmp_path / "shop.db"))]
    server.execute("DROP DATABASE IF EXISTS elsewhere")
    async with aclosing(PostgresStore(server.url)) as store:
        assert await ledgers_that_share(handlers, store) == {id(bench.ledger): bench.ledger}
        assert (await store.stats()).in_flight == 0
    server.execute("CREATE DATABASE elsewhere")
    elsewhere = server.url.removesuffix("/postgres") + "/elsewhere"
    async with aclosing(PostgresStore(elsewhere)) as store:
        assert await ledgers_that_share(handlers, store) == {}
    server.execute("DROP DATABASE elsewhere")
    async with aclosing(PostgresStore(server.url, schema="others")) as store:
        assert await ledgers_that_share(handlers, store) == {id(bench.ledger): bench.ledger}
    server.execute("DROP SCHEMA others CASCADE")
    assert await ledgers_that_share(handlers, MemoryStore()) == {}
    assert bench.read() == []
    assert server.execute("SELECT 1 FROM hookonce_effects") == []


async def test_a_ledger_without_the_rights_works_as_with_another_database(
    psycopg_bench: Bench[Any], server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    for statement in (
        "DROP ROLE IF EXISTS app",
        "CREATE ROLE app LOGIN",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app",
        "GRANT USAGE ON SCHEMA public TO app",
    ):
        server.execute(statement)
    url = server.url.replace("postgres@", "app@")
    async with AsyncConnectionPool(url, min_size=0, max_size=5, open=False) as pool:
        receiver = receiver_on(PostgresStore(server.url))

        @receiver.on(CommentReceived, name=HANDLER, within=PsycopgLedger(pool))
        async def book(event: CommentReceived, connection: AsyncConnection[Any]) -> None:
            await connection.execute("INSERT INTO done VALUES (%s)", (event.id,))

        event = comment()
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (200, "handled")
    assert psycopg_bench.read() == [event.id]
    assert "cannot complete events of the store in its own commits" in caplog.text
    server.execute("DROP OWNED BY app")
    server.execute("DROP ROLE app")


class Watched(PostgresStore):
    """A store that notes the state of an event when the attempt calls ``complete``."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.seen: list[Known | None] = []

    async def complete(self, claim: Claimed) -> None:
        await self._look(claim)
        await super().complete(claim)

    async def complete_and_keep(self, claim: Claimed, *kept: Any) -> None:
        await self._look(claim)
        await super().complete_and_keep(claim, *kept)

    async def _look(self, claim: Claimed) -> None:
        endpoint, _, event_id = claim.key.partition(":")
        self.seen.append((await self.known(endpoint, [event_id])).get(event_id))


@pytest.mark.parametrize("inbox", [None, Inbox(embedded=True)], ids=["inline", "inbox"])
async def test_a_receiver_completes_events_by_the_commits_of_their_handlers(
    bench: Bench[Any], server: PostgresServer, inbox: Inbox | None
) -> None:
    store = Watched(server.url)
    receiver = receiver_on(store, inbox=inbox)
    add_handlers(receiver, bench, "book", "count")
    event = comment()
    async with receiver:
        assert (await deliver(receiver, event)).status in {200, 202}
        if inbox is not None:
            await empty_inbox(receiver)
        assert (await deliver(receiver, event)).reason == "duplicate"
    assert sorted(rows_of(bench)) == ["book", "count"]
    assert store.seen == [Known.DONE]
    for table in ("entries", "finishes"):
        assert server.execute(f"SELECT 1 FROM hookonce.{table}") == []


async def test_a_plain_handler_is_completed_by_the_store_as_before(
    psycopg_bench: Bench[Any], server: PostgresServer
) -> None:
    store = Watched(server.url)
    receiver = receiver_on(store)
    add_handlers(receiver, psycopg_bench, "book")

    @receiver.on(CommentReceived, name="plain")
    async def plain(_: CommentReceived) -> None:
        await until(lambda: psycopg_bench.read() == ["book"])

    async with receiver:
        assert answer_of(await deliver(receiver, comment())) == (200, "handled")
    assert store.seen == [Known.IN_FLIGHT]
    assert server.execute("SELECT 1 FROM hookonce.finishes") == []


@pytest.mark.parametrize("inbox", [None, Inbox(embedded=True)], ids=["inline", "inbox"])
async def test_a_delivery_that_is_kept_is_completed_and_kept_in_one_commit(
    psycopg_bench: Bench[Any], server: PostgresServer, inbox: Inbox | None
) -> None:
    store = Watched(server.url)
    receiver = Receiver(secrets=SECRET, store=store, inbox=inbox, keep_handled=timedelta(days=1))
    add_handlers(receiver, psycopg_bench, "book")
    event = comment()
    async with receiver:
        assert (await deliver(receiver, event)).status in {200, 202}
        if inbox is not None:
            await empty_inbox(receiver)
        assert [one.delivery.event_id for one in await store.handled_events()] == [event.id]
    assert psycopg_bench.read() == ["book"]
    assert store.seen == [Known.IN_FLIGHT if inbox is None else Known.WAITING]
    assert server.execute("SELECT 1 FROM hookonce.finishes") == []


async def test_the_replay_of_a_handled_event_is_completed_by_the_commit(
    psycopg_bench: Bench[Any], server: PostgresServer
) -> None:
    store = Watched(server.url)
    receiver = Receiver(secrets=SECRET, store=store, keep_handled=timedelta(days=1))
    add_handlers(receiver, psycopg_bench, "book", "count")
    async with receiver:
        assert answer_of(await deliver(receiver, comment())) == (200, "handled")
        batch = await receiver.handled.open_batch(handler="book")
        assert [one.reason async for one in receiver.handled.replay_all(batch)] == ["handled"]
        assert len(await receiver.handled.list()) == 1
    assert sorted(rows_of(psycopg_bench)) == ["book", "book", "count"]
    assert store.seen == [Known.IN_FLIGHT, Known.DONE]
    assert server.execute("SELECT 1 FROM hookonce.finishes") == []


def add_handlers(receiver: Receiver, bench: Bench[Any], *names: str) -> None:
    """Register handlers within the ledger; each writes its own name."""
    for name in names:
        if is_async_ledger(bench.ledger):

            async def write(_: CommentReceived, transaction: Any, name: str = name) -> None:
                await written(bench, transaction, name)

            receiver.on(CommentReceived, name=name, within=bench.ledger)(write)
        else:

            def write_in_thread(_: CommentReceived, transaction: Any, name: str = name) -> None:
                bench.write(transaction, name)

            receiver.on(CommentReceived, name=name, within=bench.ledger)(write_in_thread)


def _handler(ledger: Any) -> Handler:
    return Handler(HANDLER, print, is_async=False, takes_context=True, ledger=ledger)


def _waits_for_a_lock(server: PostgresServer) -> bool:
    return bool(server.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


async def test_the_body_of_an_event_that_a_commit_completed_is_deleted_after_a_crash(
    psycopg_bench: Bench[Any], store: PostgresStore, clock: ManualClock, server: PostgresServer
) -> None:
    kept = await claimed(store)
    await store.keep(kept, delivery_of())
    await perform(psycopg_bench, store, kept)
    buried = await claimed(store, "evt_2")
    await store.bury(buried, DeadReason.REJECTED, delivery=delivery_of("evt_2"))
    replayed = await store.replay(buried.key, new_token(), LEASE)
    assert isinstance(replayed, Claimed)
    await perform(psycopg_bench, store, replayed)
    still_dead = await claimed(store, "evt_3")
    await store.bury(still_dead, DeadReason.REJECTED, delivery=delivery_of("evt_3"))
    # As if the process had died after the commits.
    clock.advance(2 * LEASE)
    await store.prune()
    assert server.execute("SELECT event_id FROM hookonce.dead") == [("evt_3",)]
    assert server.execute("SELECT count(*) FROM hookonce.finishes") == [(0,)]
    known = await store.known("default", ["evt_1", "evt_2"])
    assert known == {"evt_1": Known.DONE, "evt_2": Known.DONE}


async def test_the_next_event_of_a_key_is_due_when_a_crash_follows_the_commit(
    psycopg_bench: Bench[Any], store: PostgresStore, clock: ManualClock
) -> None:
    key_lock = KeyLock("default", HANDLER, "one key")
    for event_id in ("evt_1", "evt_2"):
        await store.enqueue(delivery_of(event_id), new_token(), key_lock=key_lock)
    claim = await fetched(store)
    await perform(psycopg_bench, store, claim)
    clock.advance(LEASE)  # as if the process had died after the commit
    due = await store.fetch(9, LEASE, endpoint="default", worker="two", token=new_token())
    if not due.fetched:  # the fetch only removed the event that is done
        assert due.next_due_seconds == 0.0
        due = await store.fetch(9, LEASE, endpoint="default", worker="two", token=new_token())
    assert [one.delivery.event_id for one in due.fetched] == ["evt_2"]
