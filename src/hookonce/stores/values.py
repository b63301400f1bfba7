"""The values that pass between a store and who uses it."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from random import Random
from typing import NamedTuple, NewType, TypeAlias, TypedDict

DeliveryKey = NewType("DeliveryKey", str)
"""What is handled once: the endpoint's name and the webhook-id, as ``endpoint:id``."""


Token = NewType("Token", str)
"""Made once per request. A store that finds a caller's own token says "yours", never "taken"."""


# A system call for each token would let go of the interpreter's lock in the middle of a request,
# and the thread of a SQLite store would take it and keep the event loop waiting.
_random = Random()  # noqa: S311 - a token is no secret; it only has to be another one
os.register_at_fork(after_in_child=_random.seed)


def new_token() -> Token:
    """Return a token that no other request has."""
    # The time too, since a restored snapshot of a machine draws what another one draws.
    return Token(hex(_random.getrandbits(64) << 64 | time.time_ns()))


INTERRUPTED = "the process ended, or its lease ran out"
"""What a history says of an attempt that nobody settled."""


def delivery_key(endpoint: str, event_id: str) -> DeliveryKey:
    """Return what an event is handled once under.

    Two endpoints of one workspace receive the same webhook-id, so the endpoint is part of it.
    """
    return DeliveryKey(f"{endpoint}:{event_id}")


class Claimed(NamedTuple):
    """The event is the caller's to handle, until the lease ends.

    Attributes:
        key: what was claimed.
        token: the owner's token.
        attempt: how often it has been claimed, from 1; crashed attempts count.
        finished: the handlers that have succeeded in earlier attempts.
        lease: seconds a claim or an extension lasts.
        outstanding: the handlers that an earlier attempt has recorded as failed or not run.

    """

    key: DeliveryKey
    token: Token
    attempt: int
    finished: frozenset[str]
    lease: float
    outstanding: frozenset[str] = frozenset()


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


class Known(StrEnum):
    """What a store knows of an event."""

    DONE = "done"
    DEAD = "dead"
    """A dead letter; a replay of it may be running."""
    WAITING = "waiting"
    """In the inbox, which will have it handled; an attempt may be running."""
    IN_FLIGHT = "in_flight"
    """An attempt runs inside a request."""
    FAILED = "failed"
    """It was tried and given back: it is handled only if the sender brings it again. Its body may
    be kept; then it is a dead letter when the sender's schedule is over."""


class Ownership(Enum):
    """Whether a step that only the owner may take was taken."""

    HELD = "held"
    LOST = "lost"


class Delivery(NamedTuple):
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
    body: bytes

    @property
    def key(self) -> DeliveryKey:
        """What it is handled once under."""
        return delivery_key(self.endpoint, self.event_id)

    def __repr__(self) -> str:
        shown = {name: value for name, value in self._asdict().items() if name != "body"}
        return f"Delivery({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


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
        buried_at: Unix seconds; of a kept one, from when on it is a dead letter.
        history: its last failed attempts, oldest first; a bounded number of them.
        outstanding: the handlers recorded as failed or not run.
        is_kept: whether it is only kept, since the sender may still bring the event: it is not
            counted as dead before ``buried_at``.
        place: of one that was listed, where it stands there; a listing can go on behind it.

    """

    delivery: Delivery
    reason: DeadReason
    error: str
    attempts: int
    finished: frozenset[str]
    buried_at: float
    history: tuple[FailedAttempt, ...] = ()
    outstanding: frozenset[str] = frozenset()
    is_kept: bool = False
    place: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """How much a store holds at this moment.

    Attributes:
        in_flight: live claims.
        dead: dead letters; not what is only kept.
        depth: events in the inbox, those being handled among them.
        bytes: what their bodies add up to.
        oldest_age: seconds since the oldest of them was received, or None.
        workers: workers that have asked for work within ``WORKER_SECONDS``.
        kept: deliveries that are kept since the sender may not bring them again, without those that
            an attempt runs for.

    """

    in_flight: int
    dead: int
    depth: int = 0
    bytes: int = 0
    oldest_age: float | None = None
    workers: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """The event is in the inbox now, put there by this caller."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The event was in the inbox already, waiting or being handled."""


