"""The dependencies that all attempts of a receiver share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ..clock import Clock
from ..routing.table import HandlerTable
from ..stores.protocols import Claims, KeyLocks, Queue
from ..watching.absent_handlers import AbsentHandlers
from ..watching.observers import Observers
from .calls import Threads
from .limits import Limits
from .unrecorded import Unrecorded


class AttemptStore(Claims, KeyLocks, Protocol):
    """The part of a store that attempts use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies that all attempts of a receiver share.

    Attributes:
        endpoint: the name of the endpoint; part of every deduplication key.
        store: remembers claims, key locks and results.
        inbox: the same store if events wait in it for workers; otherwise None.
        handler_table: the handlers, and which of them are for an event.
        limits: time limits.
        clock: Unix time in seconds.
        observers: notified of every step.
        threads: where sync handlers run.
        absent: remembers the handlers that events need, and that this process does not have.
        unrecorded: the successes of this process that the store may not know.
    """

    endpoint: str
    store: AttemptStore
    inbox: Queue | None
    handler_table: HandlerTable
    limits: Limits
    clock: Clock
    observers: Observers
    threads: Threads
    absent: AbsentHandlers = field(default_factory=AbsentHandlers)
    unrecorded: Unrecorded = field(default_factory=Unrecorded)
