"""The cost of an import, beside a bare interpreter and beside other packages."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

from .measuring import Result, spread

__all__ = ["imports"]

_ROUNDS, _QUICK_ROUNDS = 15, 3
_STATEMENTS = {
    "nothing": "pass",
    "hookonce.verification.signature": "import hookonce.verification.signature",
    "hookonce": "import hookonce",
    "standardwebhooks": "import standardwebhooks",
    "pydantic.BaseModel": "from pydantic import BaseModel",
    "starlette.applications": "import starlette.applications",
}


def imports(*, is_quick: bool) -> list[Result]:
    """Return the processor time of an interpreter that imports something and ends."""
    times: dict[str, list[float]] = {name: [] for name in _STATEMENTS}
    for statement in _STATEMENTS.values():
        _milliseconds(statement)  # the first run compiles modules and fills the system's cache
    for _ in range(_QUICK_ROUNDS if is_quick else _ROUNDS):
        for name, statement in _STATEMENTS.items():
            times[name].append(_milliseconds(statement))
    return [
        Result(
            "an interpreter that imports",
            name,
            statistics.median(own),
            "ms",
            spread(own),
            statistics.median(a / b for a, b in zip(own, times["nothing"], strict=True)),
        )
        for name, own in times.items()
    ]


def _milliseconds(statement: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000
