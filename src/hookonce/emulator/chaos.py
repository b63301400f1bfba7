"""What may go wrong on the way, drawn by a seed.

What happens to an attempt depends on the seed, the delivery's number and the attempt's number
alone, never on timing: the same seed brings the same faults, however fast a machine is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from .transport import CALM, Break, Network


class Disturbance(StrEnum):
    """What happens to one attempt, or beside it."""

    DUPLICATE = "duplicate"
    """Delivered again up to two minutes later, though it succeeded."""
    CONCURRENT_DUPLICATE = "concurrent_duplicate"
    """Delivered two or three times at the same moment."""
    DELAY = "delay"
    """The first attempt comes up to half an hour late; so events overtake each other."""
    REORDERING = "reordering"
    """The first attempt comes up to five seconds late, after those that were emitted later."""
    LOST_ANSWER = "lost_answer"
    """The receiver answers, and the sender sees a time-out."""
    SLOW_CONNECTION = "slow_connection"
    """The body arrives in pieces, over up to six seconds."""
    RESET = "reset"
    """The connection breaks, in the middle of the body or before the answer."""
    REPLAY = "replay"
    """Somebody sends a delivery again that was recorded earlier."""
    TAMPERING = "tampering"
    """The body is changed on its way."""
    CLOCK_SKEW = "clock_skew"
    """The sender's clock is wrong by up to ten minutes."""
    ROTATION = "rotation"
    """The secret is rotated just before."""
    FLOOD = "flood"
    """Forged requests come at the same time."""
    BURST = "burst"
    """Many events are emitted at once; this one happens to a series of events."""


_KEEPS_OUT = frozenset(
    {
        Disturbance.LOST_ANSWER,
        Disturbance.SLOW_CONNECTION,
        Disturbance.RESET,
        Disturbance.TAMPERING,
        Disturbance.CLOCK_SKEW,
    }
)
"""What may keep a delivery from its receiver, or its answer from the sender."""

# Later attempts arrive, so that what is lost after nine is the receiver's fault.
_LAST_KEPT_OUT = 3

_FIRST_ONLY = frozenset({Disturbance.DELAY, Disturbance.REORDERING})

_LONGEST_BURST = 40


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens to one attempt.

    Attributes:
        disturbance: which kind it is, if any.
        network: how the way to the receiver is.
        delay_seconds: how much later the attempt comes.
        skew_seconds: how far the sender's clock is ahead.
        copies: how many more of it come at the same moment.
        copy_after_seconds: when another copy comes, if one does.
        forgeries: how many forged requests come at the same moment.
        is_tampered: whether the body is changed on its way.
        loses_answer: whether the sender never sees the answer.
        replays: whether an earlier delivery comes again.
        rotates: whether the secret is rotated before.

    """

    disturbance: Disturbance | None = None
    network: Network = CALM
    delay_seconds: float = 0.0
    skew_seconds: float = 0.0
    copies: int = 0
    copy_after_seconds: float | None = None
    forgeries: int = 0
    is_tampered: bool = False
    loses_answer: bool = False
    replays: bool = False
    rotates: bool = False


UNDISTURBED = Plan()


@dataclass(frozen=True, slots=True)
class Chaos:
    """How much goes wrong, and what.

    Attributes:
        rate: the probability that something happens to an attempt, from 0 to 1.
        kinds: what may happen; everything by default.

    """

    rate: float = 0.3
    kinds: frozenset[Disturbance] = frozenset(Disturbance)

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate is a probability from 0 to 1, not {self.rate!r}")

    def plan(self, seed: int, delivery: int, attempt: int) -> Plan:
        """Return what happens to an attempt.

        Args:
            seed: what everything is drawn by.
            delivery: which delivery of the service, from 1.
            attempt: which attempt at it, from 1.

        """
        random = Random(f"{seed}:{delivery}:{attempt}")  # noqa: S311 - chaos is no secret
        hit = random.random() < self.rate
        kinds = sorted(self.kinds & _DRAWN.keys())
        if not (hit and kinds):
            return UNDISTURBED
        kind = random.choice(kinds)
        if (kind in _KEEPS_OUT and attempt > _LAST_KEPT_OUT) or (
            kind in _FIRST_ONLY and attempt > 1
        ):
            return UNDISTURBED
        return _DRAWN[kind](kind, random)

    def moments(self, seed: int, count: int, per_second: float) -> Iterator[float]:
        """Yield when each of ``count`` events is emitted, in seconds, in order, in bursts or not.

        Args:
            seed: what the bursts are drawn by.
            count: how many events.
            per_second: how many on average; a burst makes up for itself by a pause.

        """
        random = Random(f"{seed}:moments")  # noqa: S311 - chaos is no secret
        bursts = Disturbance.BURST in self.kinds
        number = 0
        while number < count:
            size = 1
            if bursts and random.random() < self.rate / 10:
                size = random.randint(2, _LONGEST_BURST)
            for _ in range(min(size, count - number)):
                yield number / per_second
            number += size


_DRAWN: Mapping[Disturbance, Callable[[Disturbance, Random], Plan]] = {
    Disturbance.DUPLICATE: lambda kind, r: Plan(kind, copy_after_seconds=r.uniform(0, 120)),
    Disturbance.CONCURRENT_DUPLICATE: lambda kind, r: Plan(kind, copies=r.randint(1, 2)),
    Disturbance.DELAY: lambda kind, r: Plan(kind, delay_seconds=r.uniform(60, 1800)),
    Disturbance.REORDERING: lambda kind, r: Plan(kind, delay_seconds=r.uniform(0, 5)),
    Disturbance.LOST_ANSWER: lambda kind, _: Plan(kind, loses_answer=True),
    Disturbance.SLOW_CONNECTION: lambda kind, r: Plan(kind, Network(r.uniform(0.2, 6))),
    Disturbance.RESET: lambda kind, r: Plan(kind, Network(breaks=r.choice(list(Break)))),
    Disturbance.REPLAY: lambda kind, _: Plan(kind, replays=True),
    Disturbance.TAMPERING: lambda kind, _: Plan(kind, is_tampered=True),
    Disturbance.CLOCK_SKEW: lambda kind, r: Plan(kind, skew_seconds=r.uniform(-600, 600)),
    Disturbance.ROTATION: lambda kind, _: Plan(kind, rotates=True),
    Disturbance.FLOOD: lambda kind, r: Plan(kind, forgeries=r.randint(10, 40)),
}
"""What happens to an attempt, by kind; a burst happens to a series of events instead."""
