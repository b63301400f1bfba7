"""The stores that the contract suites run over, and a clock that moves only when it is told to.

A backend joins both contract suites by a factory in ``BACKENDS``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import apsw
import pytest

from hookonce.stores.base import DEFAULT_RETENTION, Store
from hookonce.stores.memory import MemoryStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.types import Clock

Factory: TypeAlias = Callable[[pytest.FixtureRequest, timedelta, Clock], Store]


def _memory(_: pytest.FixtureRequest, retention: timedelta, clock: Clock) -> Store:
    return MemoryStore(retention=retention, clock=clock)


def _sqlite(request: pytest.FixtureRequest, retention: timedelta, clock: Clock) -> Store:
    folder: Path = request.getfixturevalue("tmp_path")
    return SQLiteStore(folder / "hooks.db", retention=retention, clock=clock)


BACKENDS: dict[str, Factory] = {"memory": _memory, "sqlite": _sqlite}


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


@pytest.fixture(params=list(BACKENDS.values()), ids=list(BACKENDS))
def make_store(request: pytest.FixtureRequest, clock: Clock) -> Callable[..., Store]:
    """Return ``make_store(*, retention=…, clock=…)``; the test closes what it makes."""
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


@pytest.fixture
def connections() -> Iterator[list[apsw.Connection]]:
    """Return the SQLite connections that are opened from now on."""
    opened: list[apsw.Connection] = []
    apsw.connection_hooks.append(opened.append)
    yield opened
    apsw.connection_hooks.remove(opened.append)
