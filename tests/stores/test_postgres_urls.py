"""A PostgreSQL URL names the database, the schema and the durability, and never shows its
password."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from support.frames import leaks
from support.postgres import PostgresServer
from support.redis_servers import free_port
from support.waiting import until

from hookonce.clock import system_clock
from hookonce.errors import StoreError
from hookonce.stores import open_store
from hookonce.stores.postgres import PostgresStore, connection
from hookonce.stores.postgres.connection import Statement, exchange
from hookonce.stores.values import Claimed, Delivery, Done, InFlight, delivery_key, new_token

pytestmark = [pytest.mark.anyio, pytest.mark.sample(12, of="file")]

PASSWORD = "hunter2-of-postgres"
KEY = delivery_key("default", "evt_1")


def check(error: BaseException) -> None:
    assert not leaks(error, {"the password": PASSWORD}, but_in=__file__)


async def test_the_url_names_the_schema(postgres: PostgresServer) -> None:
    postgres.execute("DROP SCHEMA IF EXISTS shop CASCADE")
    usual = open_store(postgres.url, clock=system_clock)
    shop = open_store(f"{postgres.url}?schema=shop", clock=system_clock)
    same = PostgresStore(postgres.url.replace("postgresql:", "postgres:"), schema="shop")
    async with aclosing(usual), aclosing(shop), aclosing(same):
        assert isinstance(await usual.claim(KEY, new_token(), 30), Claimed)
        assert isinstance(await shop.claim(KEY, new_token(), 30), Claimed)
        assert isinstance(await same.claim(KEY, new_token(), 30), InFlight)
        assert isinstance(shop, PostgresStore)
        assert isinstance(usual, PostgresStore)
        assert shop.place == same.place != usual.place
    postgres.execute("DROP SCHEMA shop CASCADE")


async def test_the_url_has_the_options_of_libpq_and_two_of_ours(postgres: PostgresServer) -> None:
    url = f"{postgres.url}?durability=remote_apply&application_name=billing&sslmode=prefer"
    async with aclosing(PostgresStore(url)) as store:
        await store.open()
        names = "SELECT application_name FROM pg_stat_activity"
        assert ("billing",) in postgres.execute(names)
        [warning] = [text for text in await store.warnings() if "durability" in text]
        assert "synchronous_standby_names" in warning


async def test_no_text_of_a_store_shows_user_or_password() -> None:
    store = PostgresStore(f"postgresql://me:{PASSWORD}@a:5433,b:5434/hooks?schema=shop")
    assert str(store) == "postgresql://a:5433,b:5434/hooks (schema shop)"
    for shown in (repr(store), repr(store.place), repr(store._settings)):
        assert PASSWORD not in shown
        assert "me" not in str(store.place)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("host:port/hooks", "cannot be read"),
        ("[host/hooks", "cannot be read"),
        ("host/hooks?colour=red", "unknown option 'colour'"),
        ("host/hooks?sslmod=require", "did you mean 'sslmode'"),
        ("host/hooks#fragment", "fragment"),
        ("host/hooks?schema=Shop", "schema takes"),
        ("host/hooks?durability=memory", "durability takes"),
        ("host/hooks?listen=often", "listen takes"),
        (f"host/hooks?password=a&{PASSWORD}", "write '&' in a value as %26"),
    ],
)
async def test_a_url_that_cannot_be_used_is_refused_without_its_password(
    rest: str, message: str
) -> None:
    url = f"postgresql://me:{PASSWORD}@{rest}"
    with pytest.raises(ValueError, match=message) as caught:
        open_store(url, clock=system_clock)
    check(caught.value)


async def test_a_plus_sign_in_an_option_stays() -> None:
    store = PostgresStore("postgresql://host/hooks?password=a+b%20c")
    assert isinstance(store._settings.source, dict)
    assert store._settings.source["password"] == "a+b c"


@pytest.mark.parametrize("before", ["a/", "1/", "a@", "a?", "a#", "%zz"])
async def test_a_password_that_is_not_escaped_is_refused_and_not_shown(before: str) -> None:
    url = f"postgresql://me:{before}{PASSWORD}@host/hooks"
    with pytest.raises(ValueError, match=r"%40|%23") as caught:
        open_store(url, clock=system_clock)
    check(caught.value)


async def test_a_setting_in_the_url_and_as_an_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="schema is given twice"):
        PostgresStore("postgresql://host/hooks?schema=shop", schema="shop")


async def check_calls(url: str) -> None:
    async with aclosing(PostgresStore(url)) as one, aclosing(PostgresStore(url)) as other:
        # Make both calls at the same time, because each lasts until its time limit.
        failures = await asyncio.gather(
            one.open(), other.claim(KEY, new_token(), 30.0), return_exceptions=True
        )
    for failure in failures:
        assert isinstance(failure, StoreError)
        check(failure)


async def test_no_frame_holds_the_password_where_no_server_answers() -> None:
    await check_calls(f"postgresql://me:{PASSWORD}@127.0.0.1:{free_port()}/hooks")


async def test_no_frame_holds_the_password_where_the_server_refuses_it(
    postgres: PostgresServer,
) -> None:
    url = postgres.url.replace("postgres@", f"nobody:{PASSWORD}@")
    await check_calls(url)


async def test_no_frame_holds_the_password_where_the_server_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the server accepts no connection
        port = listener.getsockname()[1]
        await check_calls(f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/hooks?sslmode=disable")


@pytest.fixture
async def pool(postgres: PostgresServer) -> AsyncIterator[AsyncConnectionPool]:
    """Return a pool as an application opens it: with transactions, and with its own settings."""
    async with AsyncConnectionPool(postgres.url, min_size=1, max_size=3, open=False) as pool:
        yield pool


async def test_the_pool_of_an_application_serves_the_store_too(
    pool: AsyncConnectionPool,
) -> None:
    event = Delivery("default", "evt_1", "post.target.failed", 1_700_000_000.0, b"{}")
    async with aclosing(PostgresStore(pool)) as store:
        await store.enqueue(event, new_token())
        async with pool.connection() as connection:
            await connection.execute("CREATE TEMP TABLE mine (a int) ON COMMIT DROP")
            batch = await store.fetch(1, 30, endpoint="default", worker="w", token=new_token())
            await store.complete(batch.fetched[0].claim)
        assert await store.claim(event.key, new_token(), 30) == Done()
    async with pool.connection() as connection:
        assert connection.pgconn.pipeline_status == 0
        cursor = await connection.execute("SELECT count(*) FROM hookonce.ids")
        assert await cursor.fetchone() == (1,)


async def test_a_pool_survives_connections_that_the_server_ends(
    pool: AsyncConnectionPool, postgres: PostgresServer
) -> None:
    async with aclosing(PostgresStore(pool)) as store:
        for number in range(5):
            key = delivery_key("default", f"evt_{number}")
            assert isinstance(await store.claim(key, new_token(), 30), Claimed)
            postgres.terminate_backends()


async def test_a_pool_gets_its_connection_back_from_a_server_that_freezes_at_a_rollback(
    pool: AsyncConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def freeze(lent: AsyncConnection[Any], statements: Sequence[Statement]) -> list[Any]:
        if statements == [(b"ROLLBACK", ())]:
            await asyncio.Event().wait()
        return await exchange(lent, statements)

    async def begin(lent: AsyncConnection[Any]) -> None:
        await exchange(lent, [(b"BEGIN", ())])

    async with aclosing(PostgresStore(pool)) as store:
        await store.open()
        monkeypatch.setattr(connection, "exchange", freeze)
        with pytest.raises(StoreError, match="did not answer in time"):
            await store._session.call(begin, seconds=0.2)
        monkeypatch.undo()

    def has_all() -> bool:
        stats = pool.get_stats()
        return stats["pool_available"] == stats["pool_size"]

    await until(has_all, what="all connections")


async def test_a_pool_that_is_not_open_is_named(postgres: PostgresServer) -> None:
    pool = AsyncConnectionPool(postgres.url, open=False, name="mine")
    async with aclosing(PostgresStore(pool)) as store:
        with pytest.raises(StoreError, match="mine"):
            await store.open()


async def test_an_argument_that_is_neither_url_nor_pool_is_refused() -> None:
    with pytest.raises(TypeError, match="AsyncConnectionPool"):
        PostgresStore(7)  # type: ignore[arg-type]


async def test_transactions_that_would_not_see_other_processes_are_refused(
    postgres: PostgresServer,
) -> None:
    postgres.execute("CREATE ROLE strict LOGIN SUPERUSER")
    postgres.execute("ALTER ROLE strict SET default_transaction_isolation = 'repeatable read'")
    url = postgres.url.replace("postgres@", "strict@")
    try:
        async with aclosing(PostgresStore(url)) as store:
            with pytest.raises(StoreError, match="default_transaction_isolation"):
                await store.open()
    finally:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("DROP OWNED BY strict CASCADE")
            connection.execute("DROP ROLE strict")
