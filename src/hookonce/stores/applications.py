"""The applications that receive under an endpoint, registered in its store.

An event that one application has handled is a duplicate for another, so two different applications
must not share an endpoint. One application changes over time: a deployment changes its handlers and
a rotation its secrets, but never all handlers and all secrets at once.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

REMEMBERED_SECONDS = 7 * 86_400.0
"""How long a registration counts; some applications register only when they start."""

MOST_REMEMBERED = 50
"""The largest number of applications per endpoint; the store forgets the oldest registrations."""


@dataclass(frozen=True, slots=True)
class Application:
    """The handlers and secrets of an application that receives under an endpoint.

    Attributes:
        handlers: the names of its handlers.
        marks: a fingerprint of each of its secrets, which shows only whether two are the same.
        seen_unix: when it last registered, in Unix seconds.
    """

    handlers: frozenset[str]
    marks: frozenset[str]
    seen_unix: float = field(default=0.0, compare=False)

    def dump(self) -> str:
        """Return the application as text; equal applications give equal text."""
        return json.dumps([sorted(self.handlers), sorted(self.marks)])

    @classmethod
    def load(cls, text: str | bytes, seen_unix: float) -> Self:
        """Return the application from the text of ``dump``."""
        handlers, marks = json.loads(text)
        return cls(frozenset(handlers), frozenset(marks), seen_unix)

    def shares(self, other: Application) -> bool:
        """Return whether two applications have a handler or a secret in common."""
        return not (self.handlers.isdisjoint(other.handlers) and self.marks.isdisjoint(other.marks))

    def describe(self) -> str:
        """Describe the application in a message: name its first handler and count the others."""
        first, *more = sorted(self.handlers)
        return f"the one that handles with {first}" + (f" and {len(more)} more" if more else "")


@runtime_checkable
class RegisteringStore(Protocol):
    """A store that remembers which applications receive under an endpoint."""

    @property
    def place(self) -> Hashable:
        """The identity of the store: equal for two objects that open the same store."""
        ...

    async def register(
        self, endpoint: str, application: Application | None
    ) -> tuple[Application, ...]:
        """Register an application under an endpoint, and return all registered applications.

        Args:
            endpoint: the name of the receiving endpoint.
            application: the application to register; None only lists.
        """
        ...


def strangers(own: Application, known: Iterable[Application]) -> tuple[Application, ...]:
    """Return the applications that share nothing with ``own``, directly or through others.

    Two applications share something if they have the same handler or the same secret.
    """
    family, others = [own], list(known)
    for one in family:  # the loop also visits applications that its body appends
        family += [other for other in others if one.shares(other)]
        others = [other for other in others if not one.shares(other)]
    return tuple(others)
