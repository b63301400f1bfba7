"""Kills processes and servers at random moments, and counts the effects that are left.

Within a ledger each effect is there once, however often who was killed when; there is no other
column. The same without a ledger shows doubles, so that the count is known to count.
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
from pathlib import Path

from support.deliveries import deliver, receiver_on
from support.postgres import PostgresServer

from hookonce import Inbox
from hookonce.effects import create_sql
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived
from hookonce.testing import make_event

from .benches import ON_SQLITE, TABLE

__all__ = ["Figures", "kills"]

_VICTIM = Path(__file__).with_name("victim.py")
_MOST_EFFECTS = 20
_LONGEST_SECONDS = 0.005
_READY_SECONDS = 60.0


@dataclass
class Figures:
    """What a round of kills has counted."""

    ledger: str
    is_within: bool
    events: int
    faults: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    twice: int = 0
    strange: int = 0
    seconds: float = 0.0


class _Victim:
    """The worker, begun anew whenever it was killed: a fork of a process that does no more."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._forker: asyncio.subprocess.Process | None = None
        self._pid = 0

    async def begin(self) -> int | None:
        """Begin a worker, and return when it works; or its status, if it has ended before."""
        if self._forker is None:
            self._forker = await asyncio.create_subprocess_exec(
                sys.executable,
                str(_VICTIM),
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,  # what fails on the way is told at length
            )
        assert self._forker.stdin is not None
        self._forker.stdin.write(b"begin\n")
        return await self._hear({"ready", "ended"})

    async def works(self, effects: int) -> int | None:
        """Return when it has written so many effects more; or its status, if it has ended."""
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
        """Read on until it says one of these; return the status that comes with it."""
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
    is_within: bool,
    seed: int,
    postgres: PostgresServer | None,
) -> Figures:
    """Let a worker handle so many events while it, and its database, are killed again and again.

    Args:
        name: the ledger, by its name among the benches.
        folder: an empty folder.
        events: how many.
        is_within: whether the handler is within the ledger, or commits for itself.
        seed: of the moments.
        postgres: a server with no tables, where the ledger is none for SQLite.

    """
    chance, figures = random.Random(seed), Figures(name, is_within, events)
    started = time.perf_counter()
    store, file = f"sqlite:///{folder / 'hooks.db'}", folder / "app.db"
    if name in ON_SQLITE:
        SQLiteLedger(file).create_table()
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(TABLE)
    else:
        assert postgres is not None
        postgres.execute(TABLE)
        for statement in create_sql("postgresql").split(";\n")[:-1]:
            postgres.execute(statement)
    expected = await _fill(store, events)
    is_file = name in ON_SQLITE
    database = str(file) if is_file or postgres is None else postgres.url
    victim = _Victim(name, "within" if is_within else "alone", database, store)
    async with AsyncExitStack() as at_end:
        at_end.push_async_callback(victim.end)
        status = await victim.begin()
        while status is None:
            status = await victim.works(chance.randint(1, _MOST_EFFECTS))
            if status is not None:
                break
            await asyncio.sleep(chance.uniform(0, _LONGEST_SECONDS))  # before, in or after COMMIT
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
    rows = _rows(file) if is_file or postgres is None else postgres.execute("SELECT key FROM done")
    found = Counter(key for (key,) in rows)
    figures.lost = len(expected - found.keys())
    figures.twice = sum(count - 1 for count in found.values())
    figures.strange = len(found.keys() - expected)
    figures.seconds = time.perf_counter() - started
    return figures


async def _fill(store: str, events: int) -> set[str]:
    """Put events into the inbox; return what shall be there of each at the end."""
    receiver, expected = receiver_on(store, inbox=Inbox(embedded=False)), set()
    register: Callable[..., Callable[..., object]] = receiver.on

    async def book(_: CommentReceived) -> None: ...

    register(CommentReceived, name="book")(book)
    async with receiver.opened():
        for number in range(events):
            event = make_event(CommentReceived, data={"text": f"comment {number}"})
            expected.add(f"{event.id} {event.data.text}")
            outcome: Awaitable[object] = deliver(receiver, event)
            assert getattr(await outcome, "status", None) == 202
    return expected


def _rows(file: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT key FROM done").fetchall()
