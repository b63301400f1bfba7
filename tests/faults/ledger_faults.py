"""The driver's connection fails inside a ledger; each acknowledged effect exists exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from effects.benches import TABLE
from support.postgres import postgres_server

from hookonce.effects import create_sql

from .bench import Figures, bench
from .booking import LEDGERS

__all__ = ["driver_faults"]

_RESTARTS = 0.2
"""The probability that a fault restarts the server; all other faults cut connections off."""


async def driver_faults(
    figures: Figures, here: Path, *, seed: int, count: int, inbox: bool
) -> None:
    """Break transactions on the driver's connection; with an inbox, also end all connections.

    Each event is booked within every ledger on PostgreSQL. Some attempts break their
    transaction below the ledger and return as if nothing had happened: by a failed statement or
    COPY whose error they swallow, by ROLLBACK and BEGIN, by a connection that is cut or closed.
    """
    with postgres_server(max_connections="200") as server:
        for statement in (*create_sql("postgresql").split(";\n")[:-1], TABLE):
            server.execute(statement)
        async with bench(
            figures,
            here,
            f"sqlite:///{here}/hooks.db",
            seed,
            webs=1 if inbox else 2,
            workers=2 if inbox else 0,
            inbox=inbox,
            lease_seconds=30.0,
            concurrency=4,
            backoff_seconds=0.1,
            database=server.url,
        ) as on:
            on.statuses.add(500)
            async with on.load(lanes=4):
                for _ in range(count):
                    await asyncio.sleep(on.chance.uniform(0.1, 0.5))
                    # Without an inbox, these faults would make events fail so often that they
                    # become dead letters.
                    if inbox:
                        is_restart = on.chance.random() < _RESTARTS
                        fault = server.restart if is_restart else server.terminate_backends
                        await asyncio.to_thread(fault)
                        figures.faults += 1
        booked = Counter(key for (key,) in server.execute("SELECT key FROM done"))
    figures.again["failed"] = sum(line.note == "fail" for line in on.journal())
    expected = {f"{event_id} {name}" for event_id in on.sender.acknowledged for name in LEDGERS}
    lost, twice = expected - booked.keys(), [key for key, times in booked.items() if times > 1]
    figures.lost += len({key.partition(" ")[0] for key in lost})
    figures.unexplained += len(twice)
    figures.violations += [f"acknowledged and not booked: {key}" for key in sorted(lost)]
    figures.violations += [f"booked twice: {key}" for key in twice]
    figures.violations += [f"not asked for: {key}" for key in booked.keys() - expected]
