"""The plan of injected faults: a seed determines which handler calls fail, and how."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ..errors import Retry

# Sleeps take 0.1 to 45 s, so that some exceed the answer budget (8 s) and the lease (30 s).
_SHORTEST_SLEEP_SECONDS, LONGEST_SLEEP_SECONDS = 0.1, 45.0
_SHORTEST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 1.0, 600.0


class Fault(StrEnum):
    """A fault that is injected into a call of a handler."""

    FAILS_BEFORE = "fails_before"
    """The call fails before the handler's own code runs."""
    FAILS_AFTER = "fails_after"
    """The call fails after the handler's own code has run, so the effect exists."""
    SLOW = "slow"
    """The handler's own code starts after a sleep."""
    FAILS_LATE = "fails_late"
    """The call fails after a sleep; other deliveries of the event arrive during the sleep."""
    ASKS_RETRY = "asks_retry"
    """The call raises ``Retry`` before the handler's own code runs."""


class InjectedError(Exception):
    """An injected failure of a handler."""


class InjectedRetry(Retry):
    """An injected ``Retry``."""


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault, and the seconds for which the call sleeps or asks the sender to wait."""

    fault: Fault
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HandlerFault:
    """A fault of one call of a handler.

    Attributes:
        event_id: the event.
        handler: the handler's name.
        call: counts the calls of this handler for this event, from 1.
        kind: the kind of fault.
        seconds: how long the call sleeps, or how long a retry that it asks for shall wait.
    """

    event_id: str
    handler: str
    call: int
    kind: Fault
    seconds: float = 0.0


class HandlerFaults(Protocol):
    """Decides which calls of handlers get a fault."""

    def injection(self, event_id: str, handler: str, number: int) -> Injection | None:
        """Return the fault of a call, or None.

        Args:
            number: counts the calls of this handler for this event, from 1.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Decides which calls of handlers get a fault; the same seed gives the same faults.

    Attributes:
        seed: the same seed gives the same faults.
        rate: the probability of a fault at each call, from 0 to 1.
        most: the maximum number of faults for one handler and one event. Keep it below the number
            of attempts that an event has, so that a correct receiver handles every event.
    """

    seed: int
    rate: float = 0.3
    kinds: tuple[Fault, ...] = tuple(Fault)
    most: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate takes a number from 0 to 1, not {self.rate!r}")
        if self.most < 0:
            raise ValueError(f"most takes a number from 0, not {self.most!r}")
        if not self.kinds:
            raise ValueError("kinds takes at least one fault; to inject no faults, set rate to 0")

    def injection(self, event_id: str, handler: str, number: int) -> Injection | None:
        """Return the fault of a call, or None.

        Args:
            number: counts the calls of this handler for this event, from 1.
        """
        drawn = self._draw(event_id, handler, number)
        if drawn is None:
            return None
        earlier = (self._draw(event_id, handler, before) for before in range(1, number))
        return drawn if sum(one is not None for one in earlier) < self.most else None

    def _draw(self, event_id: str, handler: str, number: int) -> Injection | None:
        chance = random.Random(f"{self.seed}:{event_id}:{handler}:{number}")  # noqa: S311 - no secret depends on it
        if chance.random() >= self.rate:
            return None
        fault = chance.choice(self.kinds)
        match fault:
            case Fault.SLOW | Fault.FAILS_LATE:
                seconds = chance.uniform(_SHORTEST_SLEEP_SECONDS, LONGEST_SLEEP_SECONDS)
            case Fault.ASKS_RETRY:
                seconds = chance.uniform(_SHORTEST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
            case _:
                seconds = 0.0
        return Injection(fault, seconds)
