"""The stores that the contract's tests use, and a clock that moves only when a test moves it.

To run the contract on another backend, add its factory to ``BACKENDS``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import apsw
import pytest
from support.needs import needed
from support.postgres import PostgresServer
from support.redis_servers import (
    RedisServer,
    leaked_keys,
    redis_server,
    valkey_cluster,
)

from hookonce.clock import Clock
from hookonce.stores.memory import MemoryStore
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.protocols import DEFAULT_RETENTION, Store
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore

Factory: TypeAlias = Callable[[pytest.FixtureRequest, timedelta, Clock], Store]


def _memory(_: pytest.FixtureRequest, retention: timedelta, clock: Clock) -> Store:
    return MemoryStore(retention=retention, clock=clock)


def _sqlite(request: pytest.FixtureRequest, retention: timedelta, clock: Clock) -> Store:
    folder: Path = request.getfixturevalue("tmp_path")
    return SQLiteStore(folder / "hooks.db", retention=retention, clock=clock)


def _valkey(request: pytest.FixtureRequest, retention: timedelta, clock: Clock) -> Store:
    server: RedisServer = request.getfixturevalue("valkey")
    return RedisStore(server.url, retention=retention, clock=clock)


def _redis(request: pytest.FixtureRequest, retention: timedelta, clock: Clock) -> Store:
    server: RedisServer = request.getfixturevalue("redis_7")
    return RedisStore(server.url, retention=retention, clock=clock)


def _cluster(request: pytest.FixtureRequest, retention: timedelta, clock: Clock) -> Store:
    nodes: list[RedisServer] = request.getfixturevalue("cluster")
    url = nodes[0].url.replace("redis://", "redis+cluster://")
    # Use one shard: the order of events and the inbox's limits hold only within a shard.
    return RedisStore(url, shards=1, retention=retention, clock=clock)


def _postgres(request: pytest.FixtureRequest, retention: timedelta, clock: Clock) -> Store:
    server: PostgresServer = request.getfixturevalue("emptied_postgres")
    return PostgresStore(server.url, retention=retention, clock=clock)


BACKENDS: dict[str, Factory] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "valkey": _valkey,
    "redis": _redis,
    "cluster": _cluster,
}


@pytest.fixture(scope="session")
def shared_redis_7() -> Iterator[RedisServer]:
    with redis_server(binary=needed("redis-server", package="redis-server")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[list[RedisServer]]:
    with valkey_cluster(nodes=2) as servers:
        yield servers


@contextmanager
def _without_leaks(*servers: RedisServer) -> Iterator[None]:
    for server in servers:
        server.flush()
    yield
    for server in servers:
        with server.client() as client:
            assert leaked_keys(client) == set()


@pytest.fixture
def valkey(shared_valkey: RedisServer) -> Iterator[RedisServer]:
    """Return an empty Valkey; after the test, fail if it has a key that nothing will remove."""
    with _without_leaks(shared_valkey):
        yield shared_valkey


@pytest.fixture
def emptied_postgres(shared_postgres: PostgresServer) -> PostgresServer:
    """Return a PostgreSQL with a store's empty tables."""
    shared_postgres.empty_store()
    return shared_postgres


@pytest.fixture
def redis_7(shared_redis_7: RedisServer) -> Iterator[RedisServer]:
    """Return an empty Redis of the Linux distribution; check its keys like ``valkey``."""
    with _without_leaks(shared_redis_7):
        yield shared_redis_7


@pytest.fixture
def cluster(shared_cluster: list[RedisServer]) -> Iterator[list[RedisServer]]:
    """Return an empty cluster of two masters; check its keys like ``valkey``."""
    with _without_leaks(*shared_cluster):
        yield shared_cluster


class FakeClock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pass_time(clock: FakeClock) -> Callable[[float], None]:
    """Move the clock by seconds, also backwards."""

    def move(seconds: float) -> None:
        clock.now += seconds

    return move


@pytest.fixture
def make_store(request: pytest.FixtureRequest, clock: Clock) -> Callable[..., Store]:
    """Return ``make_store(*, retention=…, clock=…)``; the test closes the store."""
    factory: Factory = request.param

    def make(*, retention: timedelta = DEFAULT_RETENTION, clock: Clock = clock) -> Store:
        return factory(request, retention, clock)

    return make


@pytest.fixture
async def store(make_store: Callable[..., Store]) -> AsyncIterator[Store]:
    """Return an empty store whose time is ``clock``."""
    store = make_store()
    yield store
    await store.aclose()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for every store; with ``keeping_store``, for every store that keeps bodies."""
    if "make_store" in metafunc.fixturenames:
        names = [*BACKENDS]
        if "keeping_store" in metafunc.fixturenames:
            names.remove("memory")
        factories = [BACKENDS[name] for name in names]
        metafunc.parametrize("make_store", factories, ids=names, indirect=True)


@pytest.fixture
def keeping_store(store: Store) -> Store:
    """Return an empty store that keeps bodies, and has an inbox."""
    return store


@pytest.fixture
def connections() -> Iterator[list[apsw.Connection]]:
    """Return a list that receives each SQLite connection opened from now on."""
    opened: list[apsw.Connection] = []
    apsw.connection_hooks.append(opened.append)
    yield opened
    apsw.connection_hooks.remove(opened.append)
