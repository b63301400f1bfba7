"""The PostgreSQL store beyond the contract: other processes, lost replies, rights and formats."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from support.postgres import PostgresServer, postgres_server
from support.postgres_proxy import Cut, postgres_proxy
from support.waiting import PATIENCE_SECONDS, until, until_async

from hookonce.errors import StoreError
from hookonce.stores.formats import DamagedError
from hookonce.stores.handled import Keeping
from hookonce.stores.postgres import PostgresStore, bounds, reports, wake
from hookonce.stores.postgres import store as store_module
from hookonce.stores.postgres.claims import ClaimsTable
from hookonce.stores.postgres.connection import exchange
from hookonce.stores.postgres.inbox import TAKE_LONGER
from hookonce.stores.postgres.records import digest_of
from hookonce.stores.postgres.schema import schema_sql
from hookonce.stores.postgres.wire import rows
from hookonce.stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    Done,
    Known,
    Ownership,
    Stored,
    Waiting,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
NONE: frozenset[str] = frozenset()


def delivery(event_id: str) -> Delivery:
    return Delivery("default", event_id, "post.target.failed", 1_700_000_000.0, b"{}")


@asynccontextmanager
async def two_stores(server: PostgresServer) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    async with (
        aclosing(PostgresStore(server.url)) as one,
        aclosing(PostgresStore(server.url)) as other,
    ):
        yield one, other


async def test_only_one_of_two_processes_gets_each_claim(postgres: PostgresServer) -> None:
    keys = [delivery_key("default", f"evt_{number}") for number in range(60)]
    async with two_stores(postgres) as stores:
        for _ in range(4):
            granted = 0
            asked = []
            for store in stores:
                order = random.sample(keys, len(keys))
                asked += [store.claim(key, new_token(), LEASE) for key in order]
            for answer in await asyncio.gather(*asked):
                granted += isinstance(answer, Claimed)
            assert granted == len(keys)
            keys = [delivery_key("default", f"{key}x") for key in keys]


async def test_processes_that_start_together_create_the_tables_once(
    postgres: PostgresServer,
) -> None:
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(aclosing(PostgresStore(postgres.url))) for _ in range(6)
        ]
        await asyncio.gather(*(store.open() for store in stores))
        claims = await asyncio.gather(
            *(store.claim(delivery_key("default", "evt_1"), new_token(), LEASE) for store in stores)
        )
    assert sum(isinstance(claim, Claimed) for claim in claims) == 1
    assert postgres.execute("SELECT number FROM hookonce.format") == [(1,)]


async def test_a_store_that_closes_during_a_call_leaves_no_connection_open(
    postgres: PostgresServer,
) -> None:
    def store_tasks() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if "Wakeups" in repr(task.get_coro())]

    store = PostgresStore(f"{postgres.url}?application_name=closing", listen=True)
    await store.open()
    storing = asyncio.create_task(store.enqueue(delivery("evt_1"), new_token()))
    await asyncio.sleep(0)  # the call has begun
    await store.aclose()
    assert isinstance(await storing, Stored)
    await until(lambda: not store_tasks(), what="the end of the announcement")
    await until(
        lambda: (
            not postgres.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'closing'"
            )
        ),
        what="no connection of the closed store",
    )


async def test_steps_of_two_processes_on_the_same_events_never_fail(
    postgres: PostgresServer,
) -> None:
    async with two_stores(postgres) as stores:
        claims = [
            claim
            for number in range(40)
            if isinstance(
                claim := await stores[0].claim(
                    delivery_key("default", f"evt_{number}"), new_token(), LEASE
                ),
                Claimed,
            )
        ]
        asked = []
        for store in stores:
            for claim in random.sample(claims, len(claims)):
                asked += [
                    store.extend(claim, frozenset({"a"})),
                    store.keep_in_flight(delivery(claim.key.partition(":")[2])),
                ]
        await asyncio.gather(*asked)
        asked = [
            store.complete(claim)
            for store in stores
            for claim in random.sample(claims, len(claims))
        ]
        await asyncio.gather(*asked)
        known = await stores[0].known("default", [f"evt_{number}" for number in range(40)])
        assert set(known.values()) == {Known.DONE}


async def test_an_event_completed_while_it_is_enqueued_is_done(postgres: PostgresServer) -> None:
    async with two_stores(postgres) as (one, other):
        for number in range(30):
            event = delivery(f"evt_{number}")
            claim = await one.claim(event.key, new_token(), LEASE)
            assert isinstance(claim, Claimed)
            result, _ = await asyncio.gather(other.enqueue(event, new_token()), one.complete(claim))
            assert result in {Stored(), Done()}
            assert await one.claim(event.key, new_token(), LEASE) == Done()
        assert (await one.stats()).depth == 0


@pytest.mark.parametrize("cut", Cut)
async def test_a_lost_reply_to_a_commit_is_resolved(postgres: PostgresServer, cut: Cut) -> None:
    async with (
        postgres_proxy(postgres.url) as proxy,
        aclosing(PostgresStore(proxy.url)) as store,
    ):
        key = delivery_key("default", "evt_1")
        claim = await store.claim(key, new_token(), LEASE)
        assert isinstance(claim, Claimed)
        proxy.cut = cut
        assert await store.release(claim, frozenset({"a"}), "it failed") is Ownership.HELD
        assert proxy.cuts == 1
        again = await store.claim(key, new_token(), LEASE)
        assert isinstance(again, Claimed)
        assert (again.attempt, again.finished) == (2, frozenset({"a"}))


@pytest.mark.full("2 s: a server starts and recovers")
async def test_a_failover_does_not_mistake_another_transaction_for_a_lost_one(
    postgres: PostgresServer,
) -> None:
    """The new server gives the number of the lost transaction to another transaction."""
    with postgres_server() as other:
        async with (
            postgres_proxy(postgres.url) as proxy,
            aclosing(PostgresStore(proxy.url)) as store,
        ):
            claim = await store.claim(delivery_key("default", "evt_1"), new_token(), LEASE)
            assert isinstance(claim, Claimed)
            other.follow(postgres)
            other.promote()
            for _ in range(20):
                other.execute("SELECT pg_current_xact_id()")
            proxy.cut = Cut.BEFORE_COMMIT
            proxy.lead_to(other.url)
            await store.bury(claim, DeadReason.REJECTED, delivery=delivery("evt_1"))
            assert proxy.cuts == 1
            assert await store.dead_letter(claim.key) is not None


@pytest.mark.full("1 s: a server starts")
async def test_a_recovery_does_not_mistake_another_transaction_for_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that has lost a backend gives the number of the lost transaction to another one."""
    with postgres_server(wal_writer_delay="10s") as server:
        async with aclosing(PostgresStore(server.url)) as store:
            event = delivery("evt_1")
            claim = await store.claim(event.key, new_token(), LEASE)
            assert isinstance(claim, Claimed)
            number, write = "SELECT pg_current_xact_id()::text::int8", ClaimsTable.write

            async def crash(
                self: ClaimsTable, connection: AsyncConnection[Any], *rest: Any
            ) -> set[bytes]:
                monkeypatch.undo()
                [result] = await exchange(connection, [(number.encode(), ())])
                with psycopg.connect(server.url, autocommit=True) as other:
                    os.kill(connection.pgconn.backend_pid, signal.SIGKILL)
                    with pytest.raises(psycopg.OperationalError):  # the server ends all backends
                        other.execute("SELECT pg_sleep(60)")
                server.recover()
                assert server.execute(number) == rows(result)
                return await write(self, connection, *rest)

            monkeypatch.setattr(ClaimsTable, "write", crash)
            await store.bury(claim, DeadReason.REJECTED, delivery=event)
            assert await store.dead_letter(event.key) is not None