@dataclass(frozen=True, slots=True)
class Full:
    """The inbox has no room for one event more; nothing was stored."""


EnqueueResult: TypeAlias = Stored | Waiting | Full | Done | Dead


class Fetched(NamedTuple):
    """An event taken from the inbox: the claim it is handled under, and what was delivered."""

    claim: Claimed
    delivery: Delivery


class Batch(NamedTuple):
    """What a worker was given.

    Attributes:
        taken: events to handle now.
        next_due: seconds until another event of the endpoint is due, 0 if one is; None if none
            waits.

    """

    taken: tuple[Fetched, ...]
    next_due: float | None


@dataclass(frozen=True, slots=True)
class Entry:
    """An event in the inbox, for a person to look at.

    Attributes:
        delivery: what was delivered; its body is empty in listings.
        due_at: Unix seconds at which it may be taken (again).
        in_flight: whether an attempt at it runs.
        attempts: how often it was tried, the running attempt included.
        finished: the handlers that have succeeded.
        history: its last failed attempts, oldest first; a bounded number of them.
        outstanding: the handlers recorded as failed or not run.
        place: as in ``DeadLetter``.

    """

    delivery: Delivery
    due_at: float
    in_flight: bool
    attempts: int
    finished: frozenset[str]
    history: tuple[FailedAttempt, ...]
    outstanding: frozenset[str] = frozenset()
    place: str = field(default="", compare=False, repr=False)

    def state(self, now: float) -> str:
        """Return ``in flight``, ``waiting`` until it is due, or ``ready``, at this Unix time."""
        if self.in_flight:
            return "in flight"
        return "waiting" if self.due_at > now else "ready"


class Wanted(TypedDict, total=False):
    """What a listing is to show only; None is as good as left out.

    Attributes:
        endpoint: events of this endpoint.
        event_type: of this type.
        event_id: with this webhook-id.
        handler: that owe this handler.
        since: received then or later, in Unix seconds; of dead letters, buried.

    """

    endpoint: str | None
    event_type: str | None
    event_id: str | None
    handler: str | None
    since: float | None


class WantedDeadLetters(Wanted, total=False):
    """The same of dead letters.

    Attributes:
        reason: given up for this reason.

    """

    reason: DeadReason | None


class KeyLock(NamedTuple):
    """What one run at a time may pass: a handler's, with one key.

    Attributes:
        endpoint: the name of the receiving endpoint.
        handler: the handler's name.
        key: what it works on, as its key function says.

    """

    endpoint: str
    handler: str
    key: str

    @property
    def name(self) -> str:
        """A text that no other gate has."""
        lengths = f"{len(self.endpoint)}.{len(self.handler)}"
        return f"{lengths}:{self.endpoint}:{self.handler}:{self.key}"


class Watermark(NamedTuple):
    """An event's place in time; as tuples, the newer mark is the higher one.

    Attributes:
        created_at: when the event came to be, in Unix microseconds.
        event_id: the webhook-id.

    """

    created_at: int
    event_id: str


@dataclass(frozen=True, slots=True)
class Acquired:
    """The gate is the caller's, until the lease ends."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else has the gate, at the longest until this Unix time."""

    until: float


@dataclass(frozen=True, slots=True)
class Stale:
    """The event comes too late: this one, a newer one or the same, has succeeded there."""

    watermark: Watermark


AcquireResult: TypeAlias = Acquired | Busy | Stale


# SQLite's row ids, and so its bindings, are at most 2**63 - 1.
_NUMBER = re.compile("[0-9]{1,18}")


def number_behind(after: str | None) -> int:
    """Return the number that a listing goes on behind, where places are numbers from 1 on.

    Raises ValueError for what is no such place.
    """
    if after is None:
        return 0
    if not isinstance(after, str) or not _NUMBER.fullmatch(after):
        raise no_place(after)
    return int(after)


def no_place(after: object) -> ValueError:
    """Return the error of a listing that is to go on behind what is no place in it."""
    given = repr(after) if isinstance(after, str) else f"a value of type {type(after).__name__}"
    return ValueError(
        f"after must be the `place` of an event that was listed here, not {given:.100}"
    )
