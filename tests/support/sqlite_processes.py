"""Processes that use a SQLite file, and checks of the file they leave."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from .sqlite_files import sqlite_connection

__all__ = ["PATIENCE_SECONDS", "Child", "child", "is_sound"]

_PROGRAM = Path(__file__).parents[1] / "stores" / "sqlite_child.py"
PATIENCE_SECONDS = 30.0


class Child:
    """A running ``sqlite_child.py``."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self._process, self._out, self._in = process, process.stdout, process.stdin

    async def line(self) -> str:
        """Return the next line that the child prints; an empty text after the child has ended."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self._out.readline()).decode().strip()

    async def lines(self) -> list[str]:
        """Return all further lines, until the process ends."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            lines = (await self._out.read()).decode().splitlines()
            await self._process.wait()
            return lines

    def tell(self, line: str) -> None:
        self._in.write(f"{line}\n".encode())

    def kill(self) -> None:
        self._process.kill()


@asynccontextmanager
async def child(command: str, path: Path, name: str = "") -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        _PROGRAM,
        command,
        path,
        name,
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,
    )
    running = Child(process)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # kills the forks, too
        await running.lines()


def is_sound(path: Path) -> bool:
    connection = sqlite_connection(path)
    try:
        return bool(connection.pragma("integrity_check") == "ok")
    finally:
        connection.close()
