"""The store contract: what a backend must do, and the values that pass.

Each step is atomic. A claim is a lease with an owner (its token); only the owner may extend,
release or bury it (fencing), while ``complete`` is a fact that anybody who has seen it may record.
A claim that expires counts as an attempt, so a crash loop shows in ``attempt``.

A lease ends by a clock that nobody sets, where there is one: on one machine that of its uptime,
with a server the server's own. A clock given by the caller, in a test, serves for everything.

Every call may raise ``StoreError``; then the caller cannot know whether it was done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

from ..types import DeliveryKey, Token

__all__ = [
    "DEFAULT_RETENTION",
    "INTERRUPTED",
    "WORKER_SECONDS",
    "BatchingStore",
    "ClaimResult",
    "Claimed",
    "Dead",
    "DeadLetter",
    "DeadReason",
    "Delivery",
    "Done",
    "FailedAttempt",
    "Flushes",
    "InFlight",
    "Ownership",
    "Store",
    "StoreStats",
    "check_retention",
    "delivery_key",
]

DEFAULT_RETENTION = timedelta(days=15)
"""The sender's delivery log is kept 14 days (interface, Limits); one more for clocks and care."""

WORKER_SECONDS = 30.0
"""How long after it last asked for work a worker counts as running."""

INTERRUPTED = "the process ended, or its lease ran out"
"""What a history says of an attempt that nobody settled."""

# Nine attempts take about 25 hours in the worst case (eight waits, each 10 % longer); a record that
# is forgotten before the last of them would let the event run again.
_LEAST_RETENTION = timedelta(hours=26)


def check_retention(retention: timedelta) -> float:
    """Return the retention of done records in seconds, or refuse one that forgets too early."""
    if not isinstance(retention, timedelta):
        raise TypeError(
            f"retention takes a timedelta, such as timedelta(days=15), not {retention!r}"
        )
    if retention < _LEAST_RETENTION:
        raise ValueError(
            f"retention must be at least 26 hours, not {retention}: the sender retries for about"
            " 25, and a forgotten event would be handled again"
        )
    return retention.total_seconds()


def delivery_key(endpoint: str, event_id: str) -> DeliveryKey:
    """Return what an event is handled once under.

    Two endpoints of one workspace receive the same webhook-id, so the endpoint is part of it.
    """
    return DeliveryKey(f"{endpoint}:{event_id}")


@dataclass(frozen=True, slots=True)
class Claimed:
    """The event is the caller's to handle, until the lease ends.

    Attributes:
        key: what was claimed.
        token: the owner's token.
        attempt: how often it has been claimed, from 1; crashed attempts count.
        finished: the handlers that have succeeded in earlier attempts.
        lease: seconds a claim or an extension lasts.

    """

    key: DeliveryKey
    token: Token
    attempt: int
    finished: frozenset[str]
    lease: float


@dataclass(frozen=True, slots=True)
class InFlight:
    """Somebody else holds the claim, at the longest until this Unix time."""

    until: float


@dataclass(frozen=True, slots=True)
class Done:
    """The event has been handled."""


@dataclass(frozen=True, slots=True)
class Dead:
    """The event is a dead letter and waits for a person."""


ClaimResult: TypeAlias = Claimed | InFlight | Done | Dead


