"""Runs the selected parts one after the other, and prints a table for each part."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import (
    drivers,
    effects,
    handling,
    intake,
    keeping,
    memory,
    operation,
    postgres,
    processes,
    pruning,
    scale,
    unwrap,
    verify,
    workers,
)
from .measuring import Part, as_json, machine, print_results
from .plot import plot

__all__ = ["PARTS", "main"]

PARTS: Sequence[Part] = (
    verify.PART,
    unwrap.PART,
    handling.PART,
    effects.PART,
    intake.PART,
    keeping.PART,
    processes.PART,
    operation.PART,
    memory.PART,
    workers.PART,
    *postgres.PARTS,
    pruning.PART,
    drivers.PART,
    scale.PART,
)

_STORES = ("memory", "SQLite", "Redis", "PostgreSQL")


def main(arguments: Sequence[str]) -> int:
    """Measure the selected parts, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Targets are ratios within one run, so that no machine's speed enters them;"
        " a missed one is shown and is no failure: clocks are noisy.",
    )
    known = {part.name: part for part in PARTS}
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"all by default: {', '.join(known)}"
    )
    parser.add_argument("--quick", action="store_true", help="seconds, and rough")
    parser.add_argument(
        "--store", choices=_STORES, help="only the subjects of one store, in parts that can do that"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the intake there, as SVG")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.parts if name not in known]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(known)}")
    if asked.plot and asked.store:
        parser.error("--plot draws all stores, and --store measures one")
    if asked.plot and asked.parts and intake.PART.name not in asked.parts:
        parser.error(f"--plot draws the part {intake.PART.name}, which is not asked for")
    of_stores = [name for name, part in known.items() if part.of_store is not None]
    if asked.store and not {*asked.parts} <= {*of_stores}:
        parser.error(f"--store is an option of {', '.join(of_stores)}")
    asked.parts = asked.parts or (of_stores if asked.store else [])
    chosen = [part for part in PARTS if not asked.parts or part.name in asked.parts]
    facts = machine()
    for name, fact in facts.items():
        print(f"{name:12} {fact}")
    results = {}
    for part in chosen:
        print(f"\n{part.name}: {part.summary}", flush=True)
        if asked.store and part.of_store is not None:
            results[part.name] = part.of_store(asked.quick, asked.store)
        else:
            results[part.name] = part.run(asked.quick)
        print_results(results[part.name])
    if asked.json:
        asked.json.write_text(as_json(facts, results), encoding="utf-8")
    if asked.plot and results.get(intake.PART.name):
        asked.plot.write_text(plot(results[intake.PART.name]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
