"""Warns if events need handlers that this process does not have."""

from __future__ import annotations

import time
from collections.abc import Collection

from ..senders import Rules


def absence_text(names: Collection[str]) -> str:
    """Return the warning for an operator, as "problem; fix"."""
    handlers, them = ("handler", "it") if len(names) == 1 else ("handlers", "them")
    return (
        f"waits for the {handlers} {', '.join(sorted(names))}, which this process does not have;"
        f" after a deployment, import the module that registers {them}, or roll back"
    )


class AbsentHandlers:
    """Remembers the last event that needed handlers which this process does not have.

    Args:
        rules: the rules by which the sender delivers. The warning stays for the longest wait
            between two attempts at an event, or for the whole span if the sender publishes no
            schedule.
    """

    def __init__(self, rules: Rules) -> None:
        self._recent_seconds = max(rules.retry_seconds or (rules.span_seconds,))
        self._last: tuple[str, float] | None = None

    def note(self, event: str, names: Collection[str]) -> None:
        """Remember an event, and the names of the absent handlers that the event needs."""
        self._last = f"{event} {absence_text(names)}", time.monotonic()

    def warnings(self) -> tuple[str, ...]:
        """Return a warning if an event has needed an absent handler within the last hours."""
        if self._last is None or time.monotonic() - self._last[1] > self._recent_seconds:
            return ()
        return (self._last[0],)
