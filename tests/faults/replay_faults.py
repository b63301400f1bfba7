"""Processes that replay handled events are killed; each replay has its effect exactly once."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from hookonce import Receiver
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.stores.handled import HandledEvent
from hookonce.stores.replays import ReplayBatch

from .bench import Bench, Figures, bench
from .replaying import HANDLER, TABLES

__all__ = ["replays"]

# The last batch replays every event of the scenario.
_BATCH_SECONDS = 600.0


async def replays(figures: Figures, here: Path, store: str, *, seed: int, count: int) -> None:
    """Kill web processes and processes that replay, and start them again at once.

    The handler "book" runs for each event within a ledger. Two processes replay it for all events
    that were handled before, one batch after the other, like two operators who run
    ``hookonce handled replay`` again and again. New deliveries arrive all the time.
    """
    ledger = here / "ledger.db"
    SQLiteLedger(ledger).create_table()
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(TABLES)
    async with bench(
        figures,
        here,
        store,
        seed,
        webs=2,
        workers=0,
        replayers=2,
        failing=0.05,
        inbox=False,
        handlers=1,
        lease_seconds=1.5,
        ledger=str(ledger),
    ) as on:
        on.statuses.add(0)  # 0: no answer, because the web process was killed
        async with on.load(lanes=8):
            await on.fleet.kill_at_random(count, on.chance)
        await on.fleet.dismiss("replay", _BATCH_SECONDS)
    with closing(sqlite3.connect(ledger)) as connection:
        booked = Counter(connection.execute("SELECT event_id, generation FROM booked"))
        batches = dict(connection.execute("SELECT generation, started_at FROM batches"))
    _judge(on, booked, batches, *await _stored(on))


async def _stored(on: Bench) -> tuple[list[HandledEvent], ReplayBatch]:
    """Return the handled events that the store keeps, and its last batch of replays."""
    receiver = Receiver(
        secrets=on.settings.secret, store=on.settings.store, keep_handled=timedelta(hours=1)
    )
    async with receiver:
        kept: list[HandledEvent] = []
        after = None
        while page := await receiver.handled.list(after=after, limit=500):
            kept += page
            after = page[-1].place
        [last] = await receiver.handled.batches()
    return kept, last


def _judge(
    on: Bench,
    booked: Counter[tuple[str, int]],
    batches: dict[int, float],
    kept: list[HandledEvent],
    last: ReplayBatch,
) -> None:
    """Check that each batch has had one effect for each event that was handled before the batch
    began.
    """
    figures = on.figures
    expected = {(event_id, 0) for event_id in on.sender.acknowledged}
    for event in kept:
        on.check(HANDLER in event.finished, f"not finished: {event.delivery.event_id}")
        expected |= {
            (event.delivery.event_id, generation)
            for generation, started in batches.items()
            if event.handled_unix < started
        }
    lost, twice = expected - booked.keys(), [one for one, times in booked.items() if times > 1]
    figures.lost += len(lost)
    figures.unexplained += len(twice)
    figures.violations += [f"not booked in generation {g}: {one}" for one, g in sorted(lost)]
    figures.violations += [f"booked twice in generation {g}: {one}" for one, g in twice]
    figures.violations += [
        f"booked in generation {g}, which does not select it: {one}"
        for one, g in sorted(booked.keys() - expected)
    ]
    unkept = on.sender.acknowledged - {event.delivery.event_id for event in kept}
    figures.violations += [f"acknowledged and not kept: {one}" for one in sorted(unkept)]
    on.check(last.finished_at, f"generation {last.generation} is not finished")
    on.check(
        sorted(batches) == list(range(1, last.generation + 1)),
        f"generations: {sorted(batches)}, and the last is {last.generation}",
    )
    again = sum(generation > 0 for _, generation in booked)
    on.check(again, "nothing was replayed")
    figures.remark = f"{again} replays in {len(batches)} batches"
