"""Chaos: disturbances of deliveries, chosen at random by a seed.

The disturbance of an attempt depends only on the seed, the delivery's number and the attempt's
number, never on timing: the same seed brings the same disturbances on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from .transport import CALM, Break, Network


class Disturbance(StrEnum):
    """A kind of disturbance of an attempt."""

    DUPLICATE = "duplicate"
    """A copy arrives within two minutes after the attempt has succeeded."""
    CONCURRENT_DUPLICATE = "concurrent_duplicate"
    """One or two copies arrive at the same moment as the attempt."""
    DELAY = "delay"
    """The first attempt comes up to 30 minutes late, after many later events."""
    REORDERING = "reordering"
    """The first attempt comes up to five seconds late, after a few later events."""
    LOST_ANSWER = "lost_answer"
    """The receiver answers, and the sender sees a time-out."""
    SLOW_CONNECTION = "slow_connection"
    """The body arrives in pieces, over up to six seconds."""
    RESET = "reset"
    """The connection breaks, in the middle of the body or before the answer."""
    REPLAY = "replay"
    """An attacker sends a recorded delivery again."""
    TAMPERING = "tampering"
    """The body is changed on its way to the receiver."""
    CLOCK_SKEW = "clock_skew"
    """The sender's clock is wrong by up to ten minutes."""
    ROTATION = "rotation"
    """The secret is rotated just before the attempt."""
    FLOOD = "flood"
    """Many forged requests arrive together with the attempt."""
    BURST = "burst"
    """Many events are emitted at once; this affects a series of events, not one attempt."""


_KEEPS_OUT = frozenset(
    {
        Disturbance.LOST_ANSWER,
        Disturbance.SLOW_CONNECTION,
        Disturbance.RESET,
        Disturbance.TAMPERING,
        Disturbance.CLOCK_SKEW,
    }
)
"""The disturbances that can make an attempt fail even if the receiver is correct."""

# Disturbances in `_KEEPS_OUT` affect only attempts up to this number. All later attempts arrive, so
# that the receiver is at fault if an event is lost after nine attempts.
_LAST_KEPT_OUT = 3

_FIRST_ONLY = frozenset({Disturbance.DELAY, Disturbance.REORDERING})

_LONGEST_BURST = 40


@dataclass(frozen=True, slots=True)
class Plan:
    """The disturbance of one attempt, in detail.

    Attributes:
        delay_seconds: how much later the attempt comes.
        skew_seconds: how far the sender's clock is ahead.
        copies: how many copies arrive at the same moment.
        copy_after_seconds: how much later another copy arrives, if any.
        forgeries: how many forged requests arrive at the same moment.
        is_tampered: whether the body is changed on its way.
        loses_answer: whether the sender never sees the answer.
        replays: whether an attacker replays an earlier delivery.
        rotates: whether the secret is rotated before the attempt.
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
    """How often deliveries are disturbed, and how.

    Attributes:
        rate: the probability that an attempt is disturbed, from 0 to 1.
        kinds: the kinds to choose from; all by default.
    """

    rate: float = 0.3
    kinds: frozenset[Disturbance] = frozenset(Disturbance)

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate is a probability from 0 to 1, not {self.rate!r}")


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
"""Functions that draw the plan of an attempt; a burst affects several events and has no plan."""


def plan_of(chaos: Chaos, seed: int, delivery: int, attempt: int) -> Plan:
    """Return the disturbance that the seed gives to an attempt.

    Args:
        chaos: how often deliveries are disturbed, and how.
        seed: determines every random draw.
        delivery: the number of the delivery, from 1.
        attempt: the number of the attempt, from 1.
    """
    random = Random(f"{seed}:{delivery}:{attempt}")  # noqa: S311 - chaos is no secret
    hit = random.random() < chaos.rate
    kinds = sorted(chaos.kinds & _DRAWN.keys())
    if not (hit and kinds):
        return UNDISTURBED
    kind = random.choice(kinds)
    if (kind in _KEEPS_OUT and attempt > _LAST_KEPT_OUT) or (kind in _FIRST_ONLY and attempt > 1):
        return UNDISTURBED
    return _DRAWN[kind](kind, random)


def moments_of(chaos: Chaos, seed: int, count: int, per_second: float) -> Iterator[float]:
    """Yield when to emit each event, in seconds from the start, in ascending order.

    Args:
        chaos: whether there are bursts, and how often.
        seed: determines the bursts.
        per_second: how many events on average; a pause follows each burst.
    """
    random = Random(f"{seed}:moments")  # noqa: S311 - chaos is no secret
    bursts = Disturbance.BURST in chaos.kinds
    number = 0
    while number < count:
        size = 1
        if bursts and random.random() < chaos.rate / 10:
            size = random.randint(2, _LONGEST_BURST)
        for _ in range(min(size, count - number)):
            yield number / per_second
        number += size
