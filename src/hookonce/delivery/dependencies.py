"""What a receiver's rooms share, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ..clock import Clock
from ..routing.router import Router
from ..stores.contract import Claims, KeyLocks, Queue
from ..stores.values import DeliveryKey, KeyLock, Watermark
from ..watching.observers import Observers
from .calls import Threads
from .limits import Limits


class RunStore(Claims, KeyLocks, Protocol):
    """What runs ask of a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a receiver's rooms share.

    Attributes:
        endpoint: the name that scopes what is handled once.
        store: what remembers.
        inbox: the same store, where events wait in it.
        router: the handlers.
        limits: time limits.
        clock: Unix time in seconds.
        observers: who is told of every step.
        threads: where sync handlers run.
        unrecorded: the handlers that have succeeded in an attempt which could not be recorded
            while its lease lived; the next attempt in this process leaves them out.
        watermarks: of each gate the newest event that has succeeded in this process, while the
            store may not know it.

    """

    endpoint: str
    store: RunStore
    inbox: Queue | None
    router: Router
    limits: Limits
    clock: Clock
    observers: Observers
    threads: Threads
    unrecorded: dict[DeliveryKey, set[str]] = field(default_factory=dict)
    watermarks: dict[KeyLock, Watermark] = field(default_factory=dict)
