"""Realistic events of every documented type, for tests, the command line and the demo."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any, TypeVar, overload

from pydantic import JsonValue

from ..clock import system_clock, utc
from ..errors import PayloadError
from ..events import EVENT_CLASSES, Event, EventClass, EventParser, event_types_of
from ..events.openai import OPENAI_EVENT_CLASSES
from ..senders import Sender, openai, publishing
from ..senders.sender import check_sender
from .fields import fields_of, wire_names
from .finite import non_finite

E = TypeVar("E", bound=Event[Any])

_CHANNEL: dict[str, JsonValue] = {
    "id": "ch_7Qm2xKfP",
    "platform": "instagram",
    "username": "harbour.bakery",
    "displayName": "Harbour Bakery",
    "avatarUrl": "https://cdn.example/avatars/harbour-bakery.jpg",
    "status": "active",
    "statusReason": None,
    "followerCount": 18240,
    "connectedAt": "2026-03-02T08:15:30.000Z",
}
_TARGET: dict[str, JsonValue] = {
    "id": "tgt_4Rt9uWcA",
    "channelId": "ch_7Qm2xKfP",
    "platform": "instagram",
    "username": "harbour.bakery",
    "contentType": "feed",
    "caption": None,
    "mediaIds": ["med_1Zb8"],
    "firstComment": None,
    "settings": {},
    "status": "published",
    "externalPostId": "17912345678901234",
    "permalink": "https://instagram.example/p/C9aX1bYz",
    "error": None,
    "publishedAt": "2026-11-20T09:30:04.512Z",
}
_SIP: dict[str, JsonValue] = {"sip_headers": [{"name": "Max-Forwards", "value": "63"}]}
_AGENT_SESSION: dict[str, JsonValue] = {"id": "sess_abc123", "environment_type": "none"}
_DATA: dict[str, dict[str, JsonValue]] = {
    "post.target.published": _TARGET,
    "post.target.failed": _TARGET
    | {
        "status": "failed",
        "externalPostId": None,
        "permalink": None,
        "publishedAt": None,
        "error": {"code": "media.rejected", "message": "The platform rejected the image."},
    },
    "comment.received": {
        "id": "cmt_8Hs5yLqD",
        "text": "Do you have the walnut bread on Saturdays? 🍞",
        "status": "open",
        "isHidden": False,
        "channelId": "ch_7Qm2xKfP",
        "platform": "instagram",
        "externalPostId": "17912345678901234",
        "authorUsername": "ines.walks",
        "authorName": "Inês",
        "createdAt": "2026-11-20T10:02:11.000Z",
        "postId": "post_2Vn6tBjE",
        "parentId": None,
    },
    "message.received": {
        "message": {"kind": "direct_message", "text": "Hello, are you open on Sunday?"},
    },
    "channel.unhealthy": _CHANNEL
    | {"status": "needs_reconnect", "statusReason": "The access token has expired."},
    "channel.disconnected": _CHANNEL | {"status": "disconnected"},
    "webhook.test": {},
    # OpenAI's API reference, Webhook Events.
    **{name: {"id": "resp_abc123"} for name in OPENAI_EVENT_CLASSES},
    "realtime.call.incoming": {"call_id": "rtc_479a275623b54bdb9b6fbae2f7cbd408", **_SIP},
    "live.call.incoming": {"session_id": "live_abc123", **_SIP},
    "live.transport.incoming": {"session_id": "live_abc123", "type": "sip", **_SIP},
    "live.transport.connected": {"session_id": "live_abc123", "type": "webrtc"},
    "agent.session.created": _AGENT_SESSION,
    "agent.session.in_progress": _AGENT_SESSION,
    "agent.session.idle": _AGENT_SESSION,
    "agent.session.failed": _AGENT_SESSION,
    "agent.session.action_required": {
        "id": "sess_abc123",
        "required_action": {"type": "function_call"},
    },
}
_OPENAI_FIELDS: dict[str, JsonValue] = {"body_id": "evt_abc123", "object": "event"}


def new_event_id() -> str:
    """Return a random event id with the documented prefix."""
    return f"evt_{token_hex(12)}"


def event_body(
    event_type: str,
    *,
    event_id: str | None = None,
    created_at: datetime | None = None,
    workspace_id: str = "ws_5Kd3mNpS",
    data: Mapping[str, JsonValue] | None = None,
    extra: bool = False,
    sender: Sender = publishing,
) -> bytes:
    """Return the JSON body of a realistic event.

    Args:
        event_type: a documented type, or another type, whose sample has empty data.
        event_id: a new id by default.
        created_at: an aware datetime; now by default.
        workspace_id: the id of the workspace to which the event belongs; only for the default
            sender.
        data: the fields that differ from the sample. Names may be ``author_username`` or
            ``authorUsername``; nested objects are merged into those of the sample.
        extra: allow fields that the type does not have.
        sender: the sender of the body. For types other than those of ``publishing`` and ``openai``,
            give the whole data.

    Raises:
        TypeError: the sender's envelope has a function, so no body can be written for it.
        ValueError: the type does not have a field of ``data`` (the message suggests a similar
            name), or a number is NaN or infinite.
    """
    check_sender(sender)
    return _body(
        event_type,
        _class_of(event_type, sender),
        event_id=event_id or new_event_id(),
        created_at=created_at,
        workspace_id=workspace_id,
        data=data,
        extra=extra,
        sender=sender,
    )


def _class_of(event_type: str, sender: Sender) -> EventClass | None:
    known = (cls for cls in sender.event_classes if event_type in event_types_of(cls))
    return next(known, None)


def _body(
    event_type: str,
    event_class: EventClass | None,
    *,
    event_id: str,
    created_at: datetime | None,
    workspace_id: str,
    data: Mapping[str, JsonValue] | None,
    extra: bool,
    sender: Sender,
) -> bytes:
    if (place := non_finite(data or {})) is not None:
        raise ValueError(f"data: {place}: JSON has no NaN or infinity")
    fields = None if event_class is None else fields_of(event_class).objects.get("data")
    sample = _DATA.get(event_type, {})
    created = created_at or utc(system_clock())
    merged = _merged(sample, wire_names(data or {}, fields, sample, extra=extra))
    if sender.envelope.is_direct:
        envelope = {
            "id": event_id,
            "type": event_type,
            "createdAt": created.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "workspaceId": workspace_id,
            "data": merged,
        }
    else:
        named = {"id": event_id, "type": event_type, "created_at": created.astimezone(UTC)}
        own = _OPENAI_FIELDS if sender.unknown_event.owner == "openai" else {}
        envelope = sender.envelope.write({**own, **named, "data": merged})
    return json.dumps(envelope, ensure_ascii=False, separators=(",", ":")).encode()


@overload
def make_event(
    event: type[E],
    *,
    event_id: str | None = ...,
    created_at: datetime | None = ...,
    workspace_id: str = ...,
    data: Mapping[str, JsonValue] | None = ...,
    extra: bool = ...,
    sender: Sender = ...,
) -> E: ...
@overload
def make_event(
    event: str,
    *,
    event_id: str | None = ...,
    created_at: datetime | None = ...,
    workspace_id: str = ...,
    data: Mapping[str, JsonValue] | None = ...,
    extra: bool = ...,
    sender: Sender = ...,
) -> Event[Any]: ...


def make_event(
    event: str | EventClass,
    *,
    event_id: str | None = None,
    created_at: datetime | None = None,
    workspace_id: str = "ws_5Kd3mNpS",
    data: Mapping[str, JsonValue] | None = None,
    extra: bool = False,
    sender: Sender | None = None,
) -> Event[Any]:
    """Return a realistic event.

    Args:
        event: an event class, your own or a documented one, or an event type. A class gets the
            sample of its first type; the sample of an undocumented type has empty data.
        event_id: as for ``event_body``.
        created_at: as for ``event_body``.
        workspace_id: as for ``event_body``.
        data: as for ``event_body``.
        extra: as for ``event_body``.
        sender: as for ``event_body``; by default OpenAI for the classes of its events.

    Raises:
        TypeError: as for ``event_body``.
        ValueError: ``data`` does not fit the class or type; the message names the fields.
    """
    own = () if isinstance(event, str) else (event,)
    event_type = event if isinstance(event, str) else event_types_of(event)[0]
    if sender is None:
        is_openais = not isinstance(event, str) and event.owner == openai.name
        sender = openai if is_openais else publishing
    check_sender(sender)
    event_id = event_id or new_event_id()
    body = _body(
        event_type,
        _class_of(event_type, sender) if isinstance(event, str) else event,
        event_id=event_id,
        created_at=created_at,
        workspace_id=workspace_id,
        data=data,
        extra=extra,
        sender=sender,
    )
    try:
        if not own and (sender.event_classes, sender.envelope) == _DOCUMENTED:
            return _documented.parse(body)
        return EventParser(own, sender=sender).parse(body, event_id)
    except PayloadError as error:
        raise ValueError(f"cannot make a {event_type} event: {error}") from None


_documented = EventParser(EVENT_CLASSES.values())
_DOCUMENTED = publishing.event_classes, publishing.envelope


def _merged(base: Mapping[str, JsonValue], changes: Mapping[str, JsonValue]) -> JsonValue:
    result: dict[str, JsonValue] = dict(base)
    for name, value in changes.items():
        known = result.get(name)
        result[name] = (
            _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
        )
    return result
