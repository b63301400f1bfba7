"""What the inspector needs of a receiver."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from ...clock import Clock
from ...events import EventParser
from ...http.health import Readiness
from ...inbox.dead_letters import DeadLetters
from ...stores.contract import Store
from ...stores.values import StoreStats
from ...watching.records import Observer


class Watched(Protocol):
    """A receiver, as far as the inspector knows it. One with an inbox has ``inbox`` beside this."""

    @property
    def dead(self) -> DeadLetters:
        """Its dead letters."""
        ...

    @property
    def endpoint(self) -> str:
        """The name of its endpoint."""
        ...

    @property
    def store(self) -> Store:
        """What remembers its events."""
        ...

    @property
    def clock(self) -> Clock:
        """What it takes the time from, in Unix seconds."""
        ...

    @property
    def parser(self) -> EventParser:
        """What reads its events."""
        ...

    def observe(self, observer: Observer, *, of: Container[str] | None = None) -> None:
        """Tell an observer of what happens; of steps that go well, for those events alone."""
        ...

    async def stats(self) -> StoreStats:
        """Return how much its store holds; raises StoreError."""
        ...

    async def check(self) -> Readiness:
        """Return whether it can take deliveries."""
        ...
