"""The store contract: what a backend must do, and the values that pass.

Each step is atomic. A claim is a lease with an owner (its token); only the owner may extend,
release or bury it (fencing), while ``complete`` is a fact that anybody who has seen it may record.
A claim that expires counts as an attempt, so a crash loop shows in ``attempt``; one that is given
back and began no handler does not.

What has succeeded is a fact as well: ``finished`` is remembered also where the claim is lost, in
the event's record and its dead letter, unless the event is done. ``outstanding`` are the handlers
known to have failed or not run. A store remembers them until they have finished or the event is
done, so that a process that lacks one of these handlers cannot complete the event.

A lease ends by a clock that nobody sets, where there is one: on one machine that of its uptime,
with a server the server's own. A clock given by the caller, in a test, serves for everything.

Every call may raise ``StoreError``; then the caller cannot know whether it was done.

The contract of stores that have an inbox: what waits there is handled, whatever restarts.

An event in the inbox has its body there from the put until it is done or dead. Taking it claims it,
and it is due again by itself when the claim's lease runs out. ``Store.complete`` and ``Store.bury``
take it out, ``Store.extend`` moves the time it is due, ``Store.release`` makes it due at once.
``Store.claim`` finds it in flight, since a worker will handle it, and ``Store.keep`` has nothing to
add to it.

A store may also have the calls of ``applications``, ``activity`` and ``reconciling``. Each of these
is optional.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, runtime_checkable

from ..clock import span_seconds
from ..errors import shows_half_built
from ..sender import SCHEDULE_SECONDS
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

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_RETENTION = timedelta(days=15)
"""The sender's delivery log is kept 14 days (interface, Limits); one more for clocks and care."""


WORKER_SECONDS = 30.0
"""How long after it last asked for work a worker counts as running."""


def check_retention(retention: float | timedelta) -> float:
    """Return the retention of done records in seconds; refuse one that ends too early."""
    seconds = span_seconds("retention", retention)
    if seconds < SCHEDULE_SECONDS:
        raise ValueError(
            f"retention must be at least 26 hours, not {timedelta(seconds=seconds)}: the sender"
            " retries for about 25 hours, and a forgotten event would be handled again"
        )
    return seconds


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


class Claims(Protocol):
    """Who handles what: one owner at a time, and what becomes of it."""

    @property
    def keeps_bodies(self) -> bool:
        """Whether dead letters and their bytes survive a restart."""
        ...

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event for ``lease`` seconds; with the token of the live claim, get it again."""
        ...

    async def extend(
        self,
        claim: Claimed,
        finished: frozenset[str] = frozenset(),
        outstanding: frozenset[str] = frozenset(),
    ) -> Ownership:
        """Start the lease anew, and remember what has succeeded so far and what has not."""
        ...

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled, whoever holds the claim by now."""
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
        """Give the event back for another attempt, with what has succeeded and what went wrong.

        If its delivery was kept and nobody will bring it again, it is a dead letter
        (``EXHAUSTED``).
        Unless a handler ``began``, the attempt does not count: the next one has its number.
        """
        ...

    async def keep(
        self, claim: Claimed, delivery: Delivery, *, dead_at: float | None = None
    ) -> Ownership:
        """Keep the delivery beside its claim, for the case that the claim ends unsettled.

        Args:
            claim: the owner's.
            delivery: what to keep.
            dead_at: Unix time until which the sender may bring the event again; None if it will
                not. From then on an event that is not settled, and that nobody holds, is a dead
                letter (``INTERRUPTED``). Before, it can be claimed as ever.

        """
        ...

    async def keep_in_flight(self, delivery: Delivery, *, dead_at: float | None = None) -> None:
        """Keep a delivery whose event somebody else has claimed; the rest is as in ``keep``."""
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
        """Make the event a dead letter, with the delivery given now or kept before."""
        ...


