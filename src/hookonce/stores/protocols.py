"""The store contract: the calls that every backend must have.

Each call is atomic. A claim is a lease with an owner, who is named by a token. Only the owner may
extend, release or bury the claim (fencing). Any process that has seen the event succeed may
``complete`` it, because a success is final. A claim whose lease expires counts as an attempt, so
that a crash loop shows in ``attempt``; a claim that is released before a handler began does not
count.

``finished`` names the handlers that have succeeded. A handler's success is final too: a store
remembers it even if the claim was lost, in the event's record and in its dead letter, unless the
event is done. ``outstanding`` names the handlers known to have failed or not run. A store remembers
them until they have finished or the event is done, so that a process that lacks one of these
handlers cannot complete the event.

Leases are timed by a clock that nobody can set, if there is one: the uptime of the machine, or the
clock of the server. A clock that the caller passes, in a test, times everything.

Every call may raise ``StoreError``; then the caller cannot know whether the store did the step.

Stores with an inbox: an event in the inbox survives every restart until it is done or dead, and the
inbox holds its body. Fetching an event claims it; the event is due again when the lease ends.
``Store.complete`` and ``Store.bury`` remove it from the inbox, ``Store.extend`` moves the time at
which it is due, and ``Store.release`` makes it due at once. ``Store.claim`` answers that the event
is in flight, since a worker will handle it. ``Store.keep`` changes nothing, since the inbox holds
the delivery already.

A store may also have the calls of ``applications``, ``activity``, ``reconciling``, ``handled`` and
``finishes``. These five groups of calls are optional.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol, Unpack, runtime_checkable

from .values import (
    AcquireResult,
    Batch,
    Claimed,
    ClaimResult,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    EnqueueResult,
    Entry,
    KeyLock,
    Known,
    Ownership,
    StoreStats,
    Token,
    Wanted,
    WantedDeadLetters,
    Watermark,
)

DEFAULT_RETENTION = timedelta(days=15)
"""How long handled events are remembered: longer than any built-in sender delivers them again, and
longer than the delivery log of the default sender, which ``reconcile`` compares."""

WORKER_SECONDS = 30.0
"""A worker counts as running for this long after it last asked for work."""


class Flushes:
    """The listeners that a store notifies after it has committed a batch of calls.

    A listener is called in the event loop of one of the callers.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[int, float], object]] = []

    def add(self, listener: Callable[[int, float], object]) -> None:
        """Add a function that gets the number of calls and the seconds of each commit."""
        self._listeners.append(listener)

    def notify(self, calls: int, seconds: float) -> None:
        """Notify all listeners."""
        for listener in self._listeners:
            listener(calls, seconds)


@runtime_checkable
class BatchingStore(Protocol):
    """A store that commits waiting calls together, as a batch."""

    @property
    def flushes(self) -> Flushes:
        """The listeners for commits."""
        ...


class Claims(Protocol):
    """Claims on events, with one owner at a time, and the calls that end a claim."""

    @property
    def keeps_bodies(self) -> bool:
        """Whether dead letters and their bodies survive a restart."""
        ...

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event for ``lease`` seconds; a repeated call gets the same claim."""
        ...

    async def extend(
        self,
        claim: Claimed,
        finished: frozenset[str] = frozenset(),
        outstanding: frozenset[str] = frozenset(),
    ) -> Ownership:
        """Restart the lease, and remember the finished and the outstanding handlers."""
        ...

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled, even if the claim was lost."""
        ...

    async def release(
        self,
        claim: Claimed,
        finished: frozenset[str],
        error: str | None = None,
        *,
        outstanding: frozenset[str] = frozenset(),
        began: bool = True,
    ) -> Ownership:
        """End the attempt without success, so that the event can be claimed again.

        If the delivery was kept and the sender will not send it again, the event becomes a dead
        letter (``EXHAUSTED``).

        Args:
            claim: the owner's claim.
            finished: the handlers that have succeeded.
            error: what failed, for the event's history.
            outstanding: the handlers that failed or did not run.
            began: whether a handler began. If none did, the attempt does not count, and the next
                attempt gets the same number.
        """
        ...

    async def keep(
        self,
        claim: Claimed,
        delivery: Delivery,
        *,
        dead_unix: float | None = None,
        renew: bool = False,
    ) -> Ownership:
        """Keep the delivery during its claim, in case the claim ends without success.

        Args:
            claim: the owner's claim.
            delivery: the delivery to keep.
            dead_unix: Unix time until which the sender may send the event again; None if the sender
                will not. After that time an event that is neither done nor claimed is a dead letter
                (``INTERRUPTED``). Before that time the event can be claimed as usual.
            renew: which time counts if calls name different times: the earliest, or with ``renew``
                the latest. Once that time has come, the event stays a dead letter.
        """
        ...

    async def keep_in_flight(
        self, delivery: Delivery, *, dead_unix: float | None = None, renew: bool = False
    ) -> None:
        """Keep a delivery whose event another caller has claimed; otherwise like ``keep``."""
        ...

    async def bury(
        self,
        claim: Claimed,
        reason: DeadReason,
        *,
        error: str = "",
        finished: frozenset[str] = frozenset(),
        outstanding: frozenset[str] = frozenset(),
        delivery: Delivery | None = None,
    ) -> Ownership:
        """Make the event a dead letter, with the delivery passed here or kept before."""
        ...


