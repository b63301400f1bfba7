"""Processes of their own on a SQLite file, and the state they leave it in."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import apsw

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
        """Return the next line it says; empty at its end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self._out.readline()).decode().strip()

    async def lines(self) -> list[str]:
        """Return all further lines, until it ends."""
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
            os.killpg(process.pid, signal.SIGKILL)  # its forks as well
        await running.lines()


def is_sound(path: Path) -> bool:
    connection = apsw.Connection(str(path))
    try:
        return bool(connection.pragma("integrity_check") == "ok")
    finally:
        connection.close()
