"""Calls that share a transaction in SQLite share statements, and each gets its own answer."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from math import nan
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.sqlite_files import sqlite_connection
from support.sqlite_writer import between_batches

from hookonce.clock import Clock
from hookonce.errors import StoreError
from hookonce.stores.protocols import DEFAULT_RETENTION
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Acquired,
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    Full,
    InFlight,
    KeyLock,
    Ownership,
    Stored,
    Token,
    Waiting,
    Watermark,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 600.0
PATIENCE_SECONDS = 20.0
CHANGES = ("SELECT", "INSERT", "UPDATE", "DELETE")
TABLES_THAT_GROW = {"done", "attempts", "dead", "entries", "inbox_bodies", "key_locks", "waiting"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hooks.db"


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path, clock=clock)
    yield store
    await store.aclose()


@pytest.fixture
async def connection(store: SQLiteStore, connections: list[apsw.Connection]) -> apsw.Connection:
    """Open the store, and return its connection."""
    await store.open()
    [connection] = connections
    return connection


def key(name: str) -> DeliveryKey:
    return delivery_key("default", name)


def delivery(name: str, body: bytes = b"{}", *, endpoint: str = "default") -> Delivery:
    return Delivery(endpoint, name, "comment.received", 1_700_000_000.25, body)


async def claim(store: SQLiteStore, name: str, token: Token | None = None) -> Claimed:
    """Claim an event that must be free."""
    result = await store.claim(key(name), token or new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


@asynccontextmanager
async def one_batch(store: SQLiteStore, connection: apsw.Connection) -> AsyncIterator[None]:
    """Let the calls that begin inside the block share one transaction."""
    entered, go = threading.Event(), threading.Event()

    def hold() -> bool:
        entered.set()
        go.wait(PATIENCE_SECONDS)
        return False

    with between_batches(store):
        connection.set_commit_hook(hold)
    held = asyncio.create_task(store.complete(Claimed(key("held"), new_token(), 1, frozenset(), 1)))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not entered.is_set():  # noqa: ASYNC110 - a thread cannot set an asyncio event
                await asyncio.sleep(0.001)
        yield
        for _ in range(10):
            await asyncio.sleep(0)
    finally:
        go.set()
        await held


def statements_of(connection: apsw.Connection) -> list[str]:
    """Return a list to which the connection's statements are added from now on.

    The writer must not be using the connection: call this inside ``one_batch``.
    """
    statements: list[str] = []

    def note(_: apsw.Cursor, statement: str, __: object) -> bool:
        statements.append(statement)
        return True

    connection.set_exec_trace(note)
    return statements


class TestFewStatements:
    @pytest.mark.parametrize("kind", ["claim", "complete", "enqueue"])
    async def test_60_new_events_take_as_many_statements_as_one(
        self, store: SQLiteStore, connection: apsw.Connection, kind: str
    ) -> None:
        async def call(name: str) -> None:
            if kind == "claim":
                assert isinstance(await store.claim(key(name), new_token(), LEASE), Claimed)
            elif kind == "enqueue":
                assert await store.enqueue(delivery(name), new_token(), max_depth=100) == Stored()
            else:
                await store.complete(Claimed(key(name), new_token(), 1, frozenset(), LEASE))

        counts = []
        for names in (["alone"], [f"evt_{n}" for n in range(60)]):
            async with one_batch(store, connection):
                calls = [asyncio.create_task(call(name)) for name in names]
                statements = statements_of(connection)
            await asyncio.gather(*calls)
            counts.append(len([text for text in statements if "PRAGMA" not in text]))
        assert counts[0] == counts[1]

    async def test_60_key_locks_are_acquired_in_one_transaction(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        gates = [KeyLock("default", "shop.sync", f"chan_{n}") for n in range(60)]
        async with one_batch(store, connection):
            calls = asyncio.gather(
                *(store.acquire_key_lock(key_lock, Token("t"), LEASE) for key_lock in gates)
            )
            statements = statements_of(connection)
        assert await calls == [Acquired()] * 60
        assert statements.count("COMMIT") == 1

    async def test_60_new_events_are_fetched_in_as_many_statements_as_one(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        counts = []
        for count in (1, 60):
            for number in range(count):
                await store.enqueue(delivery(f"evt_{count}_{number}"), new_token())
            await store.fetch(0, LEASE, endpoint="default", worker="one", token=new_token())
            statements = statements_of(connection)
            batch = await store.fetch(
                100, LEASE, endpoint="default", worker="one", token=new_token()
            )
            assert len(batch.fetched) == count
            counts.append(len(statements))
        assert counts[0] == counts[1]


class TestIndexes:
    async def test_no_call_that_a_delivery_needs_reads_all_of_a_table(
        self, path: Path, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        key_lock, take = (
            KeyLock("default", "sync", "channel"),
            {"endpoint": "default", "worker": "w"},
        )
        await store.fetch(
            9, LEASE, **take, token=new_token()
        )  # the first fetch reads the whole inbox
        statements: dict[str, Any] = {}

        def note(_: apsw.Cursor, statement: str, bindings: Any) -> bool:
            statements.setdefault(statement, bindings)
            return True

        with between_batches(store):
            connection.set_exec_trace(note)
        for name in ("new", "tried"):
            await store.enqueue(delivery(name), new_token(), max_depth=9)
        for n, token in enumerate((Token("one"), Token("one"), Token("two"))):
            batch = await store.fetch(9, LEASE, **take, token=token)
            for taken in batch.fetched[n:]:
                assert await store.retry(taken.claim, 0.0) is Ownership.HELD
        await store.make_due(key("new"))
        await store.complete(batch.fetched[0].claim)
        await store.enqueue(delivery("tried"), new_token())
        kept, buried, given_back = [await claim(store, name) for name in ("kept", "buried", "back")]
        await store.extend(kept)
        await store.keep(kept, delivery("kept"))
        await store.bury(buried, DeadReason.REJECTED, delivery=delivery("buried"))
        await store.replay(buried.key, new_token(), LEASE)
        await store.release(given_back, frozenset())
        await store.enqueue(delivery("back"), new_token(), max_depth=9)
        await asyncio.gather(*(claim(store, name) for name in ("a", "b")))
        for name in ("first", "second"):
            await store.acquire_key_lock(key_lock, Token(name), LEASE, waiting=key(name))
        await store.release_key_lock(
            key_lock, Token("first"), watermark=Watermark(1, "first"), event=key("first")
        )
        with between_batches(store):
            connection.set_exec_trace(None)

        asked = [text for text in statements if text.lstrip().startswith(CHANGES)]
        assert len(asked) > 25
        with closing(sqlite_connection(path)) as other:
            read = {
                (table, text)
                for text in asked
                for *_, step in other.execute(f"EXPLAIN QUERY PLAN {text}", statements[text])
                if (table := step.partition("SCAN ")[2].partition(" ")[0]) in TABLES_THAT_GROW
                and "SELECT EXISTS (SELECT 1 FROM dead)"
                not in text  # the statement reads one row at most
            }
        assert not read

    async def test_stats_of_an_endpoint_without_events_do_not_look_through_those_of_others(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        await asyncio.gather(
            *(
                store.enqueue(delivery(f"evt_{n}", endpoint="busy"), new_token(), max_depth=1_000)
                for n in range(1_000)
            )
        )
        hundreds: list[int] = []  # SQLite calls `note` after each hundred of its steps

        def note() -> bool:
            hundreds.append(len(hundreds))
            return False

        with between_batches(store):
            connection.set_progress_handler(note, 100)
        assert (await store.stats(endpoint="idle")).oldest_age_seconds is None
        assert len(hundreds) < 10
        assert (await store.stats(endpoint="busy")).oldest_age_seconds is not None


class TestSharedBatches:
    async def test_claims_at_once_are_answered_by_what_is_known_of_each(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        mine = new_token()
        await store.complete(await claim(store, "done"))
        await claim(store, "theirs")
        await claim(store, "mine", mine)
        await store.release(await claim(store, "failed"), frozenset({"a"}), "b failed")
        dead = await claim(store, "dead")
        await store.bury(dead, DeadReason.REJECTED, delivery=delivery("dead"))
        await store.enqueue(delivery("waiting"), new_token())
        held = await claim(store, "extended", mine)
        await store.extend(held, frozenset({"a"}))
        names = ["new", "done", "theirs", "mine", "failed", "dead", "waiting", "extended", "new 2"]
        async with one_batch(store, connection):
            calls = [asyncio.create_task(store.claim(key(n), mine, LEASE)) for n in names]
        results = dict(zip(names, await asyncio.gather(*calls), strict=True))
        kinds = {name: type(result) for name, result in results.items()}
        assert kinds == {
            "new": Claimed,
            "done": Done,
            "theirs": InFlight,
            "mine": Claimed,
            "failed": Claimed,
            "dead": Dead,
            "waiting": InFlight,
            "extended": Claimed,
            "new 2": Claimed,
        }
        assert results["new"] == Claimed(key("new"), mine, 1, frozenset(), LEASE)
        assert results["failed"] == Claimed(key("failed"), mine, 2, frozenset({"a"}), LEASE)
        assert results["extended"] == Claimed(key("extended"), mine, 1, frozenset({"a"}), LEASE)
        for name in ("new", "new 2", "mine", "failed"):
            owned = results[name]
            assert isinstance(owned, Claimed)
            assert await store.extend(owned) is Ownership.HELD

    async def test_a_completion_after_the_retention_is_recorded_again(
        self,
        store: SQLiteStore,
        connection: apsw.Connection,
        pass_time: Callable[[float], None],
    ) -> None:
        again, *others = [await claim(store, f"evt_{number}") for number in range(20)]
        await store.complete(again)
        # The event's retention is over, but its row still exists.
        pass_time(DEFAULT_RETENTION.total_seconds() + 60)
        async with one_batch(store, connection):
            calls = asyncio.gather(*(store.complete(owned) for owned in (again, *others)))
        await calls
        for owned in (again, *others):
            assert isinstance(await store.claim(owned.key, new_token(), LEASE), Done)
        assert (await store.stats()).in_flight == 0

    async def test_claims_of_several_endpoints_and_leases_keep_their_own(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        async with one_batch(store, connection):
            calls = [
                asyncio.create_task(store.claim(delivery_key(name, "evt"), new_token(), lease))
                for name, lease in (("one", 5.0), ("two", LEASE))
            ]
        leases = [
            claim.lease_seconds
            for claim in await asyncio.gather(*calls)
            if isinstance(claim, Claimed)
        ]
        assert leases == [5.0, LEASE]
        assert (await store.stats(endpoint="one")).in_flight == 1
        assert (await store.stats(endpoint="two")).in_flight == 1

    async def test_of_copies_at_once_one_is_claimed_and_one_is_stored(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        async with one_batch(store, connection):
            claims = [store.claim(key("claimed"), new_token(), LEASE) for _ in range(5)]
            puts = [store.enqueue(delivery("enqueue"), new_token()) for _ in range(5)]
            calls = asyncio.gather(*claims, *puts)
        kinds = [type(result) for result in await calls]
        assert kinds == [Claimed, *[InFlight] * 4, Stored, *[Waiting] * 4]

    async def test_puts_at_once_are_answered_by_what_is_known_of_each(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        mine = new_token()
        await store.complete(await claim(store, "done"))
        await claim(store, "claimed")
        dead = await claim(store, "dead")
        await store.bury(dead, DeadReason.REJECTED, delivery=delivery("dead"))
        await store.enqueue(delivery("waiting"), new_token())
        await store.enqueue(delivery("mine"), mine)
        names = ["new", "done", "claimed", "dead", "waiting", "mine", "empty"]
        bodies = {"empty": b"", "new": bytes(range(256)) * 100}
        async with one_batch(store, connection):
            calls = [
                asyncio.create_task(store.enqueue(delivery(name, bodies.get(name, b"{}")), mine))
                for name in names
            ]
        kinds = [type(result) for result in await asyncio.gather(*calls)]
        assert kinds == [Stored, Done, Stored, Dead, Waiting, Stored, Stored]
        assert {entry.delivery.event_id for entry in await store.entries()} == {
            *("new", "claimed", "waiting", "mine", "empty")
        }
        for name in ("new", "empty"):
            entry = await store.entry(key(name))
            assert entry is not None
            assert entry.delivery == delivery(name, bodies[name])

    async def test_a_repeated_claim_has_the_lease_it_was_granted_with(
        self, store: SQLiteStore
    ) -> None:
        first = await claim(store, "evt_1", Token("mine"))
        assert await store.claim(key("evt_1"), Token("mine"), LEASE / 2) == first

    async def test_a_listener_that_fails_keeps_no_caller_from_an_answer(
        self, store: SQLiteStore
    ) -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

        def fail(_: int, __: float) -> None:
            raise ZeroDivisionError

        store.flushes.add(fail)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(claim(store, f"evt_{n}") for n in range(20)))
        assert {type(fault["exception"]) for fault in faults} == {ZeroDivisionError}

    async def test_puts_at_once_do_not_fill_an_inbox_beyond_its_limits(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        async with one_batch(store, connection):
            calls = [
                *(store.enqueue(delivery(f"evt_{n}"), new_token(), max_depth=3) for n in range(5)),
                *(
                    store.enqueue(delivery(f"evt_{n}", endpoint="other"), new_token(), max_bytes=5)
                    for n in range(5)
                ),
            ]
            together = asyncio.gather(*calls)
        kinds = [type(result) for result in await together]
        assert kinds == [Stored, Stored, Stored, Full, Full, Stored, Stored, Full, Full, Full]

    @pytest.mark.parametrize(
        "bad",
        [
            pytest.param(Delivery("default", "bad", None, nan, b""), id="no time"),
            pytest.param(Delivery("default", "bad", "\ud800", 1.0, b""), id="no text"),
        ],
    )
    async def test_an_enqueue_that_cannot_be_written_fails_alone(
        self, store: SQLiteStore, connection: apsw.Connection, bad: Delivery
    ) -> None:
        async with one_batch(store, connection):
            calls = asyncio.gather(
                store.enqueue(delivery("before"), new_token()),
                store.enqueue(bad, new_token()),
                store.enqueue(delivery("after"), new_token()),
                return_exceptions=True,
            )
        kinds = [type(result) for result in await calls]
        assert kinds == [Stored, StoreError, Stored]

    async def test_one_take_finds_new_events_and_those_that_were_tried(
        self, store: SQLiteStore, pass_time: Callable[[float], None]
    ) -> None:
        for name in ("tried", "lost", "settled elsewhere", "new"):
            await store.enqueue(delivery(name), new_token())
            pass_time(1)
        [tried, lost] = (
            await store.fetch(2, LEASE, endpoint="default", worker="one", token=new_token())
        ).fetched
        await store.retry(tried.claim, 0.0, frozenset({"a"}), "b failed")
        pass_time(LEASE)
        batch = await store.fetch(9, LEASE, endpoint="default", worker="one", token=new_token())
        taken = {one.delivery.event_id: one.claim for one in batch.fetched}
        assert {name: claim.attempt for name, claim in taken.items()} == {
            "tried": 2,
            "lost": 2,
            "settled elsewhere": 1,
            "new": 1,
        }
        assert taken["tried"].finished == frozenset({"a"})
        assert batch.next_due_seconds == LEASE
        assert await store.extend(lost.claim) is Ownership.LOST


class SyncedFiles(apsw.VFS):
    """SQLite's own file system, which notes the suffixes of the files that it has synced."""

    def __init__(self) -> None:
        super().__init__("noting", "unix", makedefault=True)
        self.names: list[str] = []

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - apsw calls this name
        synced = self.names
        text = name.filename() if isinstance(name, apsw.URIFilename) else name or ""

        class File(apsw.VFSFile):
            def xSync(self, flags: int) -> None:  # noqa: N802 - apsw calls this name
                super().xSync(flags)
                synced.append(text.rpartition(".")[2])

        return File("unix", name, flags)


