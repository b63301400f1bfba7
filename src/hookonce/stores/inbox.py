"""The contract of stores that have an inbox: what waits there is handled, whatever restarts.

An event in the inbox has its body there from the put until it is done or dead. Taking it claims it,
and it is due again by itself when the claim's lease runs out. ``Store.complete`` and ``Store.bury``
take it out, ``Store.extend`` moves the time it is due, ``Store.release`` makes it due at once.
``Store.claim`` finds it in flight, since a worker will handle it, and ``Store.keep`` has nothing to
add to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from ..types import DeliveryKey, Token
from .base import Claimed, Dead, Delivery, Done, FailedAttempt, Ownership, Store

__all__ = [
    "Batch",
    "Entry",
    "Full",
    "InboxStore",
    "PutResult",
    "Stored",
    "Taken",
    "Waiting",
]


@dataclass(frozen=True, slots=True)
class Stored:
    """The event is in the inbox now, put there by this caller."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The event was in the inbox already, waiting or being handled."""


@dataclass(frozen=True, slots=True)
class Full:
    """The inbox has no room for one event more; nothing was stored."""


PutResult: TypeAlias = Stored | Waiting | Full | Done | Dead


@dataclass(frozen=True, slots=True)
class Taken:
    """An event taken from the inbox: the claim it is handled under, and what was delivered."""

    claim: Claimed
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Batch:
    """What a worker was given.

    Attributes:
        taken: events to handle now.
        next_due: seconds until another event of the endpoint is due, 0 if one is; None if none
            waits.

    """

    taken: tuple[Taken, ...]
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

    """

    delivery: Delivery
    due_at: float
    in_flight: bool
    attempts: int
    finished: frozenset[str]
    history: tuple[FailedAttempt, ...]


@runtime_checkable
class InboxStore(Store, Protocol):
    """A store that can hold events until workers have handled them."""

    async def put(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
    ) -> PutResult:
        """Store a delivery durably, unless its event is known; by its own token, ``Stored`` again.

        An event whose attempt runs inside a request, in a process that has no inbox, is stored as
        well and is due when that attempt's lease ends. One whose delivery was kept is ``Waiting``.

        Args:
            delivery: what was delivered.
            token: made once per request.
            max_depth: how many events of the endpoint the inbox may hold.
            max_bytes: how many bytes their bodies may add up to.

        """
        ...

    async def take(
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
    ) -> Ownership:
        """Give an event back to the inbox, due after so many seconds; only as the owner.

        ``error`` goes into the event's history, with what has succeeded beside it.
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

    async def entries(
        self, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
    ) -> list[Entry]:
        """Return what is in the inbox, oldest first, with empty bodies."""
        ...

    async def entry(self, key: DeliveryKey) -> Entry | None:
        """Return one event of the inbox with its body."""
        ...

    async def hasten(self, key: DeliveryKey) -> bool:
        """Make an event that waits for a later attempt due now; False where none of it waits."""
        ...
