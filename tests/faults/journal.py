"""The processes' journal of handler runs, and a check of it for lost and repeated events.

Every process appends lines to a file of its own: when each handler's run began, how it ended, and
when the store had recorded the event as done. A handler with a key also notes when its process
asked the store for the key. Each line is one ``write``, so a kill cannot cut a line.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias, get_args

__all__ = [
    "Line",
    "Note",
    "Run",
    "Span",
    "Verdict",
    "Writer",
    "judge",
    "now_ns",
    "read_journal",
    "runs_of",
]

Note: TypeAlias = Literal["ask", "begin", "end", "fail", "done"]
Span: TypeAlias = tuple[int, int]
"""The begin and the end of a kill, or of a stop, of a process."""


def now_ns() -> int:
    """Return the time of a clock that all processes share, and that nobody can set."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the journal: what happened to an event in a process, and when."""

    at: int
    pid: int
    note: Note
    event_id: str
    handler: str
    attempt: int


class Writer:
    """Appends lines to this process's own file."""

    def __init__(self, folder: Path) -> None:
        self._pid = os.getpid()
        path = folder / f"{self._pid}.{now_ns()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, note: Note, event_id: str, handler: str, attempt: int) -> None:
        """Append a line with the current time."""
        line = f"{now_ns()} {self._pid} {note} {event_id} {handler} {attempt}\n"
        os.write(self._file, line.encode())


def read_journal(folder: Path) -> list[Line]:
    """Return the lines of all processes, in the order of their times."""
    lines = []
    for path in folder.iterdir():
        for text in path.read_text().splitlines():
            at, pid, note, event_id, handler, attempt = text.split(" ")
            assert note in get_args(Note)
            lines.append(
                Line(int(at), int(pid), note, event_id, handler, int(attempt))  # type: ignore[arg-type]  # `note` is one of the literals
            )
    lines.sort(key=lambda line: line.at)
    return lines


@dataclass(slots=True)
class Run:
    """One run of one handler for one event."""

    event_id: str
    handler: str
    pid: int
    attempt: int
    began: int
    ended: int | None = None
    failed: int | None = None


@dataclass
class Verdict:
    """The lost events and the repeated runs that a journal shows.

    Attributes:
        events: the number of acknowledged events.
        lost: the acknowledged events that some handler has not handled.
        again: the number of repeated runs of handlers, by their reason.
        unexplained: the repeated runs without a reason, each as a sentence.

    """

    events: int
    lost: list[str]
    again: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)


def runs_of(lines: Iterable[Line]) -> dict[tuple[str, str], list[Run]]:
    """Return the runs of each event and handler, in the order in which they began."""
    runs: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for line in lines:
        of_handler = runs[line.event_id, line.handler]
        if line.note == "begin":
            of_handler.append(Run(line.event_id, line.handler, line.pid, line.attempt, line.at))
        elif line.note in {"end", "fail"}:
            run = next(
                r
                for r in of_handler
                if (r.pid, r.attempt, r.ended, r.failed) == (line.pid, line.attempt, None, None)
            )
            if line.note == "end":
                run.ended = line.at
            else:
                run.failed = line.at
    return {key: of_handler for key, of_handler in runs.items() if of_handler}


def judge(
    lines: Sequence[Line],
    acknowledged: Iterable[str],
    handlers: Sequence[str],
    *,
    kills: Mapping[int, Sequence[Span]] = {},
    stalls: Mapping[int, Sequence[Span]] = {},
    has_lock: bool = False,
    wait_ns: int = 0,
) -> Verdict:
    """Return the lost events, and the events that ran again without a reason.

    Args:
        lines: the journal.
        acknowledged: the events that were answered 2xx.
        handlers: the names of the handlers that must handle each of these events.
        kills: the times at which processes were killed, by their ids.
        stalls: the times during which processes were stopped, by their ids.
        has_lock: whether a process that is stopped within a transaction keeps all other processes
            from writing. With SQLite it does.
        wait_ns: the longest wait for a key between the claim and the start of a run. A run that
            starts this long after the event's record needs no further reason.

    """
    runs = runs_of(lines)
    acknowledged = set(acknowledged)
    done: dict[str, int] = {}
    for line in lines:
        if line.note == "done":
            done.setdefault(line.event_id, line.at)
    verdict = Verdict(
        len(acknowledged),
        sorted(
            event_id
            for event_id in acknowledged
            if any(
                all(run.ended is None for run in runs.get((event_id, handler), []))
                for handler in handlers
            )
        ),
    )
    for (event_id, _), of_handler in runs.items():
        for earlier, later in pairwise(of_handler):
            recorded = done.get(event_id)
            known = None if recorded is None else recorded + wait_ns
            reason = _reason(earlier, later, known, kills, stalls, has_lock)
            if reason is not None:
                verdict.again[reason] += 1
            else:
                verdict.unexplained.append(_describe(earlier, later, done.get(event_id)))
    return verdict


def _reason(
    earlier: Run,
    later: Run,
    done: int | None,
    kills: Mapping[int, Sequence[Span]],
    stalls: Mapping[int, Sequence[Span]],
    has_lock: bool,
) -> str | None:
    # The later run has the older claim: its process was stopped between the claim and the start of
    # the handlers. A check of the clock cannot prevent this run, because the process may be stopped
    # right after the check.
    if (
        earlier.pid != later.pid
        and later.attempt < earlier.attempt
        and any(begin <= later.began for begin, _ in stalls.get(later.pid, ()))
    ):
        return "stalled"
    if done is not None and done < later.began:
        return None  # not excused: the store had recorded the event as done
    if earlier.failed is not None and earlier.failed < later.began:
        return "failed"
    if _lies_between(kills.get(earlier.pid, ()), earlier, later):
        return "killed"
    if earlier.pid == later.pid:
        return None  # not excused: a process knows its own runs
    standing = [earlier.pid, *(stalls if has_lock else ())]
    if any(_lies_between(stalls.get(pid, ()), earlier, later) for pid in standing):
        return "stalled"
    return None


def _lies_between(spans: Sequence[Span], earlier: Run, later: Run) -> bool:
    return any(earlier.began <= end and begin <= later.began for begin, end in spans)


def _describe(earlier: Run, later: Run, done: int | None) -> str:
    def after(at: int | None) -> str:
        return "never" if at is None else f"after {(at - earlier.began) / 1e9:.3f} s"

    return (
        f"{earlier.handler} of {earlier.event_id} began in {earlier.pid} (attempt"
        f" {earlier.attempt}), ended {after(earlier.ended)}, failed {after(earlier.failed)},"
        f" was recorded {after(done)}, and began again in {later.pid} (attempt {later.attempt})"
        f" {after(later.began)}"
    )
