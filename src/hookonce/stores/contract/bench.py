"""The bench, on which a rule tests a store; the groups of rules; and helpers for rules."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any, Protocol, TypeAlias, TypeVar

from ...clock import Clock, ManualClock
from ..activity import ActivityStore
from ..applications import RegisteringStore
from ..handled import HandledStore
from ..protocols import DEFAULT_RETENTION, InboxStore, Store
from ..reconciling import ReconcilingStore
from ..values import (
    Batch,
    Claimed,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    EnqueueResult,
    Entry,
    Fetched,
    Ownership,
    Stored,
    Token,
    delivery_key,
    new_token,
)

T = TypeVar("T")

START = 1_700_000_000.0
LEASE = 30.0
HOUR = 3600.0
RETENTION = DEFAULT_RETENTION.total_seconds()
PATIENCE_SECONDS = 10.0
"""The longest time that a rule waits for a store."""

NONE: frozenset[str] = frozenset()


class MakeStore(Protocol):
    """Makes a store: a function, or the class of the store with its first arguments bound.

    The store takes the time from ``clock``, also for leases, and remembers handled events for the
    ``retention``.
    """

    def __call__(self, *, clock: Clock, retention: timedelta) -> Store:
        """Return a new store."""
        ...


def _lacks(store: Store, protocol: type) -> str:
    names = sorted(name for name in dir(protocol) if not hasattr(store, name))
    return f"{type(store).__name__} is no {protocol.__name__}; it lacks {', '.join(names)}"


class Bench:
    """Storage that is empty at first, and the stores that a rule opens on it.

    Args:
        make: makes a store that uses this storage. At the end of a rule all stores are closed.
        shares_data: whether all stores that ``make`` returns have the same data. It is False for a
            store that keeps its data in its own object; the rules about two stores then pass.

    Attributes:
        clock: the clock of all stores; rules move it forward and back.
        shares_data: as given.
    """

    def __init__(self, make: MakeStore, *, shares_data: bool = True) -> None:
        if not __debug__:
            raise RuntimeError("the rules are assert statements; run Python without -O")
        self.clock: ManualClock = ManualClock(START)
        self.shares_data = shares_data
        self._make = make
        self._opened: list[Store] = []

    @property
    def store(self) -> Store:
        """The store under test, which is the first store that was opened."""
        return self._opened[0] if self._opened else self.open()

    @property
    def inbox(self) -> InboxStore:
        """The store under test, if it has an inbox."""
        assert isinstance(self.store, InboxStore), _lacks(self.store, InboxStore)
        return self.store

    @property
    def activity(self) -> ActivityStore:
        """The store under test, if it has an activity feed."""
        assert isinstance(self.store, ActivityStore), _lacks(self.store, ActivityStore)
        return self.store

    @property
    def applications(self) -> RegisteringStore:
        """The store under test, if it registers applications."""
        assert isinstance(self.store, RegisteringStore), _lacks(self.store, RegisteringStore)
        return self.store

    @property
    def reconciling(self) -> ReconcilingStore:
        """The store under test, if it remembers ignored types and accepted gaps."""
        assert isinstance(self.store, ReconcilingStore), _lacks(self.store, ReconcilingStore)
        return self.store

    @property
    def handled(self) -> HandledStore:
        """The store under test, if it keeps the deliveries of handled events."""
        assert isinstance(self.store, HandledStore), _lacks(self.store, HandledStore)
        return self.store

    def open(self, *, retention: timedelta = DEFAULT_RETENTION) -> Store:
        """Open another store on the bench's data, and return it."""
        store = self._make(clock=self.clock, retention=retention)
        self._opened.append(store)
        return store

    async def aclose(self) -> None:
        """Close all stores."""
        while self._opened:
            await self._opened.pop().aclose()


Rule: TypeAlias = Callable[[Bench], Coroutine[Any, Any, None]]
"""Checks one promise of the contract; raises AssertionError if the store breaks it."""

Check: TypeAlias = Callable[..., Coroutine[Any, Any, None]]


class Group:
    """The rules for stores that have the same calls, in the order of their definition."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def __call__(self, check: Check) -> Check:
        """Add a rule."""
        self.add(check.__name__, check)
        return check

    def each(self, **values: Iterable[Any]) -> Callable[[Check], Check]:
        """Add a rule for each combination of argument values."""

        def add(check: Check) -> Check:
            for combination in product(*values.values()):
                shown = "-".join(
                    value if isinstance(value, str) else repr(value) for value in combination
                )
                given = dict(zip(values, combination, strict=True))
                name = f"{check.__name__}[{shown}]".encode("unicode_escape").decode()
                self.add(name, partial(check, **given))
            return check

        return add

    def add(self, name: str, check: Check) -> None:
        """Add a rule under a name; the bench closes its stores when the rule ends."""

        async def rule(bench: Bench) -> None:
            try:
                await check(bench)
            finally:
                await bench.aclose()

        rule.__name__ = rule.__qualname__ = name
        self.rules.append(rule)


every_store: Group = Group()
with_bodies: Group = Group()
with_inbox: Group = Group()
with_activity: Group = Group()
with_applications: Group = Group()
with_reconciling: Group = Group()
with_handled: Group = Group()


@contextmanager
def raises(error: type[Exception]) -> Iterator[None]:
    """Raise AssertionError unless the block raises this error."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"nothing was raised; expected {error.__name__}")