class KeyLocks(Protocol):
    """What lets through one run at a time for a handler and a key, and the newest that succeeded.

    A gate knows nothing of the records of events, and no step touches both. One that is free, has
    no mark and nobody waiting leaves nothing behind; a mark is forgotten when the retention of done
    records has passed since it last rose.
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
        """Pass a gate for ``lease`` seconds, or learn why not.

        With the token that has it, again, with the lease begun anew: this is how one is extended,
        and why a call may be repeated.

        Args:
            gate: which.
            token: made once for a run of a handler.
            lease: seconds until it is free again, unless it is entered again or left.
            mark: of an event that is to be left out if it comes too late: ``Stale`` where a newer
                event or this one itself has succeeded, also while somebody has the gate.
            drop_ties: whether another event of the same time makes it late as well.
            waiting: an event of the inbox to be noted as waiting where somebody else has the gate;
                once, in the order of arrival. The note is forgotten when that lease ends.

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
        """Give a gate back, if this token has it, and return who is to come next.

        ``event`` names an event of the inbox that has had its turn, or needs none: it waits here no
        more, if it was noted. Called later, it would use up the call without entering.

        ``mark`` says that the run has succeeded: the gate's mark rises to it, if it was lower,
        whoever has the gate by now. If nobody has it after that, the event that has waited longest
        is taken off the list and returned, for the caller to make it due (``Listing.make_due``).
        """
        ...


class DeadLetterQueue(Protocol):
    """Dead letters, for a person to decide about."""

    async def dead_letters(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedDeadLetters]
    ) -> list[DeadLetter]:
        """Return dead letters, and what may become one (``is_kept``), with empty bodies.

        They come in the order in which they were made, the oldest first.

        Args:
            after: the ``place`` of one that was listed: only those behind it, wherever it is now.
            limit: how many at the most.
            wanted: which; all where nothing is given.

        Raises:
            ValueError: ``after`` is no place in this store's listings.

        """
        ...

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter with its body."""
        ...

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Claim a dead letter for another attempt; it stays one until that is completed.

        One that is only kept stays so. None where there is no such letter.
        """
        ...

    async def discard(self, key: DeliveryKey) -> bool:
        """Forget a dead letter and remember the event as done; False where there is none."""
        ...


class Reports(Protocol):
    """What a person or a probe asks for, and upkeep."""

    async def warnings(self) -> tuple[str, ...]:
        """Return what an operator should mend though the store works; raise if it does not."""
        ...

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        """Return how much the store holds, of one endpoint or of all."""
        ...

    async def known(self, endpoint: str, event_ids: Sequence[str]) -> dict[str, Known]:
        """Return what is known of these events of an endpoint; unknown ones are left out."""
        ...

    async def prune(self) -> int:
        """Remove records whose retention is over, and return how many."""
        ...


class Queue(Protocol):
    """The inbox as intake and workers use it."""

    async def enqueue(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
    ) -> EnqueueResult:
        """Store a delivery durably, unless its event is known; by its own token, ``Stored`` again.

        An event whose attempt runs inside a request, in a process that has no inbox, is stored as
        well and is due when that attempt's lease ends. One whose delivery was kept since nobody
        will bring it again is ``Waiting``; else the inbox has it from now on.

        Args:
            delivery: what was delivered.
            token: made once per request.
            max_depth: how many events of the endpoint the inbox may hold.
            max_bytes: how many bytes their bodies may add up to.

        """
        ...

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim the events of an endpoint that are due, the longest due first.

        Each counts an attempt, and one that ended without a word goes down in the history.

        Args:
            limit: how many events at the most, fewer if they are large; with 0 the worker only
                says that it is there.
            lease: seconds until they are due again, unless the claim is extended or settled.
            endpoint: whose events.
            worker: a name that no other worker has.
            token: made once per call. A call repeated with the worker's last token returns what
                that call has taken and still holds, with the lease begun anew, so that a lost reply
                costs no event its attempt.

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
        """Give an event back to the inbox, due after so many seconds; only as the owner.

        ``error`` goes into the event's history; the rest is as in ``Store.release``.
        """
        ...

    async def wait(self, endpoint: str, seconds: float) -> None:
        """Return when there may be something new to take, after ``seconds`` at the latest.

        A put wakes it within tens of milliseconds, also one by another process or machine. It may
        return without a reason.
        """
        ...

    async def retire(self, worker: str) -> None:
        """Forget a worker that ends."""
        ...

    async def entry(self, key: DeliveryKey) -> Entry | None:
        """Return one event of the inbox with its body."""
        ...


