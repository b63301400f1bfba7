"""The operator's steps at night, and the first step that completes the cause and the remedy."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from documents.reading import GUIDE

from .deployment import Deployment
from .faults import COMMANDS, FAULTS

__all__ = ["Row", "Walk", "rows", "walk"]

_SECTION = "## Look up a fault of the deployment"


@dataclass(frozen=True, slots=True)
class Row:
    """A fault as a row of the guide's table.

    Attributes:
        fault: its name.
        seen: what somebody sees first.
        steps: the operator's steps to the cause, at most two.
        cause: the words that name the cause; an ellipsis stands for any text.
        remedy: the words that say what to do.
    """

    fault: str
    seen: str
    steps: tuple[str, ...]
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Walk:
    """The output of each step that the operator took.

    Attributes:
        said: what each step said, in order.
        step: the step after which cause and remedy were known; None if they never were.
        is_served: whether a server was running for the doctor to examine.
    """

    said: dict[str, str]
    step: str | None
    is_served: bool


@cache
def rows() -> tuple[Row, ...]:
    """Return the rows of the guide's table of faults."""
    page = (GUIDE / "troubleshooting.md").read_text("utf-8")
    table = page.partition(_SECTION)[2].partition("\n## ")[0]
    found = []
    for line in re.findall(r"^\| (.*) \|$", table, re.MULTILINE)[1:]:
        fault, seen, steps, cause, remedy = line.split(" | ")
        found.append(Row(fault, seen, tuple(steps.split(", then ")), cause[1:-1], remedy[1:-1]))
    return tuple(found)


def walk(row: Row) -> Walk:
    """Plant a fault, and take the operator's steps: log, doctor, and the command in the guide."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        Path(folder).chmod(0o755)  # readable if the service runs as another user
        deployment = Deployment(Path(folder))
        with deployment.ending:
            FAULTS[row.fault](deployment)
            steps: dict[str, Callable[[], str]] = {
                "log": deployment.log,
                "doctor": deployment.doctor,
                **{
                    name: partial(deployment.command, *command)
                    for name, command in COMMANDS.items()
                    if name in row.steps
                },
            }
            said = {name: step() for name, step in steps.items()}
    return Walk(said, _decisive(row, said), bool(deployment.url))


def _decisive(row: Row, said: dict[str, str]) -> str | None:
    """Return the first step after which the operator knows both cause and remedy."""
    known = ""
    for step, text in said.items():
        known += f"{text}\n"
        if _names(known, row.cause) and _names(known, row.remedy):
            return step
    return None


def _names(text: str, words: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in words.split("…"))
    return re.search(pattern, " ".join(text.split())) is not None
