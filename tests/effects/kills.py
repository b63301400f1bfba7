"""Kills processes and servers at random moments, and counts the effects that are left.

Within a ledger each effect exists exactly once after any kill. The same handler without a ledger
leaves doubles, which proves that the count would find them.

The events belong to a few channels, and do not arrive in the order of their creation. With
``latest_by``, no event is written after a newer event of its channel, and the last row of a channel
is its newest event. Without ``latest_by``, many events are written late.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from support.deliveries import deliver, receiver_on
from support.postgres import PostgresServer

from hookonce import Inbox
from hookonce.effects import create_sql
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived
from hookonce.testing import make_event

from .benches import ON_SQLITE, TABLE

__all__ = ["Figures", "How", "kills"]

_VICTIM = Path(__file__).with_name("victim.py")
_MOST_EFFECTS = 20
_LONGEST_SECONDS = 0.005
_READY_SECONDS = 60.0
_CHANNELS = 3
_LATEST_PLACES = 10
"""An event arrives after at most this many newer events."""

_FIRST = datetime(2026, 11, 1, tzinfo=UTC)


class How(StrEnum):
    """The ways in which the handler commits its effect."""

    WITHIN = "within"
    SHARED = "shared"
    """Within a ledger in the store's database: the effect's commit also completes the event."""

    LATEST = "latest"
    """Within the ledger and with ``latest_by``."""

    ALONE = "alone"
    """In a transaction of its own, without a ledger."""


@dataclass
class Figures:
    """The counts of one round of kills."""

    ledger: str
    how: How
    events: int
    faults: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    twice: int = 0
    strange: int = 0
    late: int = 0
    seconds: float = 0.0


class _Victim:
    """A worker. After each kill, its parent process forks a new worker, with all imports done."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._forker: asyncio.subprocess.Process | None = None
        self._pid = 0

    async def begin(self) -> int | None:
        """Start a worker, and wait until it is ready; return its exit status if it has ended."""
        if self._forker is None:
            self._forker = await asyncio.create_subprocess_exec(
                sys.executable,
                str(_VICTIM),
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,  # attempts that fail by a kill print tracebacks
            )
        assert self._forker.stdin is not None
        self._forker.stdin.write(b"begin\n")
        return await self._hear({"ready", "ended"})

    async def works(self, effects: int) -> int | None:
        """Wait until the worker has written so many effects; return its status if it has ended."""
        for _ in range(effects):
            status = await self._hear({"wrote", "ended"})
            if status is not None:
                return status
        return None

    async def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        await self._hear({"ended"})

    async def end(self) -> None:
        if self._forker is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._forker.kill()
            await self._forker.communicate()

    async def _hear(self, wanted: set[str]) -> int | None:
        """Read lines until one begins with one of these words; return the number after the word."""
        assert self._forker is not None
        assert self._forker.stdout is not None
        while True:
            async with asyncio.timeout(_READY_SECONDS):
                word, _, number = (await self._forker.stdout.readline()).decode().partition(" ")
            if word == "pid":
                self._pid = int(number)
            if word.strip() in wanted:
                return int(number) if number else None
            if not word:
                raise RuntimeError("the worker's parent has ended")


async def kills(
    name: str,
    folder: Path,
    *,
    events: int,
    how: How,
    seed: int,
    postgres: PostgresServer | None,
) -> Figures:
    """Kill a worker, its connections and its database again and again while it handles events.

    Args:
        name: the ledger, by its name among the benches.
        folder: an empty folder.
        events: the number of events.
        how: how the handler commits.
        seed: the seed of the random moments.
        postgres: a server with no tables; None for a ledger in SQLite.

    """
    chance, figures = random.Random(seed), Figures(name, how, events)
    started = time.perf_counter()
    store, file = f"sqlite:///{folder / 'hooks.db'}", folder / "app.db"
    if name in ON_SQLITE:
        SQLiteLedger(file).create_table()
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(TABLE)
    else:
        assert postgres is not None
        postgres.execute(f"{TABLE.removesuffix(')')}, place bigserial)")
        for statement in create_sql("postgresql").split(";\n")[:-1]:
            postgres.execute(statement)
        if how is How.SHARED:
            postgres.execute("DROP SCHEMA IF EXISTS hookonce CASCADE")
            store = postgres.url
    expected = await _fill(store, events, chance)
    is_file = name in ON_SQLITE
    database = str(file) if is_file or postgres is None else postgres.url
    victim = _Victim(name, how, database, store)
    async with AsyncExitStack() as at_end:
        at_end.push_async_callback(victim.end)
        status = await victim.begin()
        while status is None:
            status = await victim.works(chance.randint(1, _MOST_EFFECTS))
            if status is not None:
                break
            await asyncio.sleep(chance.uniform(0, _LONGEST_SECONDS))  # the fault may hit COMMIT
            fault = "kill" if is_file else chance.choices(("kill", "cut", "restart"), (5, 4, 1))[0]
            figures.faults[fault] += 1
            if fault == "kill":
                await victim.kill()
                status = await victim.begin()
            elif postgres is not None:
                restart = postgres.restart if fault == "restart" else postgres.terminate_backends
                await asyncio.to_thread(restart)
        if status:
            raise RuntimeError(f"the worker has ended by itself, with status {status}")
    if is_file or postgres is None:
        rows = _rows(file)
    else:
        rows = postgres.execute("SELECT key FROM done ORDER BY place")
    written = [key for (key,) in rows]
    _compare(figures, written, expected)
    figures.seconds = time.perf_counter() - started
    return figures


async def _fill(store: str, events: int, chance: random.Random) -> list[str]:
    """Enqueue events; return the row that each event must write, oldest event first."""
    receiver, expected = receiver_on(store, inbox=Inbox(embedded=False)), []
    register: Callable[..., Callable[..., object]] = receiver.on

    async def book(_: CommentReceived) -> None: ...

    register(CommentReceived, name="book")(book)
    made = []
    for number in range(events):
        text = f"channel {number % _CHANNELS} {number}"
        created_at = _FIRST + timedelta(milliseconds=number)
        event = make_event(CommentReceived, created_at=created_at, data={"text": text})
        expected.append(f"{event.id} {text}")
        made.append((number + chance.uniform(0, _LATEST_PLACES), event))
    async with receiver.opened():
        for _, event in sorted(made, key=lambda one: one[0]):
            outcome: Awaitable[object] = deliver(receiver, event)
            assert getattr(await outcome, "status", None) == 202
    return expected


def _compare(figures: Figures, written: list[str], expected: list[str]) -> None:
    """Count lost, double and unexpected rows. ``written`` is in the order of writing."""
    found, newest = Counter(written), expected[-_CHANNELS:]
    channels = [[key for key in written if _channel(key) == _channel(last)] for last in newest]
    if figures.how is How.LATEST:  # late events are skipped, so only the newest can be lost
        figures.lost = sum(keys[-1:] != [last] for keys, last in zip(channels, newest, strict=True))
    else:
        figures.lost = len(set(expected) - found.keys())
    figures.twice = sum(count - 1 for count in found.values())
    figures.strange = len(found.keys() - set(expected))
    figures.late = sum(
        _number(later) < _number(key) for keys in channels for key, later in pairwise(keys)
    )


def _channel(key: str) -> str:
    return key.split()[2]


def _number(key: str) -> int:
    return int(key.split()[3])


def _rows(file: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT key FROM done ORDER BY rowid").fetchall()