class Ownership(Enum):
    """Whether a step that only the owner may take was taken."""

    HELD = "held"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A verified delivery as a store keeps it.

    Attributes:
        endpoint: the name of the receiving endpoint.
        event_id: the webhook-id.
        event_type: the type named in the signed body, or None where it could not be read.
        received_at: Unix seconds.
        body: the raw bytes that were signed.

    """

    endpoint: str
    event_id: str
    event_type: str | None
    received_at: float
    body: bytes = field(repr=False)

    @property
    def key(self) -> DeliveryKey:
        """What it is handled once under."""
        return delivery_key(self.endpoint, self.event_id)


class DeadReason(StrEnum):
    """Why an event became a dead letter."""

    UNREADABLE = "unreadable"
    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    INTERRUPTED = "interrupted"
    """The process ended while an attempt ran after which nobody would bring the event again."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that did not lead to success.

    Attributes:
        number: which attempt it was, from 1.
        ended_at: Unix seconds; of an attempt whose process ended, when its lease ran out.
        error: what failed, as text.

    """

    number: int
    ended_at: float
    error: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that was given up, with all a person needs to decide about it.

    Attributes:
        delivery: what was delivered; its body is empty in listings.
        reason: why it was buried.
        error: what failed, as text.
        attempts: how often it was tried.
        finished: the handlers that have succeeded; a replay leaves them out.
        buried_at: Unix seconds.
        history: its last failed attempts, oldest first; a bounded number of them.

    """

    delivery: Delivery
    reason: DeadReason
    error: str
    attempts: int
    finished: frozenset[str]
    buried_at: float
    history: tuple[FailedAttempt, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreStats:
    """How much a store holds at this moment.

    Attributes:
        in_flight: live claims.
        dead: dead letters.
        depth: events in the inbox, those being handled among them.
        bytes: what their bodies add up to.
        oldest_age: seconds since the oldest of them was received, or None.
        workers: workers that have asked for work within ``WORKER_SECONDS``.

    """

    in_flight: int
    dead: int
    depth: int = 0
    bytes: int = 0
    oldest_age: float | None = None
    workers: int = 0


class Flushes:
    """Who is told how many calls a store has made lasting in one step.

    It is called in the event loop of one of the callers.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[int, float], object]] = []

    def add(self, listener: Callable[[int, float], object]) -> None:
        """Tell this one too: the number of calls, and the seconds that the step took."""
        self._listeners.append(listener)

    def tell(self, calls: int, seconds: float) -> None:
        """Tell all of them."""
        for listener in self._listeners:
            listener(calls, seconds)


@runtime_checkable
class BatchingStore(Protocol):
    """A store that makes calls that wait together lasting in one step."""

    @property
    def flushes(self) -> Flushes:
        """Who is told of these steps."""
        ...


class Store(Protocol):
    """What remembers which events are in flight, done or dead.

    A store opens itself at its first use, so that a mounted application without a lifespan works;
    ``open`` only makes a fault show at start.
    """

    @property
    def keeps_bodies(self) -> bool:
        """Whether dead letters and their bytes survive a restart."""
        ...

    async def open(self) -> None:
        """Connect and prepare, so that what cannot work fails now."""
        ...

    async def warnings(self) -> tuple[str, ...]:
        """Return what an operator should mend though the store works; raise if it does not."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and threads; a later call opens again."""
        ...

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event for ``lease`` seconds; with the token of the live claim, get it again."""
        ...

    async def extend(self, claim: Claimed, finished: frozenset[str] = frozenset()) -> Ownership:
        """Start the lease anew, and remember handlers that have succeeded so far."""
        ...

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled, whoever holds the claim by now."""
        ...

    async def release(
        self, claim: Claimed, finished: frozenset[str], error: str | None = None
    ) -> Ownership:
        """Give the event back for another attempt, with what has succeeded and what went wrong.

        If its delivery was kept, nobody will bring it again: it is a dead letter (``EXHAUSTED``).
        """
        ...

    async def keep(self, claim: Claimed, delivery: Delivery) -> Ownership:
        """Keep the delivery beside its claim, for the case that the claim ends unsettled.

        If the lease then runs out, the event is a dead letter (``INTERRUPTED``).
        """
        ...

    async def keep_in_flight(self, delivery: Delivery) -> None:
        """Keep a delivery whose event somebody else has claimed, and that will not come again.

        Like ``keep``: if that claim does not lead to success, the event is a dead letter.
        """
        ...

    async def bury(
        self,
        claim: Claimed,
        reason: DeadReason,
        *,
        error: str = "",
        finished: frozenset[str] = frozenset(),
        delivery: Delivery | None = None,
    ) -> Ownership:
        """Make the event a dead letter, with the delivery given now or kept before."""
        ...

    async def dead_letters(
        self, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first, with empty bodies."""
        ...

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter with its body."""
        ...

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Claim a dead letter for another attempt; it stays one until that is completed.

        None where there is no such letter.
        """
        ...

    async def discard(self, key: DeliveryKey) -> bool:
        """Forget a dead letter and remember the event as done; False where there is none."""
        ...

    async def prune(self) -> int:
        """Remove records whose retention is over, and return how many."""
        ...

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        """Return how much the store holds, of one endpoint or of all."""
        ...