async def test_calls_outlive_connections_that_are_cut(postgres: PostgresServer) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        for number in range(20):
            event = delivery(f"evt_{number}")
            assert await store.enqueue(event, new_token()) == Stored()
            postgres.terminate_backends()
            assert await store.enqueue(event, new_token()) == Waiting()
        batch = await store.fetch(
            100, LEASE, endpoint="default", worker="worker", token=new_token()
        )
        assert len(batch.fetched) == 20
        postgres.terminate_backends()
        await asyncio.gather(*(store.complete(fetched.claim) for fetched in batch.fetched))
        assert (await store.stats()).depth == 0


async def test_a_batch_has_a_largest_size(postgres: PostgresServer) -> None:
    """Large bodies that arrive together would otherwise exceed the time limit of all calls."""
    events = [delivery(f"evt_{number}")._replace(body=bytes(3_000_000)) for number in range(4)]
    async with aclosing(PostgresStore(postgres.url)) as store:
        calls: list[int] = []
        store.flushes.add(lambda count, _: calls.append(count))
        for kind in ("inbox", "dead letters", "handled events"):
            asked: list[Awaitable[object]] = []
            for event in (event._replace(endpoint=kind) for event in events):
                if kind == "inbox":
                    asked.append(store.enqueue(event, new_token()))
                    continue
                claim = await store.claim(event.key, new_token(), LEASE)
                assert isinstance(claim, Claimed)
                asked.append(
                    store.bury(claim, DeadReason.REJECTED, delivery=event)
                    if kind == "dead letters"
                    else store.complete_and_keep(claim, event, {"a"}, Keeping(60.0))
                )
            await asyncio.sleep(0)
            calls.clear()
            await asyncio.gather(*asked)
            await asyncio.sleep(0)
            assert calls == [2, 2]


