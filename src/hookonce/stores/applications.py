"""Which applications receive under an endpoint, as they tell each other by way of its store.

What one of them has handled is a duplicate to the other, so two that have nothing in common must
not share an endpoint. One application has many forms at once and in turn: in a deployment its
handlers change, and in a rotation its secrets, but never all of both at a time.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

REMEMBERED_SECONDS = 7 * 86_400.0
"""How long one that is not heard of counts: some tell of themselves only when they start."""

MOST_REMEMBERED = 50
"""How many forms of applications are remembered for an endpoint, those last heard of."""


@dataclass(frozen=True, slots=True)
class Application:
    """What receives under an endpoint: a form of an application.

    Attributes:
        handlers: the names of its handlers.
        marks: one for each of its secrets, by which the same secret is known again, and nothing
            more of it is.
        seen_at: when it was last heard of, in Unix seconds.

    """

    handlers: frozenset[str]
    marks: frozenset[str]
    seen_at: float = field(default=0.0, compare=False)

    def dump(self) -> str:
        """Return it as text, the same for the same handlers and secrets."""
        return json.dumps([sorted(self.handlers), sorted(self.marks)])

    @classmethod
    def load(cls, text: str | bytes, seen_at: float) -> Self:
        """Return what was made text of."""
        handlers, marks = json.loads(text)
        return cls(frozenset(handlers), frozenset(marks), seen_at)

    def shares(self, other: Application) -> bool:
        """Whether the two have a handler or a secret in common."""
        return not (self.handlers.isdisjoint(other.handlers) and self.marks.isdisjoint(other.marks))

    def describe(self) -> str:
        """Return what to call it in a message: by its handlers."""
        first, *more = sorted(self.handlers)
        return f"the one that handles with {first}" + (f" and {len(more)} more" if more else "")


@runtime_checkable
class RegisteringStore(Protocol):
    """A store that remembers which applications receive under an endpoint."""

    @property
    def place(self) -> Hashable:
        """What is equal for two objects that are known to stand for one store."""
        ...

    async def register(
        self, endpoint: str, application: Application | None
    ) -> tuple[Application, ...]:
        """Note that an application receives under an endpoint; return all that are known to.

        Args:
            endpoint: the name that scopes what is handled once.
            application: what receives there now; None only to look.

        """
        ...


def strangers(own: Application, known: Iterable[Application]) -> tuple[Application, ...]:
    """Return those that have nothing in common with one, nor with any that has, and so on."""
    family, others = [own], list(known)
    for one in family:  # it grows by those that are found
        family += [other for other in others if one.shares(other)]
        others = [other for other in others if not one.shares(other)]
    return tuple(others)
