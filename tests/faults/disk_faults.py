"""The disk is full, the file is read-only, or somebody else has locked it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path

import apsw
from support.disks import fill, small_disk
from support.waiting import until

from hookonce.stores.sqlite import SQLiteStore

from .bench import Bench, Figures, bench

__all__ = ["full_disk", "locked_file", "read_only_file"]

# Longer than any fault here lasts: what is under way meanwhile is recorded after it.
_LEASE_SECONDS = 12.0
_DISK_MEGABYTES = 24


async def full_disk(figures: Figures, here: Path, *, seed: int, count: int, inbox: bool) -> None:
    """Fill the disk that the file is on, and make room again."""
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
                await _accepting(on)
                async with _refusing(on, unless_accepted=500):
                    fill(disk / "filler")
                (disk / "filler").unlink()
            await _accepting(on)


async def locked_file(figures: Figures, here: Path, *, seed: int, count: int, inbox: bool) -> None:
    """Let another program hold the file's write lock for seconds."""
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
            await _accepting(on)
            other = apsw.Connection(str(file))
            other.set_busy_timeout(5000)
            try:
                async with _refusing(on):
                    other.execute("BEGIN IMMEDIATE")
            finally:
                other.close()
        await _accepting(on)


async def read_only_file(figures: Figures, here: Path, *, seed: int, count: int) -> None:
    """Serve with a file that may only be read, until somebody mends that; no process restarts."""
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
            async with _refusing(on):
                pass
        on.check(not on.sender.acknowledged, "something was acknowledged")
        for each in folder.iterdir():  # the log and its index were made as read-only as the file
            each.chmod(0o666)
        await _accepting(on)


@asynccontextmanager
async def _refusing(
    on: Bench, answers: int = 20, unless_accepted: float = inf
) -> AsyncIterator[None]:
    """Do in the block what makes the store fail; returns after some answers that say so.

    A full disk need not show while workers keep up: SQLite then writes where it has room already.
    So many events accepted in spite of it end the wait as well.
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


async def _accepting(on: Bench, events: int = 50) -> None:
    wanted = len(on.sender.acknowledged) + events
    await until(
        lambda: len(on.sender.acknowledged) >= wanted, what=f"recovery: {on.sender.answers}"
    )
