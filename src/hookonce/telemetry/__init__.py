"""What can be watched, and observers for metrics and traces.

An observer is a subclass of ``Observer``; give it to ``Receiver(observers=[…])``. Those for a
library are in modules of their own, ``prometheus`` and ``opentelemetry``; neither imports the
other's. Labels and attributes come from bounded sets (what the package names, what the application
registered), and hold no body, signature or secret.
"""

from ..delivery.records import (
    BatchFlushed,
    DeliveryAnswered,
    DeliveryAuthenticated,
    DeliveryReceived,
    DeliveryRefused,
    EventBuried,
    EventClaimed,
    EventParked,
    EventPut,
    EventRetried,
    EventSettled,
    EventTaken,
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
    "EventParked",
    "EventPut",
    "EventRetried",
    "EventSettled",
    "EventTaken",
    "HandlerFailed",
    "HandlerFinished",
    "HandlerSkipped",
    "HandlerStarted",
    "LoopBlocked",
    "Observer",
]
