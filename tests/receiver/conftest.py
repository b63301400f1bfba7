"""The stores that a receiver is tried on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.redis_servers import RedisServer, redis_server


@pytest.fixture(scope="session")
def receiver_valkey() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store of each kind, empty."""
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/hooks.db"
    server: RedisServer = request.getfixturevalue("receiver_valkey")
    server.client().flushall()
    return server.url


@pytest.fixture(params=["sqlite", "valkey"])
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store of each kind that keeps bodies, empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/hooks.db"
    server: RedisServer = request.getfixturevalue("receiver_valkey")
    server.client().flushall()
    return server.url
