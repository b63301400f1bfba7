"""Runs the scenarios one after the other and prints a table; fails after a violation."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TextIO

from .bench import Figures
from .releases import OLD_RELEASE
from .suite import SCENARIOS, Scenario, UnavailableError

__all__ = ["main"]

_ROW = "{:38} {:>8} {:>10} {:>6} {:>7} {:>7} {:>6} {:>6} {:>5} {:>12} {:>8}  {}"
_HEADINGS = (
    *("scenario", "events", "deliveries", "kills", "faults"),
    *("killed", "stall", "failed", "lost", "unexplained", "seconds", "remark"),
)
_SHOWN = 10


def main(arguments: Sequence[str]) -> int:
    """Run the requested scenarios, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Runs of a handler beyond its first are counted by what explains them: the"
        " process of the run before was killed, stalled past its lease, or the handler failed.",
    )
    parser.add_argument("--full", action="store_true", help="the size for a release: about an hour")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only", default="", metavar="TEXT", help="scenarios whose names have it")
    parser.add_argument(
        "--old", metavar="WHEEL_OR_COMMIT", help="the old version of 'versions side by side'"
    )
    asked = parser.parse_args(arguments)
    # Clean up after SIGTERM as after Ctrl-C: leave no server and no mounted disk.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    if asked.old:
        os.environ[OLD_RELEASE] = asked.old
    chosen = [scenario for scenario in SCENARIOS if asked.only in scenario.name]
    out = sys.stdout
    print(f"seed {asked.seed}", file=out)
    print(_ROW.format(*_HEADINGS), file=out, flush=True)
    results = [_run(scenario, out, is_full=asked.full, seed=asked.seed) for scenario in chosen]
    measured = [figures for figures in results if figures is not None]
    total = Figures("together")
    for figures in measured:
        for name in ("events", "deliveries", "kills", "faults", "lost", "unexplained", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(figures, name))
        total.again.update(figures.again)
    _print(total, out)
    return int(any(figures.violations for figures in measured) or not measured)


def _run(scenario: Scenario, out: TextIO, *, is_full: bool, seed: int) -> Figures | None:
    try:
        figures = asyncio.run(scenario.measure(is_full=is_full, seed=seed))
    except UnavailableError as error:
        print(f"{scenario.name:38} left out: {error}", file=out, flush=True)
        return None
    except Exception as error:  # noqa: BLE001 - all other scenarios must still run
        traceback.print_exc()
        figures = Figures(scenario.name, violations=[f"it broke off: {error!r}"])
    _print(figures, out)
    return figures


def _print(figures: Figures, out: TextIO) -> None:
    again = figures.again
    row = (
        *(figures.scenario, figures.events, figures.deliveries, figures.kills, figures.faults),
        *(again["killed"], again["stalled"], again["failed"], figures.lost, figures.unexplained),
        *(f"{figures.seconds:.1f}", figures.remark),
    )
    print(_ROW.format(*row), file=out, flush=True)
    for violation in figures.violations[:_SHOWN]:
        print(f"    VIOLATION {violation}", file=out, flush=True)
    if len(figures.violations) > _SHOWN:
        print(f"    and {len(figures.violations) - _SHOWN} more", file=out, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
