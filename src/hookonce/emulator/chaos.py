"""Chaos: disturbances of deliveries, chosen at random from a seed.

The disturbance of an attempt depends only on the seed, the delivery (its number, or the id of its
event) and the attempt's number, never on timing: the same seed brings the same disturbances on
every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TypeAlias

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
# that the receiver is at fault if an event is lost after the sender's last attempt.
_LAST_KEPT_OUT = 3

_FIRST_ONLY = frozenset({Disturbance.DELAY, Disturbance.REORDERING})

_LONGEST_BURST = 40

# The shares of a body that may arrive before a reset.
_HALF_BODY, _WHOLE_BODY = 0.5, 1.0


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
    """The rate and the kinds of the disturbances of deliveries.

    Attributes:
        rate: the probability that an attempt is disturbed, from 0 to 1.
        kinds: the kinds to choose from; all by default.
        keeps_out: the last attempt that a disturbance may make fail although the receiver is
            correct; fewer than the sender's attempts.
    """

    rate: float = 0.3
    kinds: frozenset[Disturbance] = frozenset(Disturbance)
    keeps_out: int = _LAST_KEPT_OUT

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate is a probability from 0 to 1, not {self.rate!r}")


@dataclass(frozen=True, slots=True)
class RequestFault:
    """A disturbance of one attempt to deliver an event.

    Attributes:
        event_id: the event.
        attempt: the number of the attempt, from 1.
        kind: the kind of disturbance, but not a burst, which is not about one attempt.
        amount: its size. Seconds for a duplicate, a delay, a reordering, a slow connection and a
            skewed clock (negative if the sender's clock is behind); the number of requests for
            concurrent duplicates and a flood; for a reset the share of the body that arrives, from
            0 to 1, where 1 breaks the connection before the answer. Other kinds have no size.
    """

    event_id: str
    attempt: int
    kind: Disturbance
    amount: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in _PLANS:
            raise ValueError(f"{self.kind} affects several events, not one attempt")


RequestFaults: TypeAlias = Callable[[str, int], RequestFault | None]
"""A function that returns the fault of an attempt, by the event's id and the attempt's number."""


_AMOUNTS: Mapping[Disturbance, Callable[[Random], float]] = {
    Disturbance.DUPLICATE: lambda r: r.uniform(0, 120),
    Disturbance.CONCURRENT_DUPLICATE: lambda r: r.randint(1, 2),
    Disturbance.DELAY: lambda r: r.uniform(60, 1800),
    Disturbance.REORDERING: lambda r: r.uniform(0, 5),
    Disturbance.SLOW_CONNECTION: lambda r: r.uniform(0.2, 6),
    Disturbance.RESET: lambda r: r.choice((_HALF_BODY, _WHOLE_BODY)),
    Disturbance.CLOCK_SKEW: lambda r: r.uniform(-600, 600),
    Disturbance.FLOOD: lambda r: r.randint(10, 40),
}
"""Functions that choose the size of a disturbance at random; other kinds have no size."""

_PLANS: Mapping[Disturbance, Callable[[Disturbance, float], Plan]] = {
    Disturbance.DUPLICATE: lambda kind, amount: Plan(kind, copy_after_seconds=amount),
    Disturbance.CONCURRENT_DUPLICATE: lambda kind, amount: Plan(kind, copies=int(amount)),
    Disturbance.DELAY: lambda kind, amount: Plan(kind, delay_seconds=amount),
    Disturbance.REORDERING: lambda kind, amount: Plan(kind, delay_seconds=amount),
    Disturbance.LOST_ANSWER: lambda kind, _: Plan(kind, loses_answer=True),
    Disturbance.SLOW_CONNECTION: lambda kind, amount: Plan(kind, Network(amount)),
    Disturbance.RESET: lambda kind, amount: Plan(
        kind,
        Network(breaks=Break.IN_THE_BODY if amount < _WHOLE_BODY else Break.BEFORE_THE_ANSWER),
    ),
    Disturbance.REPLAY: lambda kind, _: Plan(kind, replays=True),
    Disturbance.TAMPERING: lambda kind, _: Plan(kind, is_tampered=True),
    Disturbance.CLOCK_SKEW: lambda kind, amount: Plan(kind, skew_seconds=amount),
    Disturbance.ROTATION: lambda kind, _: Plan(kind, rotates=True),
    Disturbance.FLOOD: lambda kind, amount: Plan(kind, forgeries=int(amount)),
}
"""Functions that plan an attempt; a burst affects several events and has no plan."""


def plan_of(chaos: Chaos, seed: int, delivery: int, attempt: int) -> Plan:
    """Return the disturbance that the seed gives to an attempt.

    Args:
        chaos: how often deliveries are disturbed, and how.
        seed: determines every random draw.
        delivery: the number of the delivery, from 1.
        attempt: the number of the attempt, from 1.
    """
    return plan_for(_drawn(chaos, seed, str(delivery), attempt))


def fault_of(chaos: Chaos, seed: int, event_id: str, attempt: int) -> RequestFault | None:
    """Return the fault that the seed gives to an attempt of an event, or None.

    The fault depends on no other event, so it stays the same if other events are left out.

    Args:
        attempt: the number of the attempt, from 1.
    """
    return _drawn(chaos, seed, event_id, attempt)


def plan_for(fault: RequestFault | None) -> Plan:
    """Return the plan for an attempt with this fault."""
    return UNDISTURBED if fault is None else _PLANS[fault.kind](fault.kind, fault.amount)


def _drawn(chaos: Chaos, seed: int, key: str, attempt: int) -> RequestFault | None:
    random = Random(f"{seed}:{key}:{attempt}")  # noqa: S311 - not used for secrets
    hit = random.random() < chaos.rate
    kinds = sorted(chaos.kinds & _PLANS.keys())
    if not (hit and kinds):
        return None
    kind = random.choice(kinds)
    if (kind in _KEEPS_OUT and attempt > chaos.keeps_out) or (kind in _FIRST_ONLY and attempt > 1):
        return None
    draw = _AMOUNTS.get(kind)
    return RequestFault(key, attempt, kind, 0.0 if draw is None else draw(random))


def moments_of(chaos: Chaos, seed: int, count: int, per_second: float) -> Iterator[float]:
    """Yield the moments at which to emit the events, in ascending order, in seconds from the start.

    Args:
        chaos: whether there are bursts, and how often.
        seed: determines the bursts.
        per_second: how many events on average; a pause follows each burst.
    """
    random = Random(f"{seed}:moments")  # noqa: S311 - not used for secrets
    bursts = Disturbance.BURST in chaos.kinds
    number = 0
    while number < count:
        size = 1
        if bursts and random.random() < chaos.rate / 10:
            size = random.randint(2, _LONGEST_BURST)
        for _ in range(min(size, count - number)):
            yield number / per_second
        number += size
