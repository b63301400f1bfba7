"""Faults of a database file: its disk is full, or the file is read-only or locked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path

from support.disks import fill, small_disk
from support.sqlite_files import sqlite_connection
from support.waiting import until

from hookonce.stores.sqlite import SQLiteStore

from .bench import Bench, Figures, bench

__all__ = ["accepting", "full_disk", "locked_file", "read_only_file", "refusing"]

# Longer than any fault here, so that a running attempt still has its claim after the fault.
_LEASE_SECONDS = 12.0
_DISK_MEGABYTES = 24


async def full_disk(figures: Figures, here: Path, *, seed: int, count: int, inbox: bool) -> None:
    """Fill the disk of the file, then free the space again."""
    with small_disk(here, _DISK_MEGABYTES) as disk:
        async with (
            bench(
                figures,
                here,
                f"sqlite:///{disk}/hooks.db",
                seed,
                webs=1,
                workers=1 if inbox else 0,
                inbox=inbox,
                lease_seconds=_LEASE_SECONDS,
            ) as on,
            on.load(),
        ):
            for _ in range(count):
                await accepting(on)
                async with refusing(on, unless_accepted=500):
                    fill(disk / "filler")
                (disk / "filler").unlink()
            await accepting(on)


async def locked_file(figures: Figures, here: Path, *, seed: int, count: int, inbox: bool) -> None:
    """Let another program hold the file's write lock for some seconds."""
    file = here / "hooks.db"
    async with (
        bench(
            figures,
            here,
            f"sqlite:///{file}",
            seed,
            webs=1,
            workers=1 if inbox else 0,
            inbox=inbox,
            lease_seconds=_LEASE_SECONDS,
        ) as on,
        on.load(),
    ):
        for _ in range(count):
            await accepting(on)
            other = sqlite_connection(file)
            try:
                async with refusing(on):
                    other.execute("BEGIN IMMEDIATE")
            finally:
                other.close()
        await accepting(on)


async def read_only_file(figures: Figures, here: Path, *, seed: int, count: int) -> None:
    """Serve with a read-only file until an operator repairs it; no process restarts."""
    folder = here / "data"
    folder.mkdir()
    folder.chmod(0o777)
    file = folder / "hooks.db"
    store = SQLiteStore(file)
    await store.open()
    await store.aclose()
    file.chmod(0o444)
    (here / "journal").mkdir()
    async with (
        bench(
            figures,
            here,
            f"sqlite:///{file}",
            seed,
            webs=1,
            workers=0,
            inbox=False,
            is_mounted=True,
            is_nobody=os.getuid() == 0,
        ) as on,
        on.load(),
    ):
        for _ in range(count):
            async with refusing(on):
                pass
        on.check(not on.sender.acknowledged, "something was acknowledged")
        # SQLite gave the log and its index the permissions of the file, so repair all three.
        for each in folder.iterdir():
            each.chmod(0o666)
        await accepting(on)


@asynccontextmanager
async def refusing(
    on: Bench, answers: int = 20, unless_accepted: float = inf
) -> AsyncIterator[None]:
    """Let the block begin a fault; then wait until answers show that the store fails.

    A full disk may have no effect while workers keep up, because SQLite reuses space in its file.
    So the wait also ends after ``unless_accepted`` accepted events.
    """
    on.figures.faults += 1
    yield
    wanted = on.sender.count_of(503) + answers
    accepted = len(on.sender.acknowledged) + unless_accepted
    await until(
        lambda: on.sender.count_of(503) >= wanted or len(on.sender.acknowledged) >= accepted,
        what=f"503: {on.sender.answers}",
    )
    await asyncio.sleep(on.chance.uniform(0.0, 1.0))


async def accepting(on: Bench, events: int = 50) -> None:
    """Wait for this many more acknowledged events, which show that the store has recovered."""
    wanted = len(on.sender.acknowledged) + events
    await until(
        lambda: len(on.sender.acknowledged) >= wanted, what=f"recovery: {on.sender.answers}"
    )
