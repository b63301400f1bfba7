"""Handled events in PostgreSQL: many processes keep deliveries under one limit."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing

import pytest
from psycopg import AsyncConnection
from support.postgres import PostgresServer
from support.waiting import until

from hookonce.stores.handled import HandledStats, Keeping
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.replays import ReplayPlan
from hookonce.stores.values import Claimed, Delivery, Done, delivery_key, new_token

pytestmark = pytest.mark.anyio

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
REAL = "SELECT count(*), coalesce(sum(length(body)), 0)::int8 FROM hookonce.handled"


def delivery(event_id: str) -> Delivery:
    return Delivery("default", event_id, "comment.received", 1_700_000_000.0, b"x" * 10)


async def handle(store: PostgresStore, event_id: str, keeping: Keeping) -> None:
    key = delivery_key("default", event_id)
    claim = await store.claim(key, new_token(), 30.0)
    assert isinstance(claim, Claimed)
    await store.complete_and_keep(claim, delivery(event_id), ["shop.book"], keeping)


async def test_processes_share_one_limit(postgres: PostgresServer) -> None:
    limited = Keeping(3600.0, max_bytes=200)
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(aclosing(PostgresStore(postgres.url))) for _ in range(4)
        ]
        await stores[0].open()
        await asyncio.gather(
            *(handle(stores[number % 4], f"evt_{number}", limited) for number in range(200))
        )
        # If two transactions together exceed the limit, the next delivery deletes the excess.
        await handle(stores[0], "evt_last", limited)
        stats = await stores[1].handled_stats("default")
        assert stats == HandledStats(*postgres.execute(REAL)[0])
        assert stats == HandledStats(20, 200)
        assert len(await stores[2].handled_events()) == 20


async def test_the_counts_stay_right_when_calls_about_one_event_meet(
    postgres: PostgresServer,
) -> None:
    keeping = Keeping(3600.0)
    async with (
        aclosing(PostgresStore(postgres.url)) as one,
        aclosing(PostgresStore(postgres.url)) as other,
    ):
        for number in range(20):
            event_id = f"evt_{number}"
            key = delivery_key("default", event_id)
            claim = await one.claim(key, new_token(), 30.0)
            assert isinstance(claim, Claimed)
            await asyncio.gather(
                one.complete_and_keep(claim, delivery(event_id), [], keeping),
                one.extend(claim),
                one.complete_and_keep(claim, delivery(event_id), [], keeping),
                other.complete_and_keep(claim, delivery(event_id), [], keeping),
                other.complete(claim),
            )
            assert await other.claim(key, new_token(), 30.0) == Done()
        stats = await other.handled_stats("default")
        assert stats == HandledStats(*postgres.execute(REAL)[0]) == HandledStats(20, 200)


async def test_keeping_does_not_read_all_kept_deliveries(postgres: PostgresServer) -> None:
    """PostgreSQL has planned the statements of the function while the table was empty."""
    keeping = Keeping(3600.0)
    async with aclosing(PostgresStore(postgres.url, schema="planned")) as store:
        for number in range(200):
            await handle(store, f"evt_{number}", keeping)
    counted = (
        "SELECT t.n_tup_ins, t.seq_tup_read + (SELECT sum(i.idx_tup_read) FROM"
        " pg_stat_user_indexes AS i WHERE i.relid = t.relid) FROM pg_stat_user_tables AS t"
        " WHERE t.schemaname = 'planned' AND t.relname = 'handled'"
    )
    await until(lambda: postgres.execute(counted)[0][0] == 200, what="the server's counts")
    assert postgres.execute(counted)[0][1] <= 200 * 50
    postgres.execute("DROP SCHEMA planned CASCADE")


async def test_a_batch_selects_an_event_whose_completion_is_not_committed_yet(
    postgres: PostgresServer,
) -> None:
    keeping, plan = Keeping(3600.0), ReplayPlan()
    async with (
        aclosing(PostgresStore(postgres.url)) as store,
        aclosing(PostgresStore(postgres.url)) as operator,
        await AsyncConnection.connect(postgres.url) as other,
    ):
        await operator.open()
        for number in range(2):
            await handle(store, f"evt_{number}", keeping)
        # Lock the row with the endpoint's count: a completion changes this row after its own rows.
        await other.execute("SELECT FROM hookonce.handled_sizes FOR UPDATE")
        completing = asyncio.create_task(handle(store, "evt_slow", keeping))
        await until(lambda: postgres.execute(WAITING) == [(1,)])
        beginning = asyncio.create_task(
            operator.begin_replay_batch("default", "shop.book", 1, plan)
        )
        await asyncio.wait([beginning], timeout=0.2)  # a call that does not wait would end here
        assert not beginning.done()
        await other.rollback()
        await completing
        batch = await beginning
        listed = await operator.handled_events(before_unix=batch.started_unix)
        assert [one.delivery.event_id for one in listed] == ["evt_0", "evt_1", "evt_slow"]


async def test_a_completion_reads_the_time_when_a_batch_of_replays_can_see_it(
    postgres: PostgresServer,
) -> None:
    """Otherwise a batch could begin between the two, and would miss the event."""
    async with (
        aclosing(PostgresStore(postgres.url)) as store,
        await AsyncConnection.connect(postgres.url) as other,
    ):
        await handle(store, "evt_first", Keeping(3600.0))
        await other.execute("LOCK TABLE hookonce.handled IN ACCESS EXCLUSIVE MODE")
        completing = asyncio.create_task(handle(store, "evt_2", Keeping(3600.0)))
        await until(lambda: postgres.execute(WAITING) == [(1,)])
        cursor = await other.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        [(waited_until,)] = await cursor.fetchall()
        await other.rollback()
        await completing
        kept = await store.handled_event(delivery_key("default", "evt_2"))
        assert kept is not None
        assert kept.handled_unix >= waited_until
