"""Finds the unfinished events in a store that a version of an application cannot correctly finish.

For each event, the store remembers the names of the finished handlers and of the outstanding
handlers. A version that lacks an outstanding handler cannot complete the event. A version that has
renamed a finished handler runs it again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ..inbox.replay_id import ReplayId
from ..receiver import Receiver
from ..routing.table import HandlerTable
from ..stores.protocols import DeadLetterQueue, InboxListing
from ..stores.values import Delivery

_PAGE = 500


class Unfinished(Protocol):
    """An event of the inbox, a dead letter or a kept delivery."""

    @property
    def delivery(self) -> Delivery:
        """The delivery; its body is empty in listings."""
        ...

    @property
    def finished(self) -> frozenset[str]:
        """The handlers that have succeeded."""
        ...

    @property
    def outstanding(self) -> frozenset[str]:
        """The handlers recorded as failed or not run."""
        ...

    @property
    def place(self) -> str:
        """The event's cursor in the listing."""
        ...


class Problem(StrEnum):
    """The reason why a version of an application cannot correctly finish an event."""

    LACKS = "lacks"
    """The event needs handlers that the version does not have."""
    NO_HANDLER = "no_handler"
    """The version has no handler at all for the type of the event."""
    RENAMED = "renamed"
    """The version lacks handlers that have finished, and would run other handlers."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """An event that a version of an application cannot correctly finish, and why.

    Attributes:
        endpoint: the name of the receiving endpoint.
        event_id: the id of the event in the store.
        event_type: the type of the event; None if its body could not be read.
        problem: what is wrong.
        handlers: the handlers that the version lacks: those that the event needs, or, for
            ``RENAMED``, those that have finished.
        would_run: for ``RENAMED``, the handlers that would run although the event has never needed
            them.
    """

    endpoint: str
    event_id: str
    event_type: str | None
    problem: Problem
    handlers: frozenset[str] = frozenset()
    would_run: frozenset[str] = frozenset()


def misfits_of(table: HandlerTable, event: Unfinished) -> list[Misfit]:
    """Return the reasons why these handlers cannot correctly finish an event; empty if they can.

    Args:
        table: the handlers of the version.
        event: the event as the store lists it.
    """
    delivery, again = event.delivery, ReplayId.parse(event.delivery.event_id)
    own = {handler.name for handler in table.handlers}
    if delivery.event_type is not None:
        own = {handler.name for handler in table.of_type(delivery.event_type)}
    if again is not None:  # the replay of a handled event runs one handler
        own = own & {again.handler}

    def misfit(problem: Problem, *names: frozenset[str]) -> Misfit:
        return Misfit(delivery.endpoint, delivery.event_id, delivery.event_type, problem, *names)

    found = []
    needed = event.outstanding | ({again.handler} if again else frozenset())
    lacking = frozenset(needed - event.finished - own)
    if lacking:
        found.append(misfit(Problem.LACKS, lacking))
    elif not own:
        found.append(misfit(Problem.NO_HANDLER))
    if delivery.event_type is None or again is not None:
        return found
    # Leave out outstanding handlers: the store knows them by their present names, so none of them
    # is a finished handler with a new name.
    gone = event.finished - {handler.name for handler in table.handlers}
    would_run = frozenset(own - event.finished - event.outstanding)
    if gone and would_run:
        found.append(misfit(Problem.RENAMED, frozenset(gone), would_run))
    return found


class UnfinishedStore(InboxListing, DeadLetterQueue, Protocol):
    """The part of a store that lists unfinished events."""


async def misfits(receiver: Receiver, store: UnfinishedStore) -> AsyncIterator[Misfit]:
    """Yield every misfit among the unfinished events of a receiver's endpoint.

    These are the events of the inbox, the dead letters and the kept deliveries. Without an inbox,
    the store does not list an event that waits for the sender's next delivery.

    Args:
        receiver: the new version of the receiver; it need not be open.
        store: the store that the deployed version uses.

    Raises:
        StoreError: the store cannot be read.
    """
    table = HandlerTable(receiver.handlers, sender=receiver.sender)
    finds: Sequence[Callable[..., Awaitable[Sequence[Unfinished]]]] = (
        store.entries,
        store.dead_letters,
    )
    for find in finds:
        after: str | None = None
        while page := await find(endpoint=receiver.endpoint, after=after, limit=_PAGE):
            for event in page:
                for misfit in misfits_of(table, event):
                    yield misfit
            after = page[-1].place
