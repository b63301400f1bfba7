"""Other SQLite libraries open the store's files, in the store's processes and in others."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL
from pathlib import Path

from support.sqlite_processes import is_sound
from support.waiting import until

from hookonce.stores import sqlite_path
from hookonce.stores.sqlite import SQLiteStore

from .bench import Bench, Figures, bench
from .program import OPENED, REFUSED

__all__ = ["two_libraries"]

_EVENTS_EACH = 150
_READER = """
import sqlite3, sys, time
while True:
    connection = sqlite3.connect(sys.argv[1], timeout=10)
    connection.execute("SELECT count(*) FROM done").fetchall()
    connection.close()
    time.sleep(0.02)
"""


async def two_libraries(
    figures: Figures, here: Path, store: str, *, seed: int, count: int, inbox: bool = True
) -> None:
    """Let other libraries read the database all the time, and back it up again and again."""
    foreign = here / "foreign"
    foreign.mkdir()
    file, copy = Path(sqlite_path(store)), here / "copy.db"
    async with bench(
        figures,
        here,
        store,
        seed,
        webs=2,
        workers=2 if inbox else 0,
        inbox=inbox,
        lease_seconds=30.0,
        foreign=str(foreign),
    ) as on:
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _READER, file, stdin=DEVNULL
        )
        try:
            async with on.load():
                for _ in range(count):
                    await _accepting(on)
                    await SQLiteStore(file).backup(copy, overwrite=True)
                    on.check(is_sound(copy), "a backup is damaged")
            on.check(reader.returncode is None, "the process beside could not read the file")
        finally:
            if reader.returncode is None:
                reader.kill()
            await reader.wait()
        notes = b"".join([path.read_bytes() for path in foreign.glob("*.notes")])
        figures.faults = notes.count(REFUSED) + count
        on.check(notes.count(REFUSED) > 10 * len(on.fleet.members), "hardly anybody was refused")
        on.check(OPENED not in notes, "another library has opened a file of the open store")
    on.check(is_sound(file), "the file is damaged")


async def _accepting(on: Bench) -> None:
    wanted = len(on.sender.acknowledged) + _EVENTS_EACH
    await until(lambda: len(on.sender.acknowledged) >= wanted, what=f"events: {on.sender.answers}")
