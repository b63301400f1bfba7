"""The PostgreSQL store works through PgBouncer in transaction mode, in which a session has no state
and statements cannot be prepared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing
from functools import partial

import pytest
from psycopg_pool import AsyncConnectionPool
from stores.test_contract import WHOLE
from support.pgbouncer import pgbouncer
from support.postgres import PostgresServer

from hookonce.stores.contract import Bench, Rule
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.values import Claimed, Delivery, delivery_key, new_token

pytestmark = pytest.mark.anyio

LEASE = 30.0


@pytest.fixture(scope="session")
def bouncer(shared_postgres: PostgresServer) -> Iterator[str]:
    # Allow fewer connections than two stores use, so a transaction may get another connection.
    with pgbouncer(shared_postgres, connections=3) as url:
        yield url


@pytest.fixture
def url(bouncer: str, emptied_postgres: PostgresServer) -> str:  # noqa: ARG001 - the fixture empties the tables
    """Return the URL of PgBouncer, in front of a server with an empty store."""
    return bouncer


@pytest.mark.sample(20, full=80)
@pytest.mark.parametrize("rule", WHOLE)
async def test_a_store_behind_pgbouncer_keeps_the_rule(url: str, rule: Rule) -> None:
    await rule(Bench(partial(PostgresStore, url)))


async def test_many_processes_share_few_connections_to_the_server(url: str) -> None:
    names = [f"evt_{number}" for number in range(400)]
    handled: list[str] = []

    async def handle(store: PostgresStore, worker: str) -> None:
        while len(handled) < len(names):
            batch = await store.fetch(
                20, LEASE, endpoint="default", worker=worker, token=new_token()
            )
            handled.extend(one.delivery.event_id for one in batch.fetched)
            await asyncio.gather(*(store.complete(one.claim) for one in batch.fetched))

    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(aclosing(PostgresStore(url))) for _ in range(5)]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for number, store in enumerate(stores):
                group.create_task(handle(store, f"worker-{number}"))
            for number, name in enumerate(names):
                event = Delivery("default", name, "post.target.failed", 1_700_000_000.0, b"{}")
                group.create_task(stores[number % 5].enqueue(event, new_token()))
        assert sorted(handled) == sorted(names)
        assert (await stores[0].stats()).depth == 0


async def test_the_settings_of_a_transaction_do_not_stay_on_the_connection(
    url: str,
) -> None:
    async with aclosing(PostgresStore(url)) as store:
        for number in range(10):
            claim = await store.claim(delivery_key("default", f"evt_{number}"), new_token(), LEASE)
            assert isinstance(claim, Claimed)
        async with (
            AsyncConnectionPool(url, open=False, kwargs={"prepare_threshold": None}) as pool,
            pool.connection() as connection,
        ):
            for name in ("lock_timeout", "statement_timeout"):
                cursor = await connection.execute(f"SHOW {name}".encode())
                assert await cursor.fetchone() == ("0",)


async def test_a_pool_through_pgbouncer_serves_the_store(url: str) -> None:
    async with (
        AsyncConnectionPool(url, open=False, kwargs={"prepare_threshold": None}) as pool,
        aclosing(PostgresStore(pool)) as store,
    ):
        claims = await asyncio.gather(
            *(
                store.claim(delivery_key("default", f"evt_{number}"), new_token(), LEASE)
                for number in range(50)
            )
        )
        await asyncio.gather(*(store.complete(one) for one in claims if isinstance(one, Claimed)))
        assert (await store.stats()).in_flight == 0
