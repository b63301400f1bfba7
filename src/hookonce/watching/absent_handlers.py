"""Warns of handlers that events need, and that this process does not have."""

from __future__ import annotations

import time
from collections.abc import Collection

from ..sender import RETRY_SECONDS

_RECENT_SECONDS = RETRY_SECONDS[-1]
"""How long the warning stays: the longest pause of the sender between two attempts at an event."""


def absence_text(names: Collection[str]) -> str:
    """Return the warning for an operator, as "problem; fix"."""
    handlers, them = ("handler", "it") if len(names) == 1 else ("handlers", "them")
    return (
        f"waits for the {handlers} {', '.join(sorted(names))}, which this process does not have;"
        f" after a deployment, import the module that registers {them}, or roll back"
    )


class AbsentHandlers:
    """Remembers the last event that needed handlers which this process does not have."""

    def __init__(self) -> None:
        self._last: tuple[str, float] | None = None

    def note(self, event: str, names: Collection[str]) -> None:
        """Remember an event, and the names of the handlers that it needs."""
        self._last = f"{event} {absence_text(names)}", time.monotonic()

    def warnings(self) -> tuple[str, ...]:
        """Return a warning if such an event was delivered, or fetched, in the last hours."""
        if self._last is None or time.monotonic() - self._last[1] > _RECENT_SECONDS:
            return ()
        return (self._last[0],)
