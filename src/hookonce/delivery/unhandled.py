"""The reasons why no handler of this process runs for an event."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ..errors import PayloadError
from ..outcome import Outcome


class Unreadable(NamedTuple):
    """The delivery is genuine, but cannot be read; ``error`` says why. Its type is unknown."""

    error: PayloadError
    type: None = None

    @property
    def fault(self) -> str:
        """Why the delivery cannot be read, as text for an operator."""
        return str(self.error)


class Ignored(NamedTuple):
    """This process has no handler for the event.

    Attributes:
        outcome: the answer if no other process has a handler for the event, either.
    """

    outcome: Outcome


Unhandled: TypeAlias = Unreadable | Ignored
"""Why no handler of this process runs."""
