"""Warns if no genuine delivery can be read: the configured sender or envelope may be wrong.

The sender does not deliver an unreadable event again, because the receiver accepts it. So only this
warning, the log and the dead letters show that no handler runs.
"""

from __future__ import annotations

from typing import NamedTuple

from ..clock import Clock, moment_text
from ..logs import printable
from .records import DeliveryAnswered
from .refusals import DOCTOR_ID

MANY_UNREADABLE = 2
"""A receiver warns after this many unreadable deliveries without a readable one. Only the sender
can cause them, so a few are enough."""

_FIX = (
    "correct the receiver's sender, its envelope or the event class, then run `hookonce dead replay"
    " MODULE:RECEIVER --reason unreadable --all`"
)


class UnreadableDeliveries(NamedTuple):
    """The genuine deliveries that could not be read since the last readable one.

    Attributes:
        since_unix: when the first of them arrived, in Unix seconds.
        deliveries: their number.
        field: the path of the field that is missing or wrong in the last body; None if the fault is
            not in one field.
        fault: why the last body could not be read; names no value of the body.
    """

    since_unix: float
    deliveries: int
    field: str | None
    fault: str

    @property
    def warning(self) -> str:
        """The warning for an operator, as "problem; fix"."""
        if self.field is None:
            what = "the last of them could not be read"
        else:
            what = f"the field {printable(self.field)} of the last of them is missing or wrong"
        return (
            f"the last {self.deliveries} deliveries since {moment_text(self.since_unix)} were"
            f" genuine and unreadable, so no handler ran: {what}: {printable(self.fault)}; {_FIX}"
        )


class UnreadableWatch:
    """Counts the unreadable deliveries since the last readable one, in this process.

    Backfills and the doctor's tests do not count, because the sender did not send them.

    Args:
        clock: Unix time in seconds.

    Attributes:
        current: the unreadable deliveries since the last readable one; None after a readable one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.current: UnreadableDeliveries | None = None

    def note(self, record: DeliveryAnswered) -> None:
        """Count an unreadable delivery; a readable delivery of the sender resets the count."""
        verified, received, error = record.verified, record.received, record.unreadable
        if verified is None or verified.id.startswith(DOCTOR_ID):
            return
        if received is not None and received.is_backfill:
            return
        if error is not None:
            since, deliveries, *_ = self.current or (self._clock(), 0)
            self.current = UnreadableDeliveries(since, deliveries + 1, error.field, str(error))
        elif record.event_type is not None:
            self.current = None

    def warnings(self) -> tuple[str, ...]:
        """Return the warning if the last deliveries, at least two, were all unreadable."""
        if self.current is None or self.current.deliveries < MANY_UNREADABLE:
            return ()
        return (self.current.warning,)