async def test_slow_statements_leave_connections_to_the_calls_about_events(
    postgres: PostgresServer,
) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    slow = (
        (b"SELECT set_config('lock_timeout', '0', true)", ()),
        (b"SELECT pg_advisory_xact_lock_shared(1)::text", ()),
    )
    async with aclosing(PostgresStore(postgres.url)) as store:
        await store.open()
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(1)")
            asked = [
                asyncio.create_task(store._session.ask(TAKE_LONGER, *slow, seconds=60))
                for _ in range(8)
            ]
            await until(lambda: postgres.execute(waiting) == [(2,)])
            key = delivery_key("default", "evt_1")
            assert isinstance(await store.claim(key, new_token(), LEASE), Claimed)
        await asyncio.gather(*asked)


async def test_an_event_whose_row_is_locked_for_long_holds_up_no_other_event(
    postgres: PostgresServer,
) -> None:
    keys = [delivery_key("default", f"evt_{number}") for number in range(6)]
    async with aclosing(PostgresStore(postgres.url)) as store:
        claims = await asyncio.gather(*(store.claim(key, new_token(), LEASE) for key in keys))
        held = [claim for claim in claims if isinstance(claim, Claimed)]
        with psycopg.connect(postgres.url) as connection:
            connection.execute(
                "SELECT FROM hookonce.ids WHERE key = %s FOR UPDATE", [digest_of(keys[0])]
            )
            extended = [asyncio.ensure_future(store.extend(claim)) for claim in held]
            assert set(await asyncio.gather(*extended[1:])) == {Ownership.HELD}
            new = await store.claim(delivery_key("default", "evt_new"), new_token(), LEASE)
            assert isinstance(new, Claimed)
            assert not extended[0].done()
        assert await extended[0] is Ownership.HELD


