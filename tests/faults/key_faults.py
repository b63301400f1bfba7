"""No process reaches the store for longer than a lease while handlers with key locks run."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import combinations
from pathlib import Path
from typing import TypeAlias

from support.redis_servers import redis_server
from support.sqlite_files import sqlite_connection
from support.waiting import until

from .bench import Bench, Figures, bench
from .journal import Line, Run, Span, now_ns, runs_of
from .program import key_of
from .proxy import proxy

__all__ = ["long_outages_of_a_file", "long_outages_of_a_server"]

_LEASE_SECONDS = 2.0
# An outage must outlast every lease, also the whole lease of a handler that has just begun.
_OUTAGE_SECONDS = (1.5 * _LEASE_SECONDS, 2.5 * _LEASE_SECONDS)

_Outage: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]


async def long_outages_of_a_server(
    figures: Figures, here: Path, *, seed: int, count: int, inbox: bool
) -> None:
    """Block all traffic to and from the server for longer than a lease."""
    with redis_server() as server:
        async with proxy(server.port) as between:

            @asynccontextmanager
            async def outage() -> AsyncIterator[None]:
                between.begin("black-hole")
                yield
                between.heal()

            store = f"redis://127.0.0.1:{between.port}"
            await _long_outages(figures, here, store, outage, seed=seed, count=count, inbox=inbox)


async def long_outages_of_a_file(
    figures: Figures, here: Path, *, seed: int, count: int, inbox: bool
) -> None:
    """Let another program hold the file's write lock for longer than a lease."""
    file = here / "hooks.db"

    @asynccontextmanager
    async def outage() -> AsyncIterator[None]:
        other = sqlite_connection(file)
        try:
            other.execute("BEGIN IMMEDIATE")
            yield
        finally:
            other.close()

    store = f"sqlite:///{file}"
    await _long_outages(figures, here, store, outage, seed=seed, count=count, inbox=inbox)


async def _long_outages(
    figures: Figures,
    here: Path,
    store: str,
    outage: _Outage,
    *,
    seed: int,
    count: int,
    inbox: bool,
) -> None:
    async with bench(
        figures,
        here,
        store,
        seed,
        webs=2,
        workers=2 if inbox else 0,
        inbox=inbox,
        is_keyed=True,
        pause_seconds=0.5,
        lease_seconds=_LEASE_SECONDS,
        backoff_seconds=0.3,
    ) as on:
        outages: list[Span] = []
        on.sender.roams = True
        # With more than eight connections, events would arrive faster than their key locks let
        # handlers run. The bench would then wait for a long time until the inbox is empty.
        async with on.load(lanes=8, pause=1.0) if inbox else on.load(lanes=24):
            for _ in range(count):
                await _some_more_runs(on)
                began = now_ns()
                async with outage():
                    await asyncio.sleep(on.chance.uniform(*_OUTAGE_SECONDS))
                outages.append((began, now_ns()))
                figures.faults += 1
            await _some_more_runs(on)
        for member in on.fleet.members:  # an outage ends leases, like a stopped process
            on.fleet.stalls[member.pid] += outages
    lines = on.journal()
    _check_order(on, lines, outages)


async def _some_more_runs(on: Bench, runs: int = 20) -> None:
    """Wait for this many more successes, which show that the store works again."""

    def ended() -> int:
        return sum(line.note == "end" for line in on.journal())

    wanted = ended() + runs
    await until(lambda: ended() >= wanted, what=f"recovery; {on.sender.answers}")


def _check_order(on: Bench, lines: Sequence[Line], outages: Sequence[Span]) -> None:
    """Check that no older event runs after a newer success, and that runs of a key never overlap.

    An outage excuses both faults. But within one process, an older event must never ask for its key
    lock after a newer event has succeeded there.
    """
    by_key: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for (event_id, handler), runs in runs_of(lines).items():
        by_key[handler, key_of(event_id)] += runs
    late = met = in_outage = 0
    for (handler, _), runs in by_key.items():
        runs.sort(key=lambda run: run.began)
        in_outage += sum(_succeeded_in(run, outages) for run in runs)
        for earlier, later in combinations(runs, 2):
            if earlier.ended is None or later.began < earlier.ended:
                met += 1
            elif handler == "latest" and later.event_id < earlier.event_id:
                late += 1
                is_known = earlier.pid == later.pid and _asked_at(later, lines) > earlier.ended
                on.check(not is_known, f"{later} asked for its key when {earlier} had succeeded")
            else:
                continue
            is_excused = any(begin < later.began and earlier.began < end for begin, end in outages)
            on.check(is_excused, f"{later} came after {earlier}, and there was no outage")
    on.check(in_outage, "no handler succeeded in an outage")
    on.figures.remark = f"{in_outage} successes in outages; {late} late, {met} beside another"


def _succeeded_in(run: Run, outages: Sequence[Span]) -> bool:
    return any(run.ended is not None and begin < run.ended < end for begin, end in outages)


def _asked_at(run: Run, lines: Sequence[Line]) -> int:
    """Return the time of the last request for the event's key lock before a run began."""
    return max(
        line.at
        for line in lines
        if (line.note, line.pid, line.event_id) == ("ask", run.pid, run.event_id)
        and line.at < run.began
    )
