"""Runs rounds of kills, with and without ledgers; fails if an effect is missing or double."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from support.postgres import postgres_server

from .benches import ON_POSTGRES, ON_SQLITE
from .kills import Figures, How, kills

__all__ = ["main"]

_ROW = "{:28} {:8} {:>7} {:>6} {:>6} {:>9} {:>6} {:>6} {:>8} {:>6} {:>8}"
_HEADINGS = (
    *("ledger", "handler", "events", "kills", "cuts", "restarts"),
    *("lost", "twice", "strange", "late", "seconds"),
)


def main(arguments: Sequence[str]) -> int:
    """Run the rounds that the arguments select, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.effects",
        description="Kills a worker by SIGKILL, cuts its connections off, and stops the database"
        " server as in a crash, at random moments, until all events are handled. Within a ledger"
        " each effect must be there once; with latest_by, none after a newer one of its channel."
        " Alone, a handler commits itself, and leaves doubles.",
    )
    parser.add_argument("--events", type=int, default=2000, help="for each ledger")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only", default="", metavar="TEXT", help="part of the ledgers' names")
    parser.add_argument("--how", type=How, choices=list(How), help="only this one of four")
    asked = parser.parse_args(arguments)
    names = [name for name in (*ON_POSTGRES, *ON_SQLITE) if asked.only in name]
    _say(f"seed {asked.seed}")
    _say(_ROW.format(*_HEADINGS))
    is_well = bool(names)
    with postgres_server() as postgres:
        for name in names:
            for how in [asked.how] if asked.how else How:
                if how is How.SHARED and name in ON_SQLITE:
                    continue  # a SQLite ledger must not be in the store's file
                postgres.clear()
                with tempfile.TemporaryDirectory() as folder:
                    figures = asyncio.run(
                        kills(
                            name,
                            Path(folder),
                            events=asked.events,
                            how=how,
                            seed=asked.seed,
                            postgres=postgres,
                        )
                    )
                _say(_row(figures))
                is_well &= not (figures.lost or figures.strange)
                is_well &= bool(figures.twice) is (how is How.ALONE)
                is_well &= how is not How.LATEST or not figures.late
    return int(not is_well)


def _row(figures: Figures) -> str:
    faults = figures.faults
    return _ROW.format(
        *(figures.ledger, figures.how, figures.events),
        *(faults["kill"], faults["cut"], faults["restart"]),
        *(figures.lost, figures.twice, figures.strange, figures.late, f"{figures.seconds:.1f}"),
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
