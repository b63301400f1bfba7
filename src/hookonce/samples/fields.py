"""Both spellings of the field names of events: ``authorUsername`` and ``author_username``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue

from ..events import Envelope, EventClass
from ..resources import Message, ReceivedMessage

# Allow any name in these resources: the interface documents only some of their fields (Events:
# Event types).
_OPEN = (Message, ReceivedMessage)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of an object.

    Attributes:
        names: the wire name of each field, under both spellings.
        objects: the fields of nested objects, by the wire name of the object.
        is_open: whether undocumented fields are allowed.
    """

    names: Mapping[str, str]
    objects: Mapping[str, Fields]
    is_open: bool = False

    def wire_name(self, name: str, *, place: Iterable[str], known: Collection[str]) -> str:
        """Return the wire name of a field.

        Args:
            name: the name in either spelling.
            place: the path to the object, for error messages.
            known: other allowed names, from the sample.

        Raises:
            ValueError: the object does not have the field; the message suggests a similar name.
        """
        if (wire := self.names.get(name)) is not None:
            return wire
        if self.is_open or name in known:
            return name
        nested = [f"{outer}.{name}" for outer, inner in self.objects.items() if name in inner.names]
        likely = nested or get_close_matches(name, self.names, n=1)
        hint = f" (did you mean {likely[0]!r}?)" if likely else ""
        raise ValueError(f"there is no field {'.'.join([*place, name])!r}{hint}")


def fields_of(event_class: EventClass) -> Fields:
    """Return the fields of an event class; ``objects["data"]`` has the fields of its data."""
    return _fields_of(event_class)


def body_fields(event_class: EventClass, envelope: Envelope) -> Fields:
    """Return the fields of an event class's bodies, under the names of the sender's envelope."""
    event = fields_of(event_class)
    if envelope.is_direct:
        return event
    body = Fields({}, {})
    for name, wire in event.names.items():
        if (wire == "id" and envelope.id is None) or (
            wire in {"created_at", "createdAt"} and envelope.created_at is None
        ):
            continue
        inner = event.objects.get(wire)
        if wire == "data" and envelope.data is None:
            body = _joined(body, inner or Fields({}, {}, is_open=True))
            continue
        place = envelope.path_of(wire)
        names = {name: place} if "." not in place else {}
        body = _joined(body, Fields(names, {}), _nested(place, inner))
    return body


def _nested(path: str, fields: Fields | None) -> Fields:
    """Return the fields of a body that has ``fields`` at ``path``; None allows any fields."""
    head, _, rest = path.partition(".")
    if rest:
        return Fields({head: head}, {head: _nested(rest, fields)})
    return Fields({head: head}, {} if fields is None else {head: fields})


def _joined(*several: Fields) -> Fields:
    names: dict[str, str] = {}
    objects: dict[str, Fields] = {}
    for one in several:
        names |= one.names
        for name, inner in one.objects.items():
            objects[name] = _joined(objects[name], inner) if name in objects else inner
    return Fields(names, objects, is_open=any(one.is_open for one in several))


@lru_cache(maxsize=64)
def _fields_of(model: type[BaseModel]) -> Fields:
    names: dict[str, str] = {}
    objects: dict[str, Fields] = {}
    for name, field in model.model_fields.items():
        wire = field.serialization_alias or name
        names |= {name: wire, wire: wire}
        inner = _model_in(field.annotation)
        if inner is not None:
            objects[wire] = _fields_of(inner)
    return Fields(names, objects, is_open=issubclass(model, _OPEN))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model class in a field's annotation; None if there is not exactly one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) not in {Union, UnionType}:
        return None
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel):
        return kinds[0]
    return None


def wire_names(
    data: Mapping[str, JsonValue],
    fields: Fields | None,
    sample: JsonValue,
    *,
    extra: bool,
    place: tuple[str, ...] = ("data",),
) -> dict[str, JsonValue]:
    """Return the data with each field under its wire name.

    Args:
        data: the fields; names in either spelling.
        fields: the allowed fields; None allows any.
        sample: the sample into which the data will be merged; its names are allowed too.
        place: the path to the data, for error messages.

    Raises:
        ValueError: a field is unknown, or is given in both spellings.
    """
    known = sample if isinstance(sample, Mapping) else {}
    result: dict[str, JsonValue] = {}
    for name, value in data.items():
        wire = name if fields is None else fields.names.get(name, name)
        if fields is not None and not extra:
            try:
                fields.wire_name(name, place=place, known=known)
            except ValueError as error:
                raise ValueError(f"{error}; extra=True allows unknown fields") from None
        if wire in result:
            raise ValueError(f"{'.'.join([*place, wire])!r} is given in both spellings; give one")
        inner = None if fields is None else fields.objects.get(wire)
        result[wire] = (
            wire_names(value, inner, known.get(wire), extra=extra, place=(*place, wire))
            if isinstance(value, Mapping)
            else value
        )
    return result
