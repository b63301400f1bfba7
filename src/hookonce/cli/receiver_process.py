"""The process of a receiver that ``hookonce chaos --url --run`` starts and kills."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from .statuses import CannotBegin

EFFECTS_URL_VARIABLE = "HOOKONCE_EFFECTS_URL"
"""The environment variable that tells a receiver where to post the ids of its effects."""

_LOOK_SECONDS = 0.05

# How long a receiver may take to start. Most need a second or two; a receiver that is compiled
# first, or starts on a busy machine, needs longer.
_START_SECONDS = 60.0


class ReceiverProcess:
    """The receiver's process, which a shell command starts."""

    def __init__(self, command: str, url: str) -> None:
        self._command = command
        self._url = url
        self._environment: Mapping[str, str] = {}
        self._process: Process | None = None

    @asynccontextmanager
    async def running(self, effects_url: str) -> AsyncIterator[None]:
        """Run the receiver during the block."""
        self._environment = {**os.environ, EFFECTS_URL_VARIABLE: effects_url}
        if await _accepts(self._url):
            raise CannotBegin(
                f"a server answers at {self._url} already; stop it, or leave out --run"
            )
        try:
            await self.start()
            yield
        finally:
            await self.kill()

    async def start(self) -> None:
        """Start the receiver, and return when it accepts connections."""
        self._process = process = await asyncio.create_subprocess_shell(
            self._command,
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
            env=self._environment,
            start_new_session=True,
        )
        if not await port_becomes(
            self._url,
            is_open=True,
            seconds=_START_SECONDS,
            is_hopeless=lambda: process.returncode is not None,
        ):
            what = "did not start" if process.returncode is None else "ended"
            raise CannotBegin(
                f"the command of --run {what}, and no server answers at {self._url}; add"
                " '>log 2>&1' to the command to see why"
            )

    async def kill(self) -> None:
        """Kill the receiver and its child processes with SIGKILL."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            # Wait for the port, because a child of the shell may end a moment after the shell.
            await port_becomes(self._url, is_open=False, seconds=_START_SECONDS)


async def port_becomes(
    url: str,
    *,
    is_open: bool,
    seconds: float,
    is_hopeless: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until the port of a URL is open or closed; return False if that takes too long."""
    until = time.monotonic() + seconds
    while await _accepts(url) is not is_open:
        if is_hopeless() or time.monotonic() >= until:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
    return True


async def _accepts(url: str) -> bool:
    """Return whether a server accepts connections at a URL."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