async def test_an_unreadable_record_is_set_aside(postgres: PostgresServer) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        first, second = delivery("evt_1"), delivery("evt_2")
        for event in (first, second):
            await store.enqueue(event, new_token())
        postgres.execute(
            "UPDATE hookonce.entries SET history = '{\"a\": 1}' WHERE event_id = 'evt_1'"
        )
        postgres.execute("UPDATE hookonce.entries SET finished = '7' WHERE event_id = 'evt_1'")
        batch = await store.fetch(10, LEASE, endpoint="default", worker="w", token=new_token())
        assert [fetched.delivery for fetched in batch.fetched] == [second]
        with pytest.raises(DamagedError):
            await store.claim(first.key, new_token(), LEASE)
        letter = await store.dead_letter(first.key)
        assert letter is not None
        assert (letter.reason, letter.delivery) == (DeadReason.DAMAGED, first)
        assert b"7" in letter.record
        assert any("1 records of events cannot be read" in text for text in await store.warnings())
        assert await store.discard(first.key)


async def test_an_unknown_format_is_refused_and_nothing_is_written(
    postgres: PostgresServer,
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await store.open()
        postgres.execute("UPDATE hookonce.format SET number = 7")
        with pytest.raises(StoreError, match="format 7"):
            await store.claim(delivery_key("default", "evt_1"), new_token(), LEASE)
        with pytest.raises(StoreError, match="format 7"):
            await store.stats()
        assert postgres.execute("SELECT count(*) FROM hookonce.ids") == [(0,)]


async def test_a_role_that_may_not_create_uses_tables_that_exist(postgres: PostgresServer) -> None:
    postgres.execute("DROP SCHEMA IF EXISTS hooks CASCADE")
    postgres.execute("DROP ROLE IF EXISTS receiver")
    postgres.execute(schema_sql("hooks"))
    postgres.execute("CREATE ROLE receiver LOGIN")
    postgres.execute("GRANT USAGE ON SCHEMA hooks TO receiver")
    postgres.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA hooks TO receiver"
    )
    postgres.execute("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA hooks FROM PUBLIC")
    postgres.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA hooks TO receiver")
    url = postgres.url.replace("postgres@", "receiver@")
    async with aclosing(PostgresStore(url, schema="hooks")) as store:
        event = delivery("evt_1")
        assert await store.enqueue(event, new_token()) == Stored()
        batch = await store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token())
        claim = batch.fetched[0].claim
        await store.complete_and_keep(claim, event, frozenset(), Keeping(3600.0, max_bytes=1))
        await store.complete_and_keep(claim, event, frozenset(), Keeping(3600.0))
        assert len(await store.handled_events()) == 1
        assert await store.claim(event.key, new_token(), LEASE) == Done()
        assert not any("GRANT" in text for text in await store.warnings())
        assert await store.upgrade() == (1, 1)
        assert await store.prune() == 0
    async with aclosing(PostgresStore(url, schema="others")) as store:
        with pytest.raises(StoreError, match="permission denied"):
            await store.open()
    postgres.execute("DROP SCHEMA hooks CASCADE")
    postgres.execute("DROP ROLE receiver")


@pytest.mark.parametrize("schema", ["", "Hooks", "1st", "a b", 'a"; DROP', "x" * 64])
async def test_a_schema_that_needs_quotes_is_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="schema takes"):
        PostgresStore("postgresql://", schema=schema)


