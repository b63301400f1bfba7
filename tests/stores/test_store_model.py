"""Whatever is done to a store, in whatever order, it answers as a small model of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from stores.store_model import RETENTION, StoreMachine
from support.redis_servers import RedisServer, leaked_keys

from hookonce.clock import Clock
from hookonce.stores.contract import Store
from hookonce.stores.memory import MemoryStore
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore


class MemoryMachine(StoreMachine):
    def make_store(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002 - it needs no folder
        return MemoryStore(retention=RETENTION, clock=clock)


class SQLiteMachine(StoreMachine):
    def make_store(self, folder: Path, clock: Clock) -> Store:
        return SQLiteStore(folder / "hooks.db", retention=RETENTION, clock=clock)


class RedisMachine(StoreMachine):
    server: ClassVar[RedisServer]
    examples: ClassVar[Iterator[int]] = count()

    def make_store(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002 - it needs no folder
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

    def make_store(self, folder: Path, clock: Clock) -> Store:  # noqa: ARG002 - it needs no folder
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
    ValkeyMachine.server = shared_valkey


@pytest.fixture(scope="class")
def _cluster(shared_cluster: list[RedisServer]) -> None:
    ClusterMachine.nodes = shared_cluster


@pytest.fixture(scope="class")
def _redis_7(shared_redis_7: RedisServer) -> None:
    Redis7Machine.server = shared_redis_7


TestMemoryModel = MemoryMachine.TestCase
TestMemoryModel.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestSQLiteModel = SQLiteMachine.TestCase
TestSQLiteModel.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestValkeyModel = ValkeyMachine.TestCase
TestValkeyModel.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRedis7Model = pytest.mark.usefixtures("_redis_7")(Redis7Machine.TestCase)
TestRedis7Model.settings = settings(
    max_examples=15,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestClusterModel = pytest.mark.usefixtures("_cluster")(ClusterMachine.TestCase)
TestClusterModel.settings = settings(
    max_examples=10,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
