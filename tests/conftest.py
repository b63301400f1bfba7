"""Fixtures for every test."""

import logging
import signal
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.deliveries import COMMENT_TEXT, SECRET, sqlite_url
from support.redis_servers import RedisServer, redis_server

from hookonce import Receiver
from hookonce.testing.pytest_plugin import (
    emulated_service,
    virtual_clock,
    webhook_secret,
    webhook_sender,
)
from hookonce.verification.secrets import decode_secret

__all__ = [
    "anyio_backend",
    "emulated_service",
    "virtual_clock",
    "webhook_secret",
    "webhook_sender",
]

pytest_plugins = ["support.suite", "support.mutants", "pytester"]

# A busy machine is no fault.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which is what uvicorn and the stores run on."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Take SIGINT as a terminal's run does, here and in the processes that tests start.

    A shell starts what it puts into the background with SIGINT ignored, and children inherit that.
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
    """Return the same on a file: its dead letters keep their bytes."""
    return Receiver(secrets=webhook_secret, store=sqlite_url(tmp_path))


@pytest.fixture
def nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check every log line of a test for what must never be in one."""
    caplog.set_level(logging.DEBUG, logger="hookonce")
    yield
    shown = caplog.text
    for hidden in (SECRET, b64encode(decode_secret(SECRET)).decode(), "v1,", COMMENT_TEXT):
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
    """Return an empty Valkey that writes to its disk, as a receiver wants it."""
    shared_lasting_valkey.flush()
    return shared_lasting_valkey


def _url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty store of the kind that a fixture was asked for."""
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return sqlite_url(request.getfixturevalue("tmp_path"))
    server: RedisServer = request.getfixturevalue("valkey")
    return server.url


@pytest.fixture(params=["memory", "sqlite"])
def any_store(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store in memory and of one on a file, empty."""
    return _url(request)


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store of each kind, empty."""
    return _url(request)


@pytest.fixture(params=["sqlite", "valkey"])
def durable_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store of each kind that keeps bodies, empty."""
    return _url(request)