async def test_an_event_that_was_stored_late_is_found_when_the_worker_looks_back(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetched() -> list[str]:
        batch = await store.fetch(9, LEASE, endpoint="default", worker="one", token=new_token())
        return [one.delivery.event_id for one in batch.fetched]

    async with aclosing(PostgresStore(postgres.url)) as store:
        await store.enqueue(delivery("evt_first"), new_token())
        assert await fetched() == ["evt_first"]
        assert await fetched() == []  # later fetches read only recent due times
        await store.enqueue(delivery("evt_late"), new_token())
        postgres.execute("UPDATE hookonce.entries SET due = due - 60 WHERE token IS NULL")
        assert await fetched() == []
        monkeypatch.setattr(bounds, "_LOOK_BACK_SECONDS", 0.0)

        async def is_found() -> bool:
            return await fetched() == ["evt_late"]

        await until_async(is_found, what="the late event")


async def test_events_are_found_that_the_next_process_has_left_due_long_ago(
    postgres: PostgresServer,
) -> None:
    async with two_stores(postgres) as (one, other):
        for name in ("a", "b", "c"):
            await one.enqueue(delivery(f"evt_{name}"), new_token())
        postgres.execute("UPDATE hookonce.entries SET due = due - 60")
        found = []
        for store in (one, one, other):
            batch = await store.fetch(
                1, LEASE, endpoint="default", worker=f"of {id(store)}", token=new_token()
            )
            found += [fetched.delivery.event_id for fetched in batch.fetched]
        assert found == ["evt_a", "evt_b", "evt_c"]


async def test_a_fetch_changes_no_index_of_the_inbox(postgres: PostgresServer) -> None:
    """PostgreSQL keeps the dead index entries of handled events while a transaction is open."""
    # A schema of its own: the server may count the updates of other tests later.
    async with aclosing(PostgresStore(postgres.url, schema="counted")) as store:
        await put(store, *(f"evt_{number}" for number in range(200)))
        assert len(await fetched(store, 200)) == 200

    async def are_counted() -> bool:
        return updates_of_entries(postgres, "counted")[0] == 200

    await until_async(are_counted, what="the server's counts of the updates")
    assert updates_of_entries(postgres, "counted")[1] >= 180
    postgres.execute("DROP SCHEMA counted CASCADE")


def updates_of_entries(server: PostgresServer, schema: str) -> tuple[int, int]:
    """Return the number of updates so far, and of those that changed no index."""
    [(updates, hot)] = server.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE schemaname = %s AND relname = 'entries'",
        schema,
    )
    return updates, hot


async def test_a_large_inbox_keeps_its_limit_although_it_is_counted_rarely(
    postgres: PostgresServer,
) -> None:
    async def enqueue(store: PostgresStore, *numbers: int) -> int:
        results = await asyncio.gather(
            *(
                store.enqueue(delivery(f"evt_{number}"), new_token(), max_depth=1_100)
                for number in numbers
            )
        )
        return results.count(Stored())

    async with two_stores(postgres) as (store, other):
        stored = [await enqueue(store, *range(n, n + 100)) for n in range(0, 1_300, 100)]
        assert stored == [100] * 11 + [0] * 2
        assert await enqueue(other, 2_000) == 0
        for claim in await fetched(other, 300):
            await other.complete(claim)

        async def has_room() -> bool:
            return await enqueue(store, 2_000) == 1

        await until_async(has_room, what="the next count")


