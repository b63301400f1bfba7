"""A receiver in another process, which a test can kill."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from .servers import HttpSender
from .waiting import PATIENCE_SECONDS, until

__all__ = ["PRELUDE", "ServedProcess", "run_python", "run_to_its_end", "served_process"]

# Names that every script can use. `note` appends a line to a journal that outlives the process,
# and `gate` blocks until the test opens it.
PRELUDE = """
import asyncio, os, signal, socket, sys, threading, time
from pathlib import Path
import uvicorn
from hookonce import Limits, Receiver, Reject, Retry
from hookonce.events import CommentReceived

here = Path(os.environ["HERE"])
secret = os.environ["SECRET"]

def note(line):
    with open(here / "journal", "a") as journal:
        journal.write(line + "\\n")

def is_open(name):
    return (here / name).exists()

async def gate(name):
    while not is_open(name):
        await asyncio.sleep(0.005)

def serve(app):
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, ws="none", lifespan="on", access_log=False)
    server = uvicorn.Server(config)
    server.run(sockets=[listener])
    if not server.started:  # older servers leave this to uvicorn.run
        sys.exit(3)
"""


@dataclass
class ServedProcess:
    """A running server process, and the files through which it talks to its test."""

    here: Path
    process: subprocess.Popen[str]
    sender: HttpSender

    def journal(self) -> list[str]:
        """Return the lines that this process and earlier processes have noted."""
        path = self.here / "journal"
        return path.read_text().splitlines() if path.exists() else []

    def open(self, gate: str) -> None:
        """Let a handler that waits at a gate continue."""
        (self.here / gate).touch()

    async def noted(self, line: str, *, times: int = 1) -> None:
        """Return once a line has been noted this many times."""
        await until(
            lambda: self.journal().count(line) >= times, what=f"{line!r} in {self.journal()}"
        )

    async def kill(self) -> None:
        """Kill the process without warning, like the kernel when memory is short."""
        self.process.kill()
        assert await self.ended() == -signal.SIGKILL

    async def terminate(self) -> int:
        """Ask the process to end, and return its exit status."""
        self.process.terminate()
        return await self.ended()

    async def ended(self) -> int:
        """Wait for the end of the process, and return its exit status."""
        return await asyncio.to_thread(self.process.wait, PATIENCE_SECONDS)


@asynccontextmanager
async def served_process(here: Path, script: str, secret: str) -> AsyncIterator[ServedProcess]:
    """Run a script that calls ``serve(app)`` in another process until the block ends."""
    with _started(here, script, secret) as process:
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            assert line, (here / "stderr").read_text()
            async with httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{int(line)}", timeout=PATIENCE_SECONDS
            ) as client:
                yield ServedProcess(here, process, HttpSender(client, secret))
        finally:
            process.kill()


async def run_to_its_end(here: Path, script: str, secret: str) -> tuple[int, str]:
    """Run a script; return its exit status and what it wrote to stderr."""
    with _started(here, script, secret) as process:
        try:
            await asyncio.to_thread(process.communicate, timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    return process.returncode, (here / "stderr").read_text()


def run_python(code: str) -> str:
    """Run a program that must succeed, and return what it prints."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def _started(here: Path, script: str, secret: str) -> subprocess.Popen[str]:
    with (here / "stderr").open("ab") as stderr:
        return subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "HERE": str(here), "SECRET": secret},
        )
