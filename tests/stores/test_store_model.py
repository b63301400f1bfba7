"""In any order of calls, every store answers like a small model of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from stores.store_model import RETENTION, StoreMachine
from support.postgres import PostgresServer
from support.redis_servers import RedisServer, leaked_keys

from hookonce.clock import Clock
from hookonce.stores.memory import MemoryStore
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.protocols import Store
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore


class MemoryMachine(StoreMachine):
    def make_store(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002 - this store needs no folder
        return MemoryStore(retention=RETENTION, clock=clock)


class SQLiteMachine(StoreMachine):
    def make_store(self, folder: Path, clock: Clock) -> Store:
        return SQLiteStore(folder / "hooks.db", retention=RETENTION, clock=clock)


class PostgresMachine(StoreMachine):
    server: ClassVar[PostgresServer]
    schema: str | None = None

    def make_store(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002 - this store needs no folder
        if self.schema is None:
            self.server.execute("DROP SCHEMA IF EXISTS hookonce CASCADE")
            self.schema = "hookonce"
        return PostgresStore(self.server.url, schema=self.schema, retention=RETENTION, clock=clock)


class RedisMachine(StoreMachine):
    server: ClassVar[RedisServer]
    examples: ClassVar[Iterator[int]] = count()

    def make_store(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002 - this store needs no folder
        prefix = f"{type(self).__name__}:{next(self.examples)}"
        return RedisStore(
            self.server.url, prefix=prefix, shards=2, retention=RETENTION, clock=clock
        )

    def teardown(self) -> None:
        super().teardown()
        with self.server.client() as client:
            leaked = leaked_keys(client, "*")
            client.flushall()
        assert leaked == set()


class ValkeyMachine(RedisMachine):
    pass


class Redis7Machine(RedisMachine):
    pass


class ClusterMachine(StoreMachine):
    nodes: ClassVar[list[RedisServer]]

    def make_store(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002 - this store needs no folder
        url = self.nodes[0].url.replace("redis:", "redis+cluster:")
        return RedisStore(url, shards=4, retention=RETENTION, clock=clock)

    def teardown(self) -> None:
        super().teardown()
        for node in self.nodes:
            with node.client() as client:
                leaked = leaked_keys(client)
                client.flushall()
            assert leaked == set()


@pytest.fixture(scope="module", autouse=True)
def _valkey(shared_valkey: RedisServer) -> None:
    shared_valkey.flush()
    ValkeyMachine.server = shared_valkey


@pytest.fixture(scope="class")
def _postgres(shared_postgres: PostgresServer) -> None:
    PostgresMachine.server = shared_postgres


@pytest.fixture(scope="class")
def _cluster(shared_cluster: list[RedisServer]) -> None:
    for node in shared_cluster:
        node.flush()
    ClusterMachine.nodes = shared_cluster


@pytest.fixture(scope="class")
def _redis_7(shared_redis_7: RedisServer) -> None:
    shared_redis_7.flush()
    Redis7Machine.server = shared_redis_7


def walks(machine: type[StoreMachine], count: int, steps: int = 50) -> Any:
    """Return a test that runs a state machine this many times, with this many steps each."""
    how = settings(max_examples=count, stateful_step_count=steps)
    return type(machine.__name__, (machine.TestCase,), {"settings": how})


postgres = pytest.mark.usefixtures("_postgres")
redis_7 = pytest.mark.usefixtures("_redis_7")
cluster = pytest.mark.usefixtures("_cluster")

TestMemoryModel = walks(MemoryMachine, 6)
TestSQLiteModel = walks(SQLiteMachine, 4)
TestPostgresModel = postgres(walks(PostgresMachine, 2))
TestValkeyModel = walks(ValkeyMachine, 3)
TestRedis7Model = redis_7(walks(Redis7Machine, 2))
TestClusterModel = cluster(walks(ClusterMachine, 2, steps=30))

TestMemoryModelAtLength = pytest.mark.full("7 s")(walks(MemoryMachine, 150))
TestSQLiteModelAtLength = pytest.mark.full("11 s")(walks(SQLiteMachine, 100))
TestPostgresModelAtLength = pytest.mark.full("30 s")(postgres(walks(PostgresMachine, 40)))
TestValkeyModelAtLength = pytest.mark.full("6 s")(walks(ValkeyMachine, 40))
TestRedis7ModelAtLength = pytest.mark.full("2 s")(redis_7(walks(Redis7Machine, 15)))
TestClusterModelAtLength = pytest.mark.full("2 s")(cluster(walks(ClusterMachine, 10, steps=30)))
