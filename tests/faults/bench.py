"""What a scenario works with: processes, a sender, a store, and the count at the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.redis_servers import VALKEY_SERVER, RedisServer, redis_server
from support.waiting import until_async

from hookonce import Inbox, Receiver
from hookonce.verification.secrets import new_secret

from .fleet import Fleet, fleet
from .journal import Line, judge, now_ns, read_journal
from .program import ANSWER_SECONDS, Settings, shifted_clock
from .sender import Sender

__all__ = ["Bench", "Figures", "bench", "folder", "persistent_server"]

_DRAIN_SECONDS = 60.0
_SAMPLE = 100
_EXPECTED_STATUSES = {200, 202, 503}


@dataclass
class Figures:
    """What was measured, and what was wrong.

    Attributes:
        scenario: its name.
        events: how many were acknowledged.
        deliveries: how many requests were sent.
        kills: how many processes were killed.
        faults: how often something else was done to them or to a server.
        again: runs of a handler beyond its first, by what explains them.
        lost: acknowledged events that were not handled.
        unexplained: runs beyond the first that nothing explains.
        seconds: how long it took, without the start of the processes.
        violations: what must not be, each as a sentence.
        remark: what else there is to say.

    """

    scenario: str
    events: int = 0
    deliveries: int = 0
    kills: int = 0
    faults: int = 0
    again: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    unexplained: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)
    remark: str = ""


@dataclass
class Bench:
    """Everything that one scenario works with.

    Attributes:
        here: a folder that goes with it.
        settings: of its processes.
        fleet: its processes.
        sender: sends to them.
        chance: decides when what happens.
        figures: what comes out.
        statuses: further answers that this scenario's sender may get.

    """

    here: Path
    settings: Settings
    fleet: Fleet
    sender: Sender
    chance: random.Random
    figures: Figures
    statuses: set[int] = field(default_factory=set)

    @asynccontextmanager
    async def load(self, *, lanes: int = 16, pause: float = 0.02) -> AsyncIterator[None]:
        """Send while the block lasts; afterwards everything that was sent is acknowledged."""
        sending = asyncio.create_task(self.sender.send(lanes=lanes, pause=pause))
        try:
            yield
            self.sender.stop()
            async with asyncio.timeout(_DRAIN_SECONDS):
                await sending
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    def check(self, holds: object, violation: str) -> None:
        """Note a violation unless something holds."""
        if not holds:
            self.figures.violations.append(violation)

    def journal(self) -> list[Line]:
        """Return what the processes have noted so far."""
        return read_journal(self.here / "journal")

    async def conclude(self) -> None:
        """Wait until nothing is left to do, end the processes, and count."""
        await self.settle()
        sample = sorted(self.sender.acknowledged)
        self.chance.shuffle(sample)
        answers = await self.sender.deliver_again(sample[:_SAMPLE])
        self.check(
            answers[200, "duplicate"] == len(sample[:_SAMPLE]),
            f"what was handled is no duplicate when it comes again: {dict(answers)}",
        )
        await self.fleet.end()
        self._count(self.journal())

    async def settle(self) -> None:
        """Return when the store holds nothing that is not done; note it if that never comes."""
        receiver = Receiver(
            secrets=self.settings.secret,
            store=self.settings.store,
            inbox=Inbox(embedded=False),
        )
        seen: list[str] = []

        async def is_empty() -> bool:
            stats = await receiver.waiting.stats()
            seen[:] = [str(stats)]
            return stats.depth == 0 and stats.in_flight == 0

        async with receiver:
            try:
                await until_async(is_empty, seconds=_DRAIN_SECONDS)
            except AssertionError:
                self.check(False, f"not everything was worked off: {seen}")
            for letter in await receiver.dead.list():
                self.check(False, f"{letter.delivery.event_id} is a dead letter: {letter.error}")

    def _count(self, lines: list[Line]) -> None:
        figures, sender = self.figures, self.sender
        verdict = judge(
            lines,
            sender.acknowledged,
            self.settings.handler_names,
            kills=self.fleet.kills,
            stalls=self.fleet.stalls,
            has_lock=self.settings.store.startswith("sqlite:"),
            wait_ns=round(ANSWER_SECONDS * 1e9) if self.settings.is_keyed else 0,
        )
        figures.events, figures.deliveries = verdict.events, sender.deliveries
        figures.again, figures.lost = verdict.again, len(verdict.lost)
        figures.unexplained = len(verdict.unexplained)
        figures.kills += self.fleet.kill_count
        figures.violations += [f"lost: {event_id}" for event_id in verdict.lost]
        figures.violations += [f"ran again: {text}" for text in verdict.unexplained]
        figures.remark = f"slowest answer {sender.slowest_seconds:.1f} s"
        self.check(verdict.events, "nothing was acknowledged")
        self.check(sender.slowest_seconds < 9.9, f"answered after {sender.slowest_seconds:.1f} s")
        odd = {code for code, _ in sender.answers} - _EXPECTED_STATUSES - self.statuses
        self.check(not odd, f"answers that should not be: {dict(sender.answers)}")


@asynccontextmanager
async def bench(
    figures: Figures,
    here: Path,
    store: str,
    seed: int,
    *,
    webs: int = 1,
    workers: int = 1,
    failing: float = 0.0,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Run processes on a store and give a sender to them; at the end the figures are counted.

    Args:
        figures: what to fill in.
        here: a folder that goes with the scenario.
        store: the URL of the store.
        seed: what chance goes by.
        webs: how many web processes.
        workers: how many workers.
        failing: which part of the events fails at the first attempt.
        settings: of the processes, other than the usual ones.

    """
    journal = here / "journal"
    journal.mkdir(exist_ok=True)
    given = Settings(store=store, secret=new_secret(), journal=str(journal), **settings)
    chance = random.Random(seed)
    async with fleet(here, given, webs=webs, workers=workers) as running:
        sender = Sender(
            running.port,
            given.secret,
            random.Random(seed),
            failing=failing,
            clock=shifted_clock(Path(given.clock)) if given.clock else time.time,
        )
        on = Bench(here, given, running, sender, chance, figures)
        if failing:
            on.statuses.add(500)
        started = now_ns()
        yield on
        try:
            await on.conclude()
        finally:
            figures.seconds = (now_ns() - started) / 1e9


@contextmanager
def folder() -> Iterator[Path]:
    """Return a folder that every user may look into, unlike pytest's; it goes with the block."""
    with TemporaryDirectory(prefix="hookonce-faults-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@contextmanager
def persistent_server(binary: str = VALKEY_SERVER, *options: str) -> Iterator[RedisServer]:
    """Run a server that writes each command to its append-only file before it answers, or soon."""
    with redis_server(*options, binary=binary, append_only=True) as server:
        yield server
