"""The arguments and results of a store's calls.

A store writes and compares Unix seconds, in fields whose names end in ``_unix``. The properties
return the same moments to users, as aware ``datetime`` values in UTC.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from random import Random
from typing import NamedTuple, NewType, TypeAlias, TypedDict

from ..clock import unix_seconds, utc

DeliveryKey = NewType("DeliveryKey", str)
"""The key under which an event is handled once: ``endpoint:webhook-id``."""

Token = NewType("Token", str)
"""A random name of one request; a store answers a repeated request as it did the first time."""


# Do not use `secrets`: its system call releases the interpreter's lock during a request. The
# thread of a SQLite store would take the lock, and the event loop would wait for it.
_random = Random()  # noqa: S311 - a token is not secret, only unique
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_random.seed)


def new_token() -> Token:
    """Return a token that no other request has."""
    # Add the time: two machines that are restored from one snapshot draw the same random numbers.
    return Token(hex(_random.getrandbits(64) << 64 | time.time_ns()))


INTERRUPTED = "the process ended, or its lease ran out"
"""The error that the history shows for an attempt whose lease ran out."""


def delivery_key(endpoint: str, event_id: str) -> DeliveryKey:
    """Return the key of an event; handlers run once for each key.

    The endpoint is part of the key: two endpoints of one workspace receive the same webhook-id.
    """
    return DeliveryKey(f"{endpoint}:{event_id}")


class Claimed(NamedTuple):
    """The caller owns the event until the lease ends, and handles it.

    Attributes:
        key: the event that was claimed.
        token: the owner's token.
        attempt: the number of this attempt, from 1; crashed attempts count.
        finished: the handlers that have succeeded in earlier attempts.
        lease_seconds: how long a claim or an extension lasts.
        outstanding: the handlers that an earlier attempt has recorded as failed or not run.
    """

    key: DeliveryKey
    token: Token
    attempt: int
    finished: frozenset[str]
    lease_seconds: float
    outstanding: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class InFlight:
    """Another caller holds the claim until its lease ends.

    Attributes:
        until_unix: the Unix time at which the lease ends unless it is extended.
    """

    until_unix: float

    @property
    def until(self) -> datetime:
        """The end of the lease, as an aware UTC ``datetime``."""
        return utc(self.until_unix)


@dataclass(frozen=True, slots=True)
class Done:
    """The event has been handled."""


@dataclass(frozen=True, slots=True)
class Dead:
    """The event is a dead letter: an operator replays or discards it."""


ClaimResult: TypeAlias = Claimed | InFlight | Done | Dead
"""The result of a claim."""


class Known(StrEnum):
    """The state of an event, as operators see it."""

    DONE = "done"
    DEAD = "dead"
    """A dead letter; a replay may be running."""
    WAITING = "waiting"
    """In the inbox; an attempt may be running."""
    IN_FLIGHT = "in_flight"
    """An attempt runs inside a request."""
    FAILED = "failed"
    """The last attempt failed; the event is tried again if the sender sends it again. If its
    delivery was kept, it becomes a dead letter when the sender's retries are over."""


class Ownership(Enum):
    """Whether the caller still owned the claim; the store does the step only for the owner."""

    HELD = "held"
    LOST = "lost"