@runtime_checkable
class Listing(Reports, Protocol):
    """The inbox as a person looks at it."""

    async def entries(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[Wanted]
    ) -> list[Entry]:
        """Return what is in the inbox, oldest first, with empty bodies.

        The arguments and the ValueError are those of ``Letters.dead_letters``.
        """
        ...

    async def entry(self, key: DeliveryKey) -> Entry | None:
        """Return one event of the inbox with its body."""
        ...

    async def make_due(self, key: DeliveryKey) -> bool:
        """Make an event that waits for a later attempt due now; False where none of it waits."""
        ...


class Openable(Protocol):
    """What opens by itself at its first use, so that a mounted app without a lifespan works.

    ``open`` only makes a fault show at start.
    """

    async def open(self) -> None:
        """Connect and prepare, so that what cannot work fails now."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and threads; a later call opens again."""
        ...


@runtime_checkable
class Store(Claims, KeyLocks, DeadLetterQueue, Reports, Openable, Protocol):
    """What remembers which events are in flight, done or dead.

    Whoever uses one names the part it uses: ``Claims``, ``Gates``, ``Letters``, ``Reports``,
    ``Openable``, and of one with an inbox ``Queue`` and ``Listing``.
    """


@runtime_checkable
class InboxStore(Store, Queue, Listing, Protocol):
    """A store that can hold events until workers have handled them."""


def _passed(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Wrapped, P], Coroutine[Any, Any, T]]:
    name = method.__name__

    @wraps(method)
    async def passed(self: Wrapped, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.call(name, partial(getattr(self.inner, name), *args, **kwargs))

    return passed


@shows_half_built
class Wrapped:
    """A store around another: every call of the contract goes through ``call``.

    Args:
        inner: the other store.

    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.inner).__name__})"

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002 - for subclasses
        """Pass one call on; a subclass says here what comes before and after it.

        Args:
            name: the method of the contract.
            call: asks the other store.

        """
        return await call()

    @property
    def keeps_bodies(self) -> bool:
        """As the other store says."""
        return self.inner.keeps_bodies

    open = _passed(Store.open)
    warnings = _passed(Store.warnings)
    aclose = _passed(Store.aclose)
    claim = _passed(Store.claim)
    extend = _passed(Store.extend)
    complete = _passed(Store.complete)
    release = _passed(Store.release)
    keep = _passed(Store.keep)
    keep_in_flight = _passed(Store.keep_in_flight)
    bury = _passed(Store.bury)
    acquire_key_lock = _passed(Store.acquire_key_lock)
    release_key_lock = _passed(Store.release_key_lock)
    dead_letters = _passed(Store.dead_letters)
    dead_letter = _passed(Store.dead_letter)
    replay = _passed(Store.replay)
    discard = _passed(Store.discard)
    known = _passed(Store.known)
    prune = _passed(Store.prune)
    stats = _passed(Store.stats)


class WrappedInbox(Wrapped):
    """The same around a store that has an inbox."""

    inner: InboxStore

    enqueue = _passed(InboxStore.enqueue)
    fetch = _passed(InboxStore.fetch)
    retry = _passed(InboxStore.retry)
    wait = _passed(InboxStore.wait)
    retire = _passed(InboxStore.retire)
    entries = _passed(InboxStore.entries)
    entry = _passed(InboxStore.entry)
    make_due = _passed(InboxStore.make_due)