class KeyLocks(Protocol):
    """Key locks, which let one call of a handler at a time run for a key, and their watermarks.

    The watermark of a key lock is the newest event that has succeeded under it. Key locks and the
    records of events are independent: no call changes both. The store deletes a key lock that is
    free, has no watermark and no waiting events. It forgets a watermark when the retention of done
    records has passed since the watermark last rose.
    """

    async def acquire_key_lock(
        self,
        key_lock: KeyLock,
        token: Token,
        lease: float,
        *,
        watermark: Watermark | None = None,
        drop_ties: bool = False,
        waiting: DeliveryKey | None = None,
    ) -> AcquireResult:
        """Acquire a key lock for ``lease`` seconds; return ``Busy`` or ``Stale`` if that fails.

        The token that holds the key lock acquires it again, with a new lease. So this call also
        extends a lease, and it may be repeated after an error.

        Args:
            key_lock: the key lock.
            token: made once for a run of a handler.
            lease: seconds until the key lock is free, unless it is acquired again or released.
            watermark: the event's place in time, if events that come too late are to be dropped:
                the answer is ``Stale`` if a newer event has succeeded, or this event in its
                generation or a later one; also while another caller holds the key lock.
            drop_ties: whether an event is stale as well if another event of the same time has
                succeeded.
            waiting: an event of the inbox that joins the queue of the key lock, once, if another
                caller holds it. The queue is forgotten when that caller's lease ends.
        """
        ...

    async def release_key_lock(
        self,
        key_lock: KeyLock,
        token: Token,
        *,
        watermark: Watermark | None = None,
        event: DeliveryKey | None = None,
    ) -> DeliveryKey | None:
        """Release a key lock, if this token holds it, and return the next waiting event.

        If the key lock is free after that, the event that has waited longest leaves the queue and
        is returned. The caller makes it due (``InboxListing.make_due``).

        Args:
            key_lock: the key lock.
            token: the token that acquired it.
            watermark: given if the handler succeeded: the watermark of the key lock rises to it, if
                it was lower, also if another caller holds the key lock by now.
            event: an event of the inbox that no longer waits. It leaves the queue; otherwise the
                lock would be offered to it next, for nothing.
        """
        ...


class DeadLetterQueue(Protocol):
    """Dead letters, which an operator replays or discards."""

    async def dead_letters(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedDeadLetters]
    ) -> list[DeadLetter]:
        """Return dead letters and kept deliveries (``is_kept``), oldest first, with empty bodies.

        Args:
            after: the ``place`` of a listed dead letter. The listing continues after it, even if
                that dead letter was deleted.
            limit: the largest number to return.
            wanted: filters; without any, all are returned.

        Raises:
            ValueError: ``after`` is not a place that this store has returned.
        """
        ...

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter with its body."""
        ...

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Claim a dead letter, or a kept delivery, for another attempt.

        It stays a dead letter, or kept, until the attempt succeeds. Return None if there is none.
        """
        ...

    async def discard(self, key: DeliveryKey) -> bool:
        """Delete a dead letter and remember the event as done; return False if there is none."""
        ...


