"""What is examined: a receiver, the application it is in, and the path it answers at there."""

from __future__ import annotations

from dataclasses import dataclass

from ...http.app import ASGIApp
from ...receiver import Receiver


@dataclass(frozen=True, slots=True)
class Subject:
    """A receiver as it is examined.

    Attributes:
        receiver: the receiver; it must not be in use in this process.
        app: the application that has it; the receiver itself, where none is known.
        path: where it answers there, as the application's routes spell it.

    """

    receiver: Receiver
    app: ASGIApp
    path: str

    @property
    def is_alone(self) -> bool:
        """Whether the receiver is its own application."""
        return self.app is self.receiver
