"""Writes an event as the body that its sender would send."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from .envelope import Envelope
from .event import Event

_ENVELOPE = {"id", "type", "created_at", "data"}


def body_of(event: Event[Any], envelope: Envelope, *, exclude_unset: bool = False) -> bytes:
    """Return an event as a body.

    Args:
        event: the event.
        envelope: where the sender's bodies have type, time and data.
        exclude_unset: leave out the fields that were not set and have only their defaults.

    Raises:
        TypeError: a place of the envelope is a function, which cannot be reversed.
    """
    if envelope.is_direct:
        return event.model_dump_json(by_alias=True, exclude_unset=exclude_unset).encode()
    own = event.model_dump(
        mode="json", by_alias=True, exclude=_ENVELOPE, exclude_unset=exclude_unset
    )
    data = event.model_dump(
        mode="json", by_alias=True, include={"data"}, exclude_unset=exclude_unset
    )
    named = {"id": event.id, "type": event.type, "created_at": event.created_at}
    body = envelope.write({**own, **named, "data": next(iter(data.values()), None)})
    return to_json(body, inf_nan_mode="constants")
