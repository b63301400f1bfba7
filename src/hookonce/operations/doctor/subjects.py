"""The subject of the doctor's checks: a receiver, and the application that contains it."""

from __future__ import annotations

from dataclasses import dataclass

from ...http.app import ASGIApp
from ...receiver import Receiver
from ...receiver.mounted import receivers_in


@dataclass(frozen=True, slots=True)
class Subject:
    """A receiver to examine.

    Attributes:
        receiver: the receiver; it must not be in use in this process.
        app: the application that contains it; the receiver itself if no application is known.
        path: the path of its route in that application.
        name: the name by which commands find it.
    """

    receiver: Receiver
    app: ASGIApp
    path: str
    name: str = "MODULE:RECEIVER"

    @property
    def is_alone(self) -> bool:
        """Whether the receiver is the application itself, without a framework."""
        return self.app is self.receiver


def subjects_in(app: ASGIApp) -> tuple[Subject, ...]:
    """Return each receiver in an application once, with the path of its first route.

    Args:
        app: a receiver, or an application that contains receivers.
    """
    return tuple(Subject(one.receiver, app, one.path) for one in receivers_in(app))