class Delivery(NamedTuple):
    """A verified delivery as a store keeps it.

    Attributes:
        endpoint: the name of the receiving endpoint.
        event_id: the webhook-id.
        event_type: the type in the signed body, or None if the body could not be read.
        received_unix: when it arrived, in Unix seconds.
        body: the raw bytes that were signed.
    """

    endpoint: str
    event_id: str
    event_type: str | None
    received_unix: float
    body: bytes

    @property
    def key(self) -> DeliveryKey:
        """The key of the event; handlers run once for each key."""
        return delivery_key(self.endpoint, self.event_id)

    @property
    def received_at(self) -> datetime:
        """The time of the delivery's arrival, as an aware UTC ``datetime``."""
        return utc(self.received_unix)

    def __repr__(self) -> str:
        shown = {name: value for name, value in self._asdict().items() if name != "body"}
        return f"Delivery({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class DeadReason(StrEnum):
    """The reason why an event became a dead letter."""

    UNREADABLE = "unreadable"
    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    INTERRUPTED = "interrupted"
    """The process ended during an attempt, and the sender will not send the event again."""
    DAMAGED = "damaged"
    """The store's record of the event could not be read: nobody knows whether it was handled."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that did not succeed.

    Attributes:
        number: the number of the attempt, from 1.
        ended_unix: when it ended, in Unix seconds; if the process ended, the time at which the
            lease ran out.
        error: what failed, as text.
    """

    number: int
    ended_unix: float
    error: str

    @property
    def ended_at(self) -> datetime:
        """The end of the attempt, as an aware UTC ``datetime``."""
        return utc(self.ended_unix)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that the receiver does not try again, with the facts for an operator's decision.

    Attributes:
        delivery: the delivery; its body is empty in listings.
        reason: why the event became a dead letter.
        error: what failed, as text.
        attempts: the number of attempts.
        finished: the handlers that have succeeded; a replay does not run them.
        buried_unix: when it became, or will become, a dead letter, in Unix seconds.
        history: the last failed attempts, oldest first; a bounded number of them.
        outstanding: the handlers recorded as failed or not run.
        is_kept: whether the event is not a dead letter yet: its delivery is kept, because the
            sender may not send the event again. It becomes a dead letter at ``buried_at``.
        place: the cursor of a listing; pass it as ``after`` to continue after this dead letter.
        record: the bytes of a record that could not be read (``DAMAGED``); empty in listings.
    """

    delivery: Delivery
    reason: DeadReason
    error: str
    attempts: int
    finished: frozenset[str]
    buried_unix: float
    history: tuple[FailedAttempt, ...] = ()
    outstanding: frozenset[str] = frozenset()
    is_kept: bool = False
    place: str = field(default="", compare=False, repr=False)
    record: bytes = field(default=b"", repr=False)

    @property
    def buried_at(self) -> datetime:
        """The time at which the event becomes a dead letter, as an aware UTC ``datetime``."""
        return utc(self.buried_unix)

    def matches(self, wanted: WantedDeadLetters) -> bool:
        """Return whether the dead letter passes all filters of a listing."""
        handler, since = wanted.get("handler"), wanted.get("since_unix")
        return (
            wanted.get("endpoint") in {None, self.delivery.endpoint}
            and wanted.get("event_type") in {None, self.delivery.event_type}
            and wanted.get("event_id") in {None, self.delivery.event_id}
            and wanted.get("reason") in {None, self.reason}
            and (handler is None or handler in self.outstanding)
            and (since is None or self.buried_unix >= since)
        )


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The numbers of events and workers that a store knows now, and the size of its inbox.

    Attributes:
        in_flight: live claims.
        dead: dead letters, without kept deliveries.
        depth: events in the inbox, with those being handled.
        bytes: the sum of the sizes of their bodies.
        oldest_age_seconds: since the oldest of these events was received; None if there is none.
        workers: workers that have asked for work within ``WORKER_SECONDS``.
        kept: deliveries that become dead letters unless the sender sends their events again.
            Deliveries with a running attempt are not counted.
    """

    in_flight: int
    dead: int
    depth: int = 0
    bytes: int = 0
    oldest_age_seconds: float | None = None
    workers: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """This caller has put the event into the inbox."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The event was already in the inbox: it waits there, or a worker is handling it."""


@dataclass(frozen=True, slots=True)
class Full:
    """The inbox is full; nothing was stored."""


EnqueueResult: TypeAlias = Stored | Waiting | Full | Done | Dead
"""The result of storing a delivery in the inbox."""


class Fetched(NamedTuple):
    """An event fetched from the inbox: its claim and its delivery."""

    claim: Claimed
    delivery: Delivery


class Batch(NamedTuple):
    """The events that a worker has fetched.

    Attributes:
        fetched: events to handle now.
        next_due_seconds: until another event of the endpoint is due, 0 if one is due now; None if
            no event has a due time.
    """

    fetched: tuple[Fetched, ...]
    next_due_seconds: float | None


