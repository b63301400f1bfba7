"""A log of handler calls: the handler, the event, and how the call ended."""

from __future__ import annotations

import sysconfig
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path

from ..errors import shows_half_built
from .faults import Fault

_PACKAGE = Path(__file__).parents[1]
_FOREIGN = tuple(
    {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")} | {_PACKAGE}
)


class CallOutcome(StrEnum):
    """The result of a handler's call."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    RETRY_REQUESTED = "retry_requested"
    TOO_LATE = "too_late"
    """A database ledger skipped the handler's code, because a newer event had succeeded."""
    CANCELLED = "cancelled"
    """A shutdown or a time limit cancelled the call."""


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """A call of a handler for an event.

    Attributes:
        number: counts the calls of this handler for this event, from 1, in the order of their
            starts.
        started_unix: virtual Unix seconds.
        ended_unix: virtual Unix seconds.
        failure_injected: whether the call ended with an injected error.
        error: the error that the handler's own code raised, with its line; or None.
        start_order: the position of the start among the starts and ends of all calls.
        end_order: the position of the end among the starts and ends of all calls.
    """

    event_id: str
    handler: str
    number: int
    started_unix: float
    ended_unix: float
    outcome: CallOutcome
    fault: Fault | None
    failure_injected: bool
    error: str | None = None
    start_order: int = 0
    end_order: int = 0


@shows_half_built
class CallLog:
    """All calls of handlers, in the order in which they ended."""

    def __init__(self) -> None:
        self._calls: list[HandlerCall] = []
        self._started: Counter[tuple[str, str]] = Counter()
        self._positions = count()

    def __repr__(self) -> str:
        return f"CallLog({len(self._calls)} calls)"

    def start(self, event_id: str, handler: str) -> int:
        """Count the start of a call, and return the call's number."""
        self._started[event_id, handler] += 1
        return self._started[event_id, handler]

    def next_position(self) -> int:
        """Return the next position in the order of all starts and ends of calls.

        Times do not give this order: many calls start and end at the same virtual time.
        """
        return next(self._positions)

    def record(self, call: HandlerCall) -> None:
        """Add a call that has ended."""
        self._calls.append(call)

    @property
    def calls(self) -> Sequence[HandlerCall]:
        """The calls that have ended."""
        return tuple(self._calls)

    @property
    def in_progress(self) -> int:
        """The number of calls that have started and not ended."""
        return self._started.total() - len(self._calls)

    def successes(self) -> Mapping[tuple[str, str], int]:
        """Return the number of successful calls for each pair of event id and handler name.

        The mapping is a ``Counter``: a pair without a success has no key, and reads as 0.
        """
        return Counter(
            (call.event_id, call.handler)
            for call in self._calls
            if call.outcome is CallOutcome.SUCCEEDED
        )


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback that run the user's own code."""
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
        and not any(Path(frame.filename).is_relative_to(folder) for folder in _FOREIGN)
    ]


def error_with_line(error: BaseException) -> str:
    """Return an error's class and message, with the line of the user's own code that raised it."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"SyntaxError: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    text = "".join(traceback.format_exception_only(error)).splitlines()[0]
    frames = own_frames(error)
    if not frames:
        return text
    last = frames[-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno}: {last.line})"
