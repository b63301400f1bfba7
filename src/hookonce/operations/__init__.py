"""What operators need: records to watch, metrics and traces, the inspector and the doctor.

An observer is a subclass of ``Observer``; give it to ``Receiver(observers=[…])``. Those for a
library are in modules of their own, ``prometheus`` and ``opentelemetry``. Labels and attributes
come from bounded sets (what the package names, what the application registered), and hold no body,
signature or secret.

``inspector`` has the pages that show deliveries, ``doctor`` examines a receiver, and ``diagnosis``
tells why a saved delivery does not verify. None of the five is imported with this package, and none
imports another.
"""

from ..watching.records import (
    BatchFlushed,
    DeliveryAnswered,
    DeliveryAuthenticated,
    DeliveryReceived,
    DeliveryRefused,
    EventBuried,
    EventClaimed,
    EventEnqueued,
    EventFetched,
    EventParked,
    EventRetried,
    EventSettled,
    HandlerFailed,
    HandlerFinished,
    HandlerSkipped,
    HandlerStarted,
    LoopBlocked,
    Observer,
)

__all__ = [
    "BatchFlushed",
    "DeliveryAnswered",
    "DeliveryAuthenticated",
    "DeliveryReceived",
    "DeliveryRefused",
    "EventBuried",
    "EventClaimed",
    "EventEnqueued",
    "EventFetched",
    "EventParked",
    "EventRetried",
    "EventSettled",
    "HandlerFailed",
    "HandlerFinished",
    "HandlerSkipped",
    "HandlerStarted",
    "LoopBlocked",
    "Observer",
]