@dataclass(frozen=True, slots=True)
class Entry:
    """An event in the inbox, as an operator sees it.

    Attributes:
        delivery: the delivery; its body is empty in listings.
        due_unix: the Unix time from which a worker may fetch the event.
        in_flight: whether an attempt runs.
        attempts: the number of attempts, including a running attempt.
        finished: the handlers that have succeeded.
        history: the last failed attempts, oldest first; a bounded number of them.
        outstanding: the handlers recorded as failed or not run.
        place: as in ``DeadLetter``.
    """

    delivery: Delivery
    due_unix: float
    in_flight: bool
    attempts: int
    finished: frozenset[str]
    history: tuple[FailedAttempt, ...]
    outstanding: frozenset[str] = frozenset()
    place: str = field(default="", compare=False, repr=False)

    @property
    def due_at(self) -> datetime:
        """The time from which a worker may fetch the event, as an aware UTC ``datetime``."""
        return utc(self.due_unix)

    def state(self, now: float | datetime) -> str:
        """Return ``in flight``, ``waiting`` (not due yet) or ``ready``.

        Args:
            now: an aware ``datetime`` or Unix seconds.
        """
        if self.in_flight:
            return "in flight"
        return "waiting" if self.due_unix > unix_seconds("now", now) else "ready"


class Wanted(TypedDict, total=False):
    """Filters of a listing; a filter that is None does not apply.

    Attributes:
        endpoint: the name of the receiving endpoint.
        event_type: the event type.
        event_id: the webhook-id.
        handler: a handler that is outstanding.
        since_unix: Unix seconds; events received at that time or later, or for dead letters, those
            that became dead letters at that time or later.
    """

    endpoint: str | None
    event_type: str | None
    event_id: str | None
    handler: str | None
    since_unix: float | None


class WantedDeadLetters(Wanted, total=False):
    """Filters of a listing of dead letters.

    The filters ``endpoint``, ``event_type``, ``event_id``, ``handler`` and ``since_unix`` are those
    of ``Wanted``.

    Attributes:
        reason: why an event became a dead letter.
    """

    reason: DeadReason | None


class KeyLock(NamedTuple):
    """A lock that lets one call of a handler at a time run for a key.

    Attributes:
        endpoint: the name of the receiving endpoint.
        handler: the handler's name.
        key: the key that the handler's key function returned.
    """

    endpoint: str
    handler: str
    key: str

    @property
    def name(self) -> str:
        """The unique text of a key lock: endpoint, handler and key."""
        lengths = f"{len(self.endpoint)}.{len(self.handler)}"
        return f"{lengths}:{self.endpoint}:{self.handler}:{self.key}"


class Watermark(NamedTuple):
    """The creation time and the id of an event; the watermark of a newer event compares greater.

    Attributes:
        created_unix_us: when the event was created, in Unix microseconds.
        event_id: the webhook-id.
        generation: 0, or the number of a replay on purpose; a later generation of the same event
            compares greater.
    """

    created_unix_us: int
    event_id: str
    generation: int = 0

    @property
    def created_at(self) -> datetime:
        """The time of the event's creation, as an aware UTC ``datetime``."""
        return utc(self.created_unix_us / 1_000_000)


@dataclass(frozen=True, slots=True)
class Acquired:
    """The caller holds the key lock until the lease ends."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another caller holds the key lock until its lease ends.

    Attributes:
        until_unix: the Unix time at which the lease ends unless it is extended.
    """

    until_unix: float

    @property
    def until(self) -> datetime:
        """The end of the lease, as an aware UTC ``datetime``."""
        return utc(self.until_unix)


@dataclass(frozen=True, slots=True)
class Stale:
    """The event comes too late: a newer event, or this event, has succeeded; see ``watermark``.

    The event itself has succeeded if its generation, or a later generation, has succeeded.
    """

    watermark: Watermark


AcquireResult: TypeAlias = Acquired | Busy | Stale
"""The result of acquiring a key lock."""


# At most 18 digits, because SQLite's row ids and bound integers end at 2**63 - 1.
_NUMBER = re.compile("[0-9]{1,18}")


def number_behind(after: str | None) -> int:
    """Return the number in an ``after`` cursor, for stores whose cursors are numbers from 1.

    Raises ValueError if ``after`` is not such a cursor.
    """
    if after is None:
        return 0
    if not isinstance(after, str) or not _NUMBER.fullmatch(after):
        raise no_place(after)
    return int(after)


def no_place(after: object) -> ValueError:
    """Return the error for an invalid ``after`` cursor."""
    given = repr(after) if isinstance(after, str) else f"a value of type {type(after).__name__}"
    return ValueError(
        f"after must be the `place` of an event that was listed here, not {given:.100}"
    )
