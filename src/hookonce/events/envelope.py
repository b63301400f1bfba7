"""``Envelope``: the places of an event's type, time and data in a sender's bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias

Place: TypeAlias = str | Callable[[Mapping[str, Any]], object]
"""A path of names in the body, such as ``meta.type``, or a function of the parsed body."""

Times: TypeAlias = Literal["iso8601", "seconds", "milliseconds"]
"""How a sender writes times: as text, or as a number of Unix seconds or milliseconds."""

# The JSON names of the fields of an event. If a body has another field with such a name, `read`
# renames that field.
_TAKEN = frozenset({"id", "type", "created_at", "createdAt", "data"})
_RENAMED = "body_"


class MissingFieldError(Exception):
    """A body lacks a field of the envelope.

    Args:
        field: the path of the field.
    """

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The places of an event's type, time and data in a sender's bodies.

    A place is a path of names, such as ``type`` or ``meta.type``, or a function of the parsed body.
    A body that lacks one of these fields is unreadable. The other fields of the body's top level
    are fields of the event: declare them on the event class. If such a field has the name of an
    event's own field (``id``, ``type``, ``created_at`` or ``data``), the event has it as
    ``body_id``, ``body_type`` and so on.

    Attributes:
        type: the place of the event type.
        created_at: the place of the time; None if the bodies have none. The time may be ISO 8601
            text (UTC if it has no offset) or a number: Unix seconds up to 2e10, and milliseconds
            above.
        data: the place of the data; None if the whole body is the data.
        id: the path of an id in the body that must equal the signed webhook-id; None if the body
            has no such id.
        times: how the sender writes times, for bodies that this package writes, such as those of
            test senders. All three forms are read.

    Raises:
        TypeError: a place is neither a path nor a function, or an ``async`` function.
        ValueError: a path is empty, or ``times`` is unknown.
    """

    type: Place = "type"
    created_at: Place | None = "timestamp"
    data: Place | None = "data"
    id: str | None = None
    times: Times = "iso8601"

    def __post_init__(self) -> None:
        for name, optional in (("type", False), ("created_at", True), ("data", True), ("id", True)):
            place = getattr(self, name)
            if isinstance(place, str):
                if not all(place.split(".")):
                    raise ValueError(f"{name} takes a path, such as 'meta.type', not {place!r}")
            elif not (callable(place) and name != "id") and not (optional and place is None):
                kinds = "a path" if name == "id" else "a path or a function of the body"
                raise TypeError(f"{name} takes {kinds}, not {place!r}")
            elif iscoroutinefunction(place):
                raise TypeError(f"{name} takes a plain function, not the async {place!r}")
        if self.times not in {"iso8601", "seconds", "milliseconds"}:
            raise ValueError(
                f"times takes 'iso8601', 'seconds' or 'milliseconds', not {self.times!r}"
            )

    @property
    def is_direct(self) -> bool:
        """Whether the bodies name their fields as the JSON of ``Event`` does."""
        return (self.type, self.created_at, self.data, self.id) == _DIRECT

    def path_of(self, field: str) -> str:
        """Return the path of an ``Event`` field in the body; by default the field's name."""
        place = getattr(self, "created_at" if field == "createdAt" else field, None)
        if isinstance(place, str):
            return place
        return _original(field)

    def read(self, body: Mapping[str, Any], message_id: str | None) -> dict[str, Any]:
        """Return the fields of the event in a parsed body.

        Args:
            body: the parsed body.
            message_id: the signed webhook-id. It becomes the event's id, unless the envelope has a
                path for the id. Without both, the event's id is the body's text ``id``, or empty.

        Raises:
            MissingFieldError: the body lacks a field of the envelope.
            Exception: a function of this envelope raises it.
        """
        own_id = body.get("id")
        found: dict[str, Any] = {"id": own_id if isinstance(own_id, str) else ""}
        if self.id is not None:
            found["id"] = self._found("id", body)
        elif message_id is not None:
            found["id"] = message_id
        found["type"] = self._found("type", body)
        if self.created_at is not None:
            found["created_at"] = self._found("created_at", body)
        if self.data is None:
            found["data"] = body
        else:
            found["data"] = self._found("data", body, nullable=True)
        places = {self.type, self.created_at, self.data, "id" if self.id == "id" else None}
        for name, value in body.items():
            if name in _TAKEN:
                if name not in places:
                    found[_RENAMED + name] = value
            elif name not in places:
                found[name] = value
        return found

    def write(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of an event; the reverse of ``read``.

        Args:
            event: the fields of the event as JSON values, but ``created_at`` as a ``datetime``.

        Raises:
            TypeError: a place is a function, which cannot be reversed.
        """
        body: dict[str, Any] = {}
        if self.data is None:
            body.update(event["data"])
        for name, value in event.items():
            if name not in _TAKEN:
                body[_original(name)] = value
        created_at = event.get("created_at")
        if created_at is not None:
            self._put(body, "created_at", self._time(created_at))
        self._put(body, "type", event["type"])
        if self.data is not None:
            self._put(body, "data", event["data"])
        self._put(body, "id", event["id"])
        return body

    def _found(self, name: str, body: Mapping[str, Any], *, nullable: bool = False) -> object:
        place: Place = getattr(self, name)
        if isinstance(place, str):
            value: Any = body
            for step in place.split("."):
                if not isinstance(value, Mapping) or step not in value:
                    raise MissingFieldError(place)
                value = value[step]
        else:
            value = place(body)
        if value is None and not nullable:
            raise MissingFieldError(self.path_of(name))
        return value

    def _put(self, body: dict[str, Any], name: str, value: object) -> None:
        place: Place | None = getattr(self, name)
        if place is None:
            return
        if not isinstance(place, str):
            raise TypeError(
                f"no body can be written for this sender, because {name} of its envelope is a"
                " function; give the body as bytes"
            )
        *outer, last = place.split(".")
        for step in outer:
            body = body.setdefault(step, {})
        body[last] = value

    def _time(self, value: datetime) -> str | int | float:
        if self.times == "seconds":
            return int(value.timestamp())
        if self.times == "milliseconds":
            return round(value.timestamp() * 1000)
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _original(name: str) -> str:
    """Return a field's name in the body; ``read`` may have renamed the field."""
    return _ORIGINAL.get(name, name)


# An event class whose JSON names are in camel case has `bodyId` instead of `body_id`.
_ORIGINAL = {_RENAMED + name: name for name in _TAKEN}
_ORIGINAL |= {"bodyId": "id", "bodyType": "type", "bodyData": "data", "bodyCreatedAt": "created_at"}
_DIRECT = ("type", "createdAt", "data", "id")
