"""Processes are killed or stopped, their clocks jump, and many of them use one store at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from support.waiting import until

from hookonce.senders import openai, publishing, standard, svix
from hookonce.verification.secrets import new_secret

from .bench import Bench, Figures, bench, bench_of_pairs
from .fleet import Member
from .journal import Line, runs_of
from .program import BLOCKED_SECONDS, set_clock

__all__ = [
    "clock_jumps",
    "deployments",
    "handler_sets",
    "inline_stalls",
    "kills",
    "kills_of_four_senders",
    "race",
    "stalls",
]

_HOUR = 3600.0
_BACKOFF_SECONDS = 0.3
# On a busy machine, a retry may come this much later than planned.
_LATE_SECONDS = 4.0


async def kills(
    figures: Figures, here: Path, store: str, *, seed: int, count: int, inbox: bool = True
) -> None:
    """Kill web processes and workers at any moment, and start them again at once."""
    async with bench_of_pairs(
        figures,
        here,
        store,
        seed,
        failing=0.05,
        inbox=inbox,
        lease_seconds=1.5,
        backoff_seconds=_BACKOFF_SECONDS,
    ) as on:
        on.statuses.add(0)  # 0: no answer, because the web process was killed
        async with on.load():
            await on.fleet.kill_at_random(count, on.chance)
        on.check(not on.fleet.failed_starts, "a process did not start after a kill")


async def kills_of_four_senders(
    figures: Figures, here: Path, store: str, *, seed: int, count: int, inbox: bool = True
) -> None:
    """Kill processes whose application has an endpoint for each built-in sender, on one store.

    Each sender delivers by its own schedule, at ``SPEED``.
    """
    names = [sender.name for sender in (publishing, standard, svix, openai)]
    async with bench_of_pairs(
        figures,
        here,
        store,
        seed,
        failing=0.05,
        inbox=inbox,
        lease_seconds=1.5,
        backoff_seconds=_BACKOFF_SECONDS,
        senders={name: new_secret() for name in names},
    ) as on:
        on.statuses.add(0)  # 0: no answer, because the web process was killed
        async with on.load():
            await on.fleet.kill_at_random(count, on.chance)
        on.check(not on.fleet.failed_starts, "a process did not start after a kill")
    sent = Counter(on.sender.service_of(event_id) for event_id in on.sender.acknowledged)
    on.check(sorted(sent) == sorted(names), f"some senders sent nothing: {sent}")
    on.check(on.sender.forgeries[401], "nothing was forged")
    forgeries, latest = on.sender.forgeries.total(), on.sender.latest
    on.check(len(latest) == len(names) and min(latest.values()) > 1, f"retries: {dict(latest)}")
    shown = ", ".join(f"{sent[name]} {name} (up to attempt {latest[name]})" for name in names)
    figures.remark = f"{shown}, {forgeries} forgeries"


async def deployments(
    figures: Figures, here: Path, store: str, *, seed: int, count: int, inbox: bool = True
) -> None:
    """Replace processes one by one while deliveries arrive; no event may run a second time."""
    async with bench_of_pairs(figures, here, store, seed, inbox=inbox, lease_seconds=30.0) as on:
        on.statuses.add(0)  # 0: no answer, because the web process closed the connection
        async with on.load():
            for number in range(count):
                await asyncio.sleep(on.chance.uniform(0.05, 0.4))
                await on.deploy(on.fleet.members[number % len(on.fleet.members)])


async def stalls(figures: Figures, here: Path, store: str, *, seed: int, count: int) -> None:
    """Stop a worker for longer than its lease; its late calls must change nothing."""
    async with bench(
        figures,
        here,
        store,
        seed,
        webs=1,
        workers=2,
        failing=0.5,
        handlers=1,
        pause_seconds=0.8,
        concurrency=4,
        lease_seconds=1.5,
        backoff_seconds=_BACKOFF_SECONDS,
    ) as on:
        for round_ in range(count):
            await _stall(on, on.fleet.of_role("worker")[round_ % 2])
        runs = runs_of(on.journal()).values()
        on.check(
            all(len(of_event) <= 3 for of_event in runs),
            "an event ran again after a late finish",
        )


async def _stall(on: Bench, member: Member) -> None:
    """Stop a worker during its work, and continue it after other workers have done that work."""
    sending = asyncio.create_task(on.sender.send(8, lanes=8))
    mine: set[str] = set()

    def has_begun() -> bool:
        mine.update(_open_runs(on.journal(), member.pid))
        return bool(mine)

    try:
        await until(has_begun, what="the worker has begun something")
        await on.stop(member)
        mine = _open_runs(on.journal(), member.pid)
        on.figures.faults += 1
        try:
            await sending
            await until(
                lambda: mine <= {line.event_id for line in on.journal() if line.note == "done"},
                what=f"others have handled {mine}",
            )
        finally:
            on.fleet.go_on(member)
        await until(
            lambda: not _open_runs(on.journal(), member.pid), what="the late runs have ended"
        )
    finally:
        sending.cancel()
        await asyncio.wait([sending])


async def inline_stalls(
    figures: Figures, here: Path, store: str, *, seed: int, count: int, webs: int
) -> None:
    """Stop web processes for longer than a lease while handlers run and duplicates arrive.

    About half of the stops block only the event loop. Two runs of an event must never overlap in
    one process, but another process may run the event during a stop.
    """
    async with bench(
        figures,
        here,
        store,
        seed,
        webs=webs,
        workers=0,
        inbox=False,
        pause_seconds=3.0,
        lease_seconds=1.0,
    ) as on:
        on.sender.roams, on.sender.duplicates = True, 1.0
        async with on.load(lanes=24, pause=0.05):
            for round_ in range(count):
                member = on.fleet.members[round_ % webs]
                await until(
                    lambda pid=member.pid: _open_runs(on.journal(), pid),  # type: ignore[misc] # mypy cannot infer the type of a lambda's default
                    what="handlers run",
                )
                if on.chance.random() < 0.5:
                    await on.fleet.block(member)
                else:
                    on.fleet.stop(member)
                    await asyncio.sleep(BLOCKED_SECONDS)
                    on.fleet.go_on(member)
                figures.faults += 1
                await asyncio.sleep(on.chance.uniform(0.2, 1.0))


async def handler_sets(
    figures: Figures, here: Path, store: str, *, seed: int, count: int, inbox: bool = True
) -> None:
    """Deploy a version with one more handler, then the old version, while that handler fails.

    An event that only the old version has handled is done. An event that the new version has begun
    is done only after the new handler has succeeded, even if the old version gets it in between.
    """
    async with bench_of_pairs(
        figures,
        here,
        store,
        seed,
        failing=0.7,
        inbox=inbox,
        is_old=True,
        lease_seconds=30.0,
        backoff_seconds=_BACKOFF_SECONDS,
    ) as on:
        on.statuses.update({0, 500})
        on.sender.roams = True
        handling = on.fleet.of_role("worker" if inbox else "web")
        async with on.load():
            for number in range(count):
                member = handling[number % len(handling)]
                await on.deploy(member, is_old=not member.settings.is_old)
                await asyncio.sleep(on.chance.uniform(0.3, 1.0))
            for member in handling:
                if member.settings.is_old:
                    await on.deploy(member, is_old=False)
    runs = runs_of(on.journal())
    unfinished = [
        f"{handler} of {event_id} failed, and never succeeded"
        for (event_id, handler), of_handler in runs.items()
        if event_id in on.sender.acknowledged and all(run.ended is None for run in of_handler)
    ]
    figures.lost += len(unfinished)
    figures.violations += unfinished
    on.check(figures.again["failed"], "nothing failed")


def _open_runs(lines: list[Line], pid: int) -> set[str]:
    return {
        run.event_id
        for runs in runs_of(lines).values()
        for run in runs
        if run.pid == pid and run.ended is None and run.failed is None
    }


async def clock_jumps(figures: Figures, here: Path, store: str, *, seed: int, count: int) -> None:
    """Let the wall clock of all processes jump forward and back by hours."""
    clock = here / "clock"
    set_clock(clock, 0.0)
    async with bench(
        figures,
        here,
        store,
        seed,
        webs=1,
        workers=2,
        failing=0.3,
        clock=str(clock),
        backoff_seconds=_BACKOFF_SECONDS,
        lease_seconds=30.0,  # long, so that a slow disk does not end a lease
    ) as on:
        on.statuses.add(401)  # 401: the clock jumped between signing and verification
        async with on.load():
            for _ in range(count):
                await asyncio.sleep(on.chance.uniform(0.2, 0.6))
                set_clock(clock, on.chance.uniform(-12 * _HOUR, 12 * _HOUR))
                figures.faults += 1
            await asyncio.sleep(0.5)
            set_clock(clock, 0.0)
    waits = [
        (later.began - earlier.failed) / 1e9
        for runs in runs_of(on.journal()).values()
        for earlier, later in pairwise(runs)
        if earlier.failed is not None
    ]
    on.check(waits, "nothing failed")
    on.check(
        all(0.8 * _BACKOFF_SECONDS < wait < _BACKOFF_SECONDS + _LATE_SECONDS for wait in waits),
        f"a retry came after {min(waits):.2f} to {max(waits):.2f} s, not {_BACKOFF_SECONDS} s",
    )
    figures.remark = f"retries after {min(waits):.2f} to {max(waits):.2f} s"


async def race(figures: Figures, here: Path, store: str, *, seed: int, count: int) -> None:
    """Let two web processes and three workers handle events on one store, at full speed."""
    async with bench(
        figures,
        here,
        store,
        seed,
        webs=2,
        workers=3,
        handlers=1,
        pause_seconds=0.0,
        concurrency=64,
        lease_seconds=30.0,
    ) as on:
        started = time.monotonic()
        await on.sender.send(round(count / (1 + on.sender.duplicates)), lanes=64)
        sent = time.monotonic() - started
        await on.settle()
        done = time.monotonic() - started
    figures.remark = (
        f"{on.sender.deliveries / sent:.0f} deliveries/s, {figures.events / done:.0f} events/s"
    )
    on.check(not figures.again, f"runs beyond the first: {dict(figures.again)}")
