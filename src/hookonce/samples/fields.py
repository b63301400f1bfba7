"""Names of an event's fields, in both spellings: ``authorUsername`` and ``author_username``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue

from ..events import EventClass
from ..resources import Message, ReceivedMessage

# The interface does not show their other fields (Events: Event types), so any name is allowed.
_OPEN = (Message, ReceivedMessage)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of an object.

    Attributes:
        names: the wire name of each field, by both spellings.
        objects: the fields that are objects, by wire name, each with its own fields.
        is_open: whether undocumented fields are allowed.

    """

    names: Mapping[str, str]
    objects: Mapping[str, Fields]
    is_open: bool = False

    def wire_name(
        self, name: str, *, place: Iterable[str] = (), known: Collection[str] = ()
    ) -> str:
        """Return the wire name of a field.

        Args:
            name: the name in either spelling.
            place: the names that lead to the object, for the message.
            known: other allowed names: those of the sample.

        Raises:
            ValueError: there is no such field; the message suggests a similar name.

        """
        if (wire := self.names.get(name)) is not None:
            return wire
        if self.is_open or name in known:
            return name
        below = [f"{outer}.{name}" for outer, one in self.objects.items() if name in one.names]
        likely = below or get_close_matches(name, self.names, n=1)
        hint = f" (did you mean {likely[0]!r}?)" if likely else ""
        raise ValueError(f"there is no field {'.'.join([*place, name])!r}{hint}")


def fields_of(event_class: EventClass) -> Fields:
    """Return the fields of an event's envelope, with the fields of its data below them."""
    return _fields_of(event_class)


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
    """Return the model of a field, if it is one model or an optional one."""
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
        data: fields by name, in either spelling.
        fields: the allowed fields; None allows any.
        sample: the sample that the data will change.
        extra: allow unknown fields.
        place: the names that lead to the data, for messages.

    Raises:
        ValueError: there is no such field, or the data has it in both spellings.

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
