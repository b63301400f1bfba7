"""Plants every fault, and prints for each the step that names its cause."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import pytest

from .walk import rows, walk

__all__ = ["main"]

_ROW = "{:40} {:62} {:24} {}"


def main(arguments: Sequence[str]) -> int:
    """Plant the requested faults; return 1 if no step names the cause of one of the faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.operations.planted")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose names have it")
    parser.add_argument("--said", action="store_true", help="print what each step said")
    asked = parser.parse_args(arguments)
    out = sys.stdout
    print(_ROW.format("fault", "what is seen first", "step", "the cause, as it says it"), file=out)
    is_missed = False
    for row in rows():
        if asked.only not in row.fault:
            continue
        try:
            walked = walk(row)
        except pytest.skip.Exception as skipped:
            print(_ROW.format(row.fault, row.seen, "left out", skipped), file=out, flush=True)
            continue
        print(
            _ROW.format(row.fault, row.seen, walked.step or "none", row.cause), file=out, flush=True
        )
        for name, text in walked.said.items() if asked.said else ():
            print(f"--- {name}\n{text}", file=out)
        is_missed |= walked.step != row.steps[-1]
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