def only(items: Iterable[T]) -> T:
    """Return the only item."""
    found = list(items)
    assert len(found) == 1, f"there are {len(found)} items, not one: {found}"
    return found[0]


class _About:
    """A time that equals any time within 10 ms, because stores round times."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and abs(other - self._seconds) <= 0.01

    def __hash__(self) -> int:
        raise TypeError("two times that are about equal may have different hashes")

    def __repr__(self) -> str:
        return f"about {self._seconds}"


def about(seconds: float) -> Any:
    """Return an object that equals any time within 10 ms, because stores round times."""
    return _About(seconds)


def delivery(
    event_id: str = "evt_1",
    *,
    endpoint: str = "default",
    event_type: str | None = "post.target.failed",
    body: bytes | None = None,
    received_unix: float = START - 0.75,
) -> Delivery:
    """Return a delivery whose body is not text."""
    content = event_id.encode() + bytes(range(256)) if body is None else body
    return Delivery(endpoint, event_id, event_type, received_unix, content)


DELIVERY = delivery()
KEY = DELIVERY.key


def key_of(event_id: str, endpoint: str = "default") -> DeliveryKey:
    """Return the key of an event."""
    return delivery_key(endpoint, event_id)


async def claim(
    store: Store, key: DeliveryKey = KEY, *, lease: float = LEASE, token: Token | None = None
) -> Claimed:
    """Claim an event; AssertionError if the store does not grant the claim."""
    result = await store.claim(key, token or new_token(), lease)
    assert isinstance(result, Claimed), f"the claim was answered {result}"
    return result


async def claimed_by_another(store: Store, key: DeliveryKey = KEY) -> type[object]:
    """Claim the event as another caller, and return the type of the answer."""
    return type(await store.claim(key, new_token(), LEASE))


async def bury(
    store: Store,
    buried: Delivery = DELIVERY,
    *,
    error: str = "it failed",
    finished: frozenset[str] = NONE,
    outstanding: frozenset[str] = NONE,
) -> None:
    """Claim an event and make it a dead letter."""
    ownership = await store.bury(
        await claim(store, buried.key),
        DeadReason.EXHAUSTED,
        error=error,
        finished=finished,
        outstanding=outstanding,
        delivery=buried,
    )
    assert ownership is Ownership.HELD


async def replay(store: Store, key: DeliveryKey = KEY) -> Claimed:
    """Claim a dead letter for a replay; AssertionError if the store does not grant the claim."""
    result = await store.replay(key, new_token(), LEASE)
    assert isinstance(result, Claimed), f"the replay was answered {result}"
    return result


async def enqueue(inbox: InboxStore, one: Delivery = DELIVERY) -> EnqueueResult:
    """Store a delivery with a new token."""
    return await inbox.enqueue(one, new_token())


async def enqueue_all(inbox: InboxStore, *event_ids: str) -> None:
    """Store deliveries of new events."""
    for event_id in event_ids:
        assert await enqueue(inbox, delivery(event_id)) == Stored()


async def fetch(
    inbox: InboxStore,
    limit: int = 10,
    *,
    lease: float = LEASE,
    endpoint: str = "default",
    worker: str = "worker",
    token: Token | None = None,
) -> Batch:
    """Fetch the events of the inbox that are due."""
    return await inbox.fetch(
        limit, lease, endpoint=endpoint, worker=worker, token=token or new_token()
    )


async def fetch_one(inbox: InboxStore) -> Fetched:
    """Fetch the only event that is due; AssertionError unless exactly one event is due."""
    return only((await fetch(inbox)).fetched)


def ids(batch: Batch) -> list[str]:
    """Return the webhook-ids of fetched events."""
    return [fetched.delivery.event_id for fetched in batch.fetched]


async def dead_letter_of(store: Store, key: DeliveryKey = KEY) -> DeadLetter:
    """Return the dead letter of an event; AssertionError if there is none."""
    found = await store.dead_letter(key)
    assert found is not None, f"{key} has no dead letter"
    return found


async def entry_of(inbox: InboxStore, key: DeliveryKey = KEY) -> Entry:
    """Return an event's entry in the inbox; AssertionError if there is none."""
    found = await inbox.entry(key)
    assert found is not None, f"{key} is not in the inbox"
    return found
