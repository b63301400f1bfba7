"""The events of senders that use the payload of the Standard Webhooks specification."""

from __future__ import annotations

from typing import Generic

from pydantic import JsonValue

from ..resources import Instant
from .event import DataT, Event, UnknownEvent

__all__ = ["StandardEvent", "UnknownStandardEvent"]


class StandardEvent(Event[DataT], Generic[DataT]):
    """The base for event classes of a sender with the specification's payload.

    The specification (version 1.0.0, Payload structure) recommends ``type``, ``timestamp`` and
    ``data``, and gives no event types: derive a class of your own for each type.

    Attributes:
        created_at: when the event happened, from ``timestamp``.
    """

    created_at: Instant


class UnknownStandardEvent(UnknownEvent, StandardEvent[JsonValue]):
    """An event of a type that has no class, with the specification's payload."""
