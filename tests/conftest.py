"""Fixtures for every test."""

import logging
import os
import signal
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.deliveries import COMMENT_TEXT, SECRET, sqlite_url
from support.postgres import PostgresServer, postgres_server
from support.redis_servers import RedisServer, redis_server

from hookonce import Receiver
from hookonce.testing.pytest_plugin import (
    emulated_service,
    virtual_clock,
    webhook_secret,
    webhook_sender,
)
from hookonce.verification.secrets import verifying_key

__all__ = [
    "anyio_backend",
    "emulated_service",
    "virtual_clock",
    "webhook_secret",
    "webhook_sender",
]

pytest_plugins = ["support.suite", "support.mutants", "pytester"]

# A test must not fail because the machine is busy.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if not os.access(".", os.W_OK):  # Hypothesis would warn that it cannot store its examples here
    settings.register_profile("suite", settings.get_profile("suite"), database=None)
settings.load_profile("suite")


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which uvicorn and the stores use."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Handle SIGINT as in a terminal, here and in the processes that tests start.

    A shell starts background commands with SIGINT ignored, and their child processes inherit this.
    """
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def receiver(webhook_secret: str) -> Receiver:
    """Return a receiver with the secret that ``webhook_sender`` signs with."""
    return Receiver(secrets=webhook_secret, store="memory://")


@pytest.fixture
def durable(webhook_secret: str, tmp_path: Path) -> Receiver:
    """Return a receiver with ``webhook_sender``'s secret and a SQLite store, which keeps bodies."""
    return Receiver(secrets=webhook_secret, store=sqlite_url(tmp_path))


@pytest.fixture
def nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that no log line contains a secret, a signature or the text of a comment."""
    caplog.set_level(logging.DEBUG, logger="hookonce")
    yield
    shown = caplog.text
    for hidden in (SECRET, b64encode(verifying_key(SECRET).raw).decode(), "v1,", COMMENT_TEXT):
        assert hidden not in shown


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def shared_lasting_valkey() -> Iterator[RedisServer]:
    with redis_server(append_only=True) as server:
        yield server


@pytest.fixture
def valkey(shared_valkey: RedisServer) -> RedisServer:
    """Return an empty Valkey."""
    shared_valkey.flush()
    return shared_valkey


@pytest.fixture
def lasting_valkey(shared_lasting_valkey: RedisServer) -> RedisServer:
    """Return an empty Valkey that writes its data to an append-only file."""
    shared_lasting_valkey.flush()
    return shared_lasting_valkey


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres(shared_postgres: PostgresServer) -> PostgresServer:
    """Return a PostgreSQL without the tables of a store."""
    shared_postgres.execute("DROP SCHEMA IF EXISTS hookonce CASCADE")
    return shared_postgres


def _url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty store of the kind that a fixture asks for."""
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return sqlite_url(request.getfixturevalue("tmp_path"))
    server: RedisServer = request.getfixturevalue("valkey")
    return server.url


@pytest.fixture(params=["memory", "sqlite"])
def any_store(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty store, once for a memory store and once for a SQLite store."""
    return _url(request)


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty store, once for each kind of store."""
    return _url(request)


@pytest.fixture(params=["sqlite", "valkey"])
def durable_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty store, once for each kind of store that keeps bodies."""
    return _url(request)