@pytest.fixture
def synced() -> Iterator[list[str]]:
    """Return a list of the suffixes of files that are synced from now on."""
    files = SyncedFiles()
    yield files.names
    files.unregister()


class TestSyncing:
    """Before a store answers a call, its commit and every earlier commit have reached the disk."""

    @pytest.mark.parametrize("what", ["complete", "enqueue", "bury", "keep", "fetch", "replay"])
    async def test_what_an_answer_or_an_attempt_of_ours_rests_on_is_synced(
        self, synced: list[str], store: SQLiteStore, what: str
    ) -> None:
        await store.enqueue(delivery("waiting"), new_token())
        buried = await claim(store, "buried")
        await store.bury(buried, DeadReason.REJECTED, delivery=delivery("buried"))
        owned = await claim(store, "evt_1")
        synced.clear()
        match what:
            case "complete":
                await store.complete(owned)
            case "enqueue":
                await store.enqueue(delivery("evt_2"), new_token())
            case "bury":
                await store.bury(owned, DeadReason.REJECTED, delivery=delivery("evt_1"))
            case "keep":
                await store.keep(owned, delivery("evt_1"))
            case "fetch":
                await store.fetch(1, LEASE, endpoint="default", worker="one", token=new_token())
            case "replay":
                await store.replay(buried.key, new_token(), LEASE)
        assert synced == ["db-wal"]

    async def test_claims_alone_do_not_wait_for_the_disk(
        self, synced: list[str], store: SQLiteStore
    ) -> None:
        await store.complete(await claim(store, "evt_1"))
        synced.clear()
        await claim(store, "evt_2")
        await claim(store, "evt_3")
        assert synced == []

    async def test_key_locks_do_not_wait_for_the_disk_since_the_record_of_the_success_does(
        self, synced: list[str], store: SQLiteStore
    ) -> None:
        key_lock, token, watermark = (
            KeyLock("default", "shop.sync", "chan_1"),
            new_token(),
            Watermark(1, "evt_1"),
        )
        owned = await claim(store, "evt_1")
        synced.clear()
        await store.acquire_key_lock(key_lock, token, LEASE, watermark=watermark)
        await store.release_key_lock(key_lock, token, watermark=watermark)
        assert synced == []
        await store.complete(owned)
        assert synced == ["db-wal"]

    async def test_a_claim_that_shares_a_commit_with_a_completion_is_synced_with_it(
        self, synced: list[str], store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        owned = await claim(store, "evt_1")
        async with one_batch(store, connection):
            calls = asyncio.gather(
                store.claim(key("evt_2"), new_token(), LEASE),
                store.complete(owned),
                store.claim(key("evt_3"), new_token(), LEASE),
            )
            synced.clear()
        await calls
        # One sync for the completion that delayed the calls, and one sync for all these calls.
        assert synced == ["db-wal"] * 2


class TestWaking:
    async def test_calls_of_one_turn_of_the_loop_are_one_transaction(
        self, store: SQLiteStore
    ) -> None:
        await store.open()
        batches: list[int] = []
        store.flushes.add(lambda calls, _: batches.append(calls))
        keys = [delivery_key("default", f"evt_{number}") for number in range(50)]
        claims = [store.claim(key, new_token(), LEASE) for key in keys]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # the writer's thread then runs as soon as it is woken
        try:
            assert all(isinstance(one, Claimed) for one in await asyncio.gather(*claims))
        finally:
            sys.setswitchinterval(interval)
        assert batches == [50]

    async def test_what_a_loop_that_ended_has_left_is_done_all_the_same(
        self, store: SQLiteStore
    ) -> None:
        key = delivery_key("default", "evt_1")
        claim = await store.claim(key, new_token(), LEASE)
        assert isinstance(claim, Claimed)

        def ask_and_end() -> None:
            loop = asyncio.new_event_loop()
            call = loop.create_task(store.complete(claim))
            loop.call_soon(loop.stop)
            loop.run_forever()  # the task has queued its call, but has not woken the writer
            loop.close()
            call._log_destroy_pending = False  # type: ignore[attr-defined]

        await asyncio.to_thread(ask_and_end)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await store.claim(key, new_token(), LEASE) == Done()
