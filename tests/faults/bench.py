"""The tools of a fault scenario: processes, a sender, a store, and the count at the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
from support.redis_servers import VALKEY_SERVER, RedisServer, redis_server
from support.waiting import until_async

from hookonce import Inbox, Receiver
from hookonce.senders.built_in import BUILT_IN
from hookonce.verification.secrets import new_secret

from .fleet import Fleet, Member, fleet
from .journal import Line, judge, now_ns, read_journal
from .program import ANSWER_SECONDS, Settings, shifted_clock
from .sender import FORGED, Sender

__all__ = ["Bench", "Figures", "bench", "bench_of_pairs", "folder", "persistent_server"]

_DRAIN_SECONDS = 60.0
# At `SPEED`, the longest retry schedule of the built-in senders lasts 68 seconds.
_SCHEDULE_SECONDS = 75.0
_SAMPLE = 100
_FORGING = 0.3
_EXPECTED_STATUSES = {200, 202, 503}


@dataclass
class Figures:
    """The measurements of a scenario, and its violations.

    Attributes:
        scenario: the scenario's name.
        events: the number of acknowledged events.
        deliveries: the number of requests.
        kills: the number of killed processes.
        faults: the number of all other faults.
        again: the number of repeated runs of handlers, by their reason.
        lost: the number of acknowledged events that were not handled.
        unexplained: the number of repeated runs without a reason.
        seconds: the duration, without the start of the processes.
        violations: the broken promises, each as a sentence.
        remark: a further result to print.

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
    """The processes, the sender and the figures of one scenario.

    Attributes:
        here: the scenario's folder.
        settings: the settings of the processes.
        fleet: the processes.
        sender: sends deliveries to the processes.
        chance: chooses the faults and their moments.
        figures: the results.
        statuses: further statuses of answers that the scenario allows.
        unrecorded: events that were answered 200, though the store could not record them any more:
            a copy of such an event runs again.
    """

    here: Path
    settings: Settings
    fleet: Fleet
    sender: Sender
    chance: random.Random
    figures: Figures
    statuses: set[int] = field(default_factory=set)
    unrecorded: set[str] = field(default_factory=set)

    @asynccontextmanager
    async def load(self, *, lanes: int = 16, pause: float = 0.02) -> AsyncIterator[None]:
        """Send events while the block runs; then wait until every delivery is acknowledged."""
        sending = asyncio.create_task(self.sender.send(lanes=lanes, pause=pause))
        try:
            yield
            self.sender.stop()
            # Several senders retry by their own schedules, which may last longer.
            longest = _SCHEDULE_SECONDS if self.settings.senders else _DRAIN_SECONDS
            async with asyncio.timeout(longest):
                await sending
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def deploy(self, member: Member, **changes: Any) -> None:
        """Deploy other settings: end a process, and start a new process in its place."""
        member.settings = replace(member.settings, **changes)
        await self.fleet.replace(member)
        self.figures.faults += 1

    async def stop(self, member: Member) -> None:
        """Stop a process with SIGSTOP, but never within a transaction of SQLite.

        A process that stopped there would keep all other processes from writing.
        """
        self.fleet.stop(member)
        while not self._is_writable():
            self.fleet.go_on(member)
            await asyncio.sleep(0.05)
            self.fleet.stop(member)

    def _is_writable(self) -> bool:
        path = self.settings.store.removeprefix("sqlite:///")
        if path == self.settings.store:
            return True
        with closing(apsw.Connection(path)) as connection:
            connection.set_busy_timeout(2_000)
            try:
                connection.execute("BEGIN IMMEDIATE; ROLLBACK")
            except apsw.BusyError:
                return False
        return True

    def check(self, holds: object, violation: str) -> None:
        """Record a violation if ``holds`` is false."""
        if not holds:
            self.figures.violations.append(violation)

    def journal(self) -> list[Line]:
        """Return the lines that all processes have written into the journal so far."""
        return read_journal(self.here / "journal")

    async def conclude(self) -> None:
        """Wait until all events are done, end the processes, and compute the figures."""
        await self.settle()
        sample = sorted(self.sender.acknowledged - self.unrecorded)
        self.chance.shuffle(sample)
        answers = await self.sender.deliver_again(sample[:_SAMPLE])
        self.check(
            answers[200, "duplicate"] == len(sample[:_SAMPLE]),
            f"what was handled is no duplicate when it comes again: {dict(answers)}",
        )
        await self.fleet.end()
        self._count(self.journal())

    async def settle(self) -> None:
        """Wait until every event in the store is done; record a violation if that never happens."""
        for endpoint in self.settings.senders or ("default",):
            await self._settle(endpoint)

    async def _settle(self, endpoint: str) -> None:
        receiver = Receiver(
            secrets=self.settings.secret,
            store=self.settings.store,
            endpoint=endpoint,
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
        self.check(not sender.given_up, f"lost after the last attempt: {sorted(sender.given_up)}")
        self.check(not sender.disabled, f"disabled endpoints: {sorted(sender.disabled)}")
        self.check(sender.slowest_seconds < 9.9, f"answered after {sender.slowest_seconds:.1f} s")
        odd = {code for code, _ in sender.answers} - _EXPECTED_STATUSES - self.statuses
        forged = {line.event_id for line in lines if line.event_id.startswith(FORGED)}
        self.check(not forged, f"forged events were handled: {sorted(forged)}")
        odd_answers = sender.forgeries.keys() - {0, 400, 401, 503}
        self.check(not odd_answers, f"answers to forgeries: {dict(sender.forgeries)}")
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
    replayers: int = 0,
    failing: float = 0.0,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Run a sender, and processes on a store; compute the figures at the end.

    Args:
        figures: the results, which this function fills in.
        here: the scenario's folder.
        store: the URL of the store.
        seed: the seed of all random choices.
        webs: the number of web processes.
        workers: the number of workers.
        replayers: the number of processes that replay handled events.
        failing: the share of events that fail at the first attempt.
        settings: further settings of the processes.

    """
    journal = here / "journal"
    journal.mkdir(exist_ok=True)
    given = Settings(store=store, secret=new_secret(), journal=str(journal), **settings)
    chance = random.Random(seed)
    counts = {"webs": webs, "workers": workers, "replayers": replayers}
    async with fleet(here, given, **counts) as running:
        sender = Sender(
            running.port,
            given.secret,
            random.Random(seed),
            failing=failing,
            services={BUILT_IN[name]: secret for name, secret in given.senders.items()},
            forging=_FORGING if given.senders else 0.0,
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


def bench_of_pairs(
    figures: Figures, here: Path, store: str, seed: int, *, inbox: bool, **options: Any
) -> AbstractAsyncContextManager[Bench]:
    """Run ``bench`` with two web processes, and with two workers if there is an inbox."""
    workers = 2 if inbox else 0
    return bench(figures, here, store, seed, webs=2, workers=workers, inbox=inbox, **options)


@contextmanager
def folder() -> Iterator[Path]:
    """Return a folder that every user can read, unlike pytest's; remove it after the block."""
    with TemporaryDirectory(prefix="hookonce-faults-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@contextmanager
def persistent_server(binary: str = VALKEY_SERVER, *options: str) -> Iterator[RedisServer]:
    """Run a server whose append-only file gets each command before the answer, or soon after it."""
    with redis_server(*options, binary=binary, append_only=True) as server:
        yield server
