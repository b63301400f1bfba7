"""Tools for operators: observers, metrics, traces, the inspector and the doctor.

An observer is a subclass of ``Observer``; pass it to ``Receiver(observers=[…])``. The modules
``prometheus`` and ``opentelemetry`` contain ready-made observers. Their labels and attributes come
from bounded sets (names that this package defines or the application registers), and hold no body,
signature or secret.

``inspector`` shows deliveries in a browser, ``doctor`` examines a receiver, ``diagnosis`` explains
why a saved delivery does not verify, and ``deployment`` compares the handlers of a new version with
the events in a store. This package imports none of these six modules, and none of them imports
another.
"""

from ..watching.disabling import FailureStreak
from ..watching.records import (
    BatchFlushed,
    DeliveryAnswered,
    DeliveryAuthenticated,
    DeliveryReceived,
    DeliveryRefused,
    EventBuried,
    EventClaimed,
    EventDeferred,
    EventEnqueued,
    EventFetched,
    EventRetried,
    EventSettled,
    HandlerFailed,
    HandlerFinished,
    HandlerSkipped,
    HandlerStarted,
    LoopBlocked,
    Observer,
    SkipReason,
)
from ..watching.refusals import Refusals
from ..watching.rotation import Rotation
from ..watching.workers import AttemptCounts, RunningHandler, WorkerReport

__all__ = [
    "AttemptCounts",
    "BatchFlushed",
    "DeliveryAnswered",
    "DeliveryAuthenticated",
    "DeliveryReceived",
    "DeliveryRefused",
    "EventBuried",
    "EventClaimed",
    "EventDeferred",
    "EventEnqueued",
    "EventFetched",
    "EventRetried",
    "EventSettled",
    "FailureStreak",
    "HandlerFailed",
    "HandlerFinished",
    "HandlerSkipped",
    "HandlerStarted",
    "LoopBlocked",
    "Observer",
    "Refusals",
    "Rotation",
    "RunningHandler",
    "SkipReason",
    "WorkerReport",
]