async def test_counts_of_large_tables_are_used_again_until_they_are_too_old(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_LARGE_BYTES", 0)
    monkeypatch.setattr(reports, "_PATIENCE", 1e9)
    monkeypatch.setattr(reports, "_OLDEST_SECONDS", 3600.0)
    async with two_stores(postgres) as (one, other):
        assert (await one.stats()).depth == 0
        await put(one, "evt_1")
        assert (await one.stats()).depth == 0
        assert (await one.stats(endpoint="default")).depth == 1
        monkeypatch.setattr(reports, "_OLDEST_SECONDS", 0.0)
        assert (await other.stats()).depth == 1
        await put(one, "evt_2")
        assert (await other.stats()).depth == 2


async def test_a_worker_begins_with_an_event_whose_lease_was_granted_before_the_clock_went_back(
    postgres: PostgresServer,
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, "evt_1")
        assert ids(await fetched(store)) == ["evt_1"]
        # As if the clock had been set back by an hour after the event had waited for two hours.
        postgres.execute("UPDATE hookonce.entries SET due = due - 3600, until = until + 3600")
    async with aclosing(PostgresStore(postgres.url)) as store:
        batch = await store.fetch(9, LEASE, endpoint="default", worker="two", token=new_token())
        assert batch.fetched == ()
        assert batch.next_due_seconds == pytest.approx(LEASE, abs=PATIENCE_SECONDS / 4)


async def test_the_next_process_finds_events_that_are_due_too_late_since_the_clock_went_back(
    postgres: PostgresServer,
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, "evt_1")
        postgres.execute("UPDATE hookonce.entries SET due = due + 3600")
    async with aclosing(PostgresStore(postgres.url)) as store:

        async def is_found() -> bool:
            return ids(await fetched(store)) == ["evt_1"]

        await until_async(is_found, what="the event")


async def test_a_correction_of_due_times_shortens_no_lease_that_began_meanwhile(
    postgres: PostgresServer,
) -> None:
    time = 1_700_000_000.0
    async with aclosing(PostgresStore(postgres.url, clock=lambda: time)) as store:
        await put(store, "evt_1")
        [event] = (
            await store.fetch(9, LEASE, endpoint="default", worker="w", token=new_token())
        ).fetched
        began, time = time, time + 3600
        assert await store.extend(event.claim) is Ownership.HELD
        session, times = store._session, iter((began, time))

        async def correct(connection: AsyncConnection[Any]) -> None:
            guard = session.format.guard
            await session.inbox.correct(connection, guard, lambda: next(times), "default")

        await session.call(correct)
        assert postgres.execute("SELECT until FROM hookonce.entries") == [(time + LEASE,)]


async def put(store: PostgresStore, *event_ids: str) -> None:
    results = await asyncio.gather(
        *(store.enqueue(delivery(event_id), new_token()) for event_id in event_ids)
    )
    assert set(results) == {Stored()}


async def fetched(store: PostgresStore, limit: int = 64) -> list[Claimed]:
    batch = await store.fetch(limit, LEASE, endpoint="default", worker="one", token=new_token())
    return [one.claim for one in batch.fetched]


def ids(claims: list[Claimed]) -> list[str]:
    return [claim.key.removeprefix("default:") for claim in claims]


@asynccontextmanager
async def two_listening_stores(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Open two stores; the first store learns of new events only by notifications."""
    url = f"{server.url}?listen=true"
    async with aclosing(PostgresStore(url)) as worker, aclosing(PostgresStore(url)) as web:
        await worker.open()
        await web.open()
        await listens(worker)
        monkeypatch.setattr(store_module, "_LISTENING_LOOK_SECONDS", 3600.0)
        yield worker, web


async def listens(worker: PostgresStore) -> None:
    async def is_listening() -> bool:
        await worker.wait("default", 0.001)
        return worker._session.wakeups.is_listening

    await until_async(is_listening, what="LISTEN")


async def test_an_enqueue_of_another_process_wakes_a_listening_worker(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "hookonce.store")
    async with two_listening_stores(postgres, monkeypatch) as (worker, web):
        assert await fetched(worker) == []
        waiting = asyncio.create_task(worker.wait("default", 3600.0))
        await web.enqueue(delivery("evt_1"), new_token())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waiting
        assert ids(await fetched(worker)) == ["evt_1"]
    assert "could not notify" not in caplog.text


async def test_a_worker_whose_listening_connection_is_cut_looks_often_and_listens_again(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "_RECONNECT_SECONDS", 2.0)
    async with two_listening_stores(postgres, monkeypatch) as (worker, web):
        assert await fetched(worker) == []
        postgres.terminate_backends()
        await until(lambda: not worker._session.wakeups.is_listening, what="the cut")
        waiting = asyncio.create_task(worker.wait("default", 3600.0))
        await web.enqueue(delivery("evt_1"), new_token())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waiting
        await listens(worker)


async def test_enqueues_at_once_are_one_notification(postgres: PostgresServer) -> None:
    async with aclosing(PostgresStore(postgres.url, listen=True)) as store:
        await store.open()
        sent: list[object] = []

        async def send(statement: object) -> None:
            sent.append(statement)

        store._session.wakeups._send = send
        await asyncio.gather(
            *(store.enqueue(delivery(f"evt_{n}"), new_token()) for n in range(100))
        )
        await until(lambda: sent, what="a notification")
    assert len(sent) == 1