class Reports(Protocol):
    """Calls for operators and health checks, and the removal of old records."""

    async def warnings(self) -> tuple[str, ...]:
        """Return warnings for an operator; raise StoreError if the store does not work."""
        ...

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        """Count the events of one endpoint, or of all endpoints, by their states."""
        ...

    async def known(self, endpoint: str, event_ids: Sequence[str]) -> dict[str, Known]:
        """Return the states of these events of an endpoint, without unknown events."""
        ...

    async def prune(self) -> int:
        """Delete records whose retention is over, and return their number."""
        ...


class Queue(Protocol):
    """The inbox, as the receiver and the workers use it."""

    async def enqueue(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
        key_lock: KeyLock | None = None,
    ) -> EnqueueResult:
        """Store a delivery durably, unless its event is known.

        A call repeated with the same token returns ``Stored`` again. If an attempt at the event
        runs inside a request, in a process without an inbox, the event is stored too, and is due
        when the lease of that attempt ends. If the delivery of that attempt was kept because the
        sender will not send it again, the answer is ``Waiting``.

        Args:
            delivery: the delivery to store.
            token: made once per request.
            max_depth: the largest number of events of the endpoint that the inbox may hold.
            max_bytes: the largest sum of the sizes of their bodies.
            key_lock: the key lock that the event's only handler needs; None if the event has other
                handlers, which need not wait, or no key. It is a hint: a store may leave the event
                in the inbox while another event has the key lock, so that workers do not fetch
                events that cannot begin. The worker computes the key again.
        """
        ...

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim due events of an endpoint; the event that has been due longest comes first.

        Each event counts an attempt. If the last attempt ended because its lease ran out, the
        event's history says so.

        Args:
            limit: the largest number of events; fewer are returned if they are large. With 0 the
                call only shows that the worker runs.
            lease: seconds until the events are due again, unless a claim is extended or settled.
            endpoint: the name of the receiving endpoint.
            worker: a name that no other worker has.
            token: made once per call. A call repeated with the worker's last token returns the
                events of that call whose claims still hold, with a new lease, so that a lost reply
                does not use up an attempt.
        """
        ...

    async def retry(
        self,
        claim: Claimed,
        after: float,
        finished: frozenset[str] = frozenset(),
        error: str | None = None,
        *,
        outstanding: frozenset[str] = frozenset(),
        began: bool = True,
    ) -> Ownership:
        """Return a claimed event to the inbox, due after this many seconds.

        The other arguments are those of ``Store.release``.
        """
        ...

    async def wait(self, endpoint: str, seconds: float) -> None:
        """Wait until there may be a new event to fetch, for at most ``seconds``.

        An enqueue wakes the call within tens of milliseconds, even from another process or machine.
        The call may also return early although no event was enqueued.
        """
        ...

    async def retire(self, worker: str) -> None:
        """Remove a worker that stops."""
        ...

    async def entry(self, key: DeliveryKey) -> Entry | None:
        """Return one event of the inbox with its body."""
        ...


@runtime_checkable
class InboxListing(Reports, Protocol):
    """The inbox, as an operator sees it."""

    async def entries(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[Wanted]
    ) -> list[Entry]:
        """Return the events of the inbox, oldest first, with empty bodies.

        The arguments and the ValueError are those of ``DeadLetterQueue.dead_letters``.
        """
        ...

    async def entry(self, key: DeliveryKey) -> Entry | None:
        """Return one event of the inbox with its body."""
        ...

    async def make_due(self, key: DeliveryKey) -> bool:
        """Make a waiting event of the inbox due now; return False if it is not waiting."""
        ...


class Openable(Protocol):
    """A resource that opens at its first use, so that a mounted app without a lifespan works.

    Calling ``open`` is optional: it makes a fault show at start.
    """

    async def open(self) -> None:
        """Connect now, so that a wrong configuration fails at the start."""
        ...

    async def aclose(self) -> None:
        """Close connections and end threads; a later call starts them again."""
        ...


@runtime_checkable
class Store(Claims, KeyLocks, DeadLetterQueue, Reports, Openable, Protocol):
    """A store that remembers which events are in flight, done or dead.

    A function that needs only some of the calls names their protocol: ``Claims``, ``KeyLocks``,
    ``DeadLetterQueue``, ``Reports`` or ``Openable``, and for the inbox ``Queue`` or
    ``InboxListing``.
    """


@runtime_checkable
class InboxStore(Store, Queue, InboxListing, Protocol):
    """A store with an inbox, which holds events until workers have handled them."""
