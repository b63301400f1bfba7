"""Which runs of which handlers go wrong on purpose: decided by a seed, whatever the timing."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from ..errors import Retry

# Across the answer budget (8 s) and the lease (30 s).
_SHORTEST_SLEEP_SECONDS, _LONGEST_SLEEP_SECONDS = 0.1, 45.0
_SHORTEST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 1.0, 600.0


class Fault(StrEnum):
    """What is done to a run of a handler."""

    FAILS_BEFORE = "fails_before"
    """It fails, and the handler's own code has not run."""
    FAILS_AFTER = "fails_after"
    """It fails after the handler's own code has run: the effect is there, and no success."""
    SLOW = "slow"
    """The handler's own code begins late."""
    FAILS_LATE = "fails_late"
    """It fails after a while, in which other deliveries of the event find it in flight."""
    ASKS_RETRY = "asks_retry"
    """``Retry`` is raised, and the handler's own code has not run."""


class InjectedError(Exception):
    """A failure that a simulation injected; the receiver is expected to cope with it."""


class InjectedRetry(Retry):
    """A ``Retry`` that no handler asked for."""


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault, and how many seconds it sleeps or asks to wait."""

    fault: Fault
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Decides for each run whether a fault is injected; the same seed decides the same.

    Attributes:
        seed: names the plan.
        rate: the part of runs that go wrong, from 0 to 1.
        kinds: the faults to choose from.
        most: faults of one handler and one event at the most, so that a right receiver succeeds
            with every event. Keep it below the number of attempts an event has.

    """

    seed: int
    rate: float = 0.3
    kinds: tuple[Fault, ...] = tuple(Fault)
    most: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate takes a number from 0 to 1, not {self.rate!r}")
        if self.most < 0:
            raise ValueError(f"most takes a number from 0 on, not {self.most!r}")
        if not self.kinds:
            raise ValueError("kinds takes one fault at least; for none, set rate to 0")

    def injection(self, event_id: str, handler: str, run_number: int) -> Injection | None:
        """Return the fault of this run (of this handler for this event, from 1), if it has one."""
        drawn = self._draw(event_id, handler, run_number)
        if drawn is None:
            return None
        earlier = (self._draw(event_id, handler, number) for number in range(1, run_number))
        return drawn if sum(one is not None for one in earlier) < self.most else None

    def _draw(self, event_id: str, handler: str, run_number: int) -> Injection | None:
        chance = random.Random(f"{self.seed}:{event_id}:{handler}:{run_number}")  # noqa: S311 - no secret depends on it
        if chance.random() >= self.rate:
            return None
        fault = chance.choice(self.kinds)
        match fault:
            case Fault.SLOW | Fault.FAILS_LATE:
                seconds = chance.uniform(_SHORTEST_SLEEP_SECONDS, _LONGEST_SLEEP_SECONDS)
            case Fault.ASKS_RETRY:
                seconds = chance.uniform(_SHORTEST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
            case _:
                seconds = 0.0
        return Injection(fault, seconds)
