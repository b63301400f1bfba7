"""Web and worker processes that a test starts, kills, stops and starts again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from support.waiting import PATIENCE_SECONDS

from .journal import Span, now_ns
from .program import BLOCKED_SECONDS, Settings

__all__ = ["Fleet", "Member", "fleet"]

_PROGRAM = Path(__file__).with_name("program.py")
# Less than the 20 s that a shutdown waits for handlers: these handlers take one second at most.
_SHUTDOWN_SECONDS = 15.0
_MOST_FAILED_STARTS = 50


@dataclass(eq=False)
class Member:
    """A member of the fleet. ``kill`` and ``replace`` give it a new process."""

    name: str
    settings: Settings
    process: Process

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self.process.pid


class Fleet:
    """The processes of one scenario.

    Attributes:
        port: where all web processes listen.
        members: the processes.
        kills: the times at which processes were killed, by their ids.
        stalls: the times during which processes were stopped, by their ids.
        failed_starts: how many processes ended instead of starting.

    """

    def __init__(self, here: Path, settings: Settings) -> None:
        self._here = here
        self._settings = settings
        # Bind the port but never listen: this reserves the port while every web process is dead.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port: int = self._reserved.getsockname()[1]
        self.members: list[Member] = []
        self.kills: defaultdict[int, list[Span]] = defaultdict(list)
        self.stalls: defaultdict[int, list[Span]] = defaultdict(list)
        self.failed_starts = 0
        self._stopped: dict[int, int] = {}

    @property
    def kill_count(self) -> int:
        """The number of kills so far."""
        return sum(map(len, self.kills.values()))

    def of_role(self, role: str) -> list[Member]:
        """Return the processes with a role: web, worker or replay."""
        return [member for member in self.members if member.settings.role == role]

    async def start(self, *, webs: int, workers: int, replayers: int) -> None:
        """Start processes, and return when all are ready."""
        for role, count in (("web", webs), ("worker", workers), ("replay", replayers)):
            for number in range(count):
                settings = replace(self._settings, role=role, port=self.port)  # type: ignore[arg-type]  # `role` is one of the literals
                process = await self._spawn(settings, f"{role}-{number}")
                self.members.append(Member(f"{role}-{number}", settings, process))
        await asyncio.gather(*map(self.ready, self.members))

    async def ready(self, member: Member) -> None:
        """Wait until a process serves requests or handles events.

        If a process fails to start because it cannot reach its store, start it again, as an
        orchestrator does.
        """
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await self._starts(member):
                self.failed_starts += 1
                assert self.failed_starts < _MOST_FAILED_STARTS, self.log_of(member.name)
                member.process = await self._spawn(member.settings, member.name)

    @staticmethod
    async def _starts(member: Member) -> bool:
        assert member.process.stdout is not None
        if await member.process.stdout.readline() == b"ready\n":
            return True
        await member.process.wait()
        return False

    async def kill(self, member: Member) -> None:
        """Kill a process with SIGKILL, and start another one in its place at once."""
        begun = now_ns()
        member.process.kill()
        status = await member.process.wait()
        self.kills[member.pid].append((begun, now_ns()))
        assert status == -signal.SIGKILL, f"{member.name} had ended: {self.log_of(member.name)}"
        member.process = await self._spawn(member.settings, member.name)

    async def replace(self, member: Member) -> None:
        """Ask a process to end, and start another process in its place, like a deployment."""
        member.process.terminate()
        async with asyncio.timeout(_SHUTDOWN_SECONDS):
            status = await member.process.wait()
        assert status in {0, -signal.SIGTERM}, f"{member.name}: {self.log_of(member.name)}"
        member.process = await self._spawn(member.settings, member.name)
        await self.ready(member)

    async def kill_at_random(self, count: int, chance: random.Random) -> None:
        """Kill this many processes, one after the other, at random moments."""
        for _ in range(count):
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            member = chance.choice(self.members)
            await self.kill(member)
            if chance.random() < 0.1:  # sometimes kill the new process while it starts
                await asyncio.sleep(chance.uniform(0, 0.5))
                await self.kill(member)
            await self.ready(member)

    def stop(self, member: Member) -> None:
        """Stop a process with SIGSTOP."""
        self._stopped[member.pid] = now_ns()
        member.process.send_signal(signal.SIGSTOP)

    def go_on(self, member: Member) -> None:
        """Continue a stopped process."""
        member.process.send_signal(signal.SIGCONT)
        self.stalls[member.pid].append((self._stopped.pop(member.pid), now_ns()))

    async def block(self, member: Member) -> None:
        """Block the event loop of a process; return when the loop runs again."""
        begun = now_ns()
        member.process.send_signal(signal.SIGUSR1)
        await asyncio.sleep(BLOCKED_SECONDS)
        self.stalls[member.pid].append((begun, now_ns()))

    async def dismiss(self, role: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Ask the processes of a role to end, and wait until they have finished their work."""
        leaving = self.of_role(role)
        for member in leaving:
            member.process.terminate()
        for member in leaving:
            async with asyncio.timeout(seconds):
                status = await member.process.wait()
            assert not status, f"{member.name}: {self.log_of(member.name)}"
            self.members.remove(member)

    async def end(self) -> None:
        """Ask every process to end, and check that each process ends in time."""
        for member in self.members:
            member.process.terminate()
        async with asyncio.timeout(_SHUTDOWN_SECONDS):
            statuses = await asyncio.gather(*(member.process.wait() for member in self.members))
        assert set(statuses) <= {0, -signal.SIGTERM}, f"exit statuses: {statuses}"

    def log_of(self, name: str) -> str:
        """Return the end of a member's log."""
        return (self._here / f"{name}.log").read_text()[-3000:]

    async def abandon(self) -> None:
        """Kill the processes that still run."""
        for member in self.members:
            with suppress(ProcessLookupError):
                member.process.kill()
        await asyncio.gather(*(member.process.wait() for member in self.members))
        self._reserved.close()

    async def _spawn(self, settings: Settings, name: str) -> Process:
        with (self._here / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                settings.python,
                _PROGRAM,
                settings.to_json(),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
                env={**os.environ, "PYTHONWARNINGS": ""},
            )


@asynccontextmanager
async def fleet(
    here: Path, settings: Settings, *, webs: int, workers: int, replayers: int = 0
) -> AsyncIterator[Fleet]:
    """Run processes until the block ends; no process outlives the block."""
    running = Fleet(here, settings)
    try:
        await running.start(webs=webs, workers=workers, replayers=replayers)
        yield running
    finally:
        await running.abandon()
