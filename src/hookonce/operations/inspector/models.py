"""Shows events as tables of fields: reads each event by its model, and hides values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from pydantic import BaseModel

from ...errors import PayloadError
from ...events import EventParser, UnknownEvent
from .bodies import LEAST_SCRUBBED, MOST_LEVELS, MOST_READ, MOST_VALUE
from .redactor import HIDDEN, Redactor
from .texts import cut

_MOST_FIELDS = 400
_MOST_NAME = 200


class Field(NamedTuple):
    """A field of an event.

    Attributes:
        path: its path in Python, such as ``data.author.name``.
        is_unknown: whether the model knows neither this field nor a field that contains it.
    """

    path: str
    value: str
    is_unknown: bool
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class Model:
    """An event as its model reads it.

    Attributes:
        name: class of the event.
        is_known: whether there is a model for its type.
        fields: the fields that are in the body, in the order of the model.
        is_cut: whether there are more fields.
        problem: why the event cannot be read, or an empty text.
    """

    name: str = ""
    is_known: bool = True
    fields: tuple[Field, ...] = ()
    is_cut: bool = False
    problem: str = ""


def model_of(body: bytes, event_id: str | None, parser: EventParser, redactor: Redactor) -> Model:
    """Return the event in a body; pass the redactor that ``shown_body`` has used for this body."""
    if len(body) > MOST_READ:
        return Model(problem="the body is too large to be shown field by field")
    try:
        event = parser.parse(body, event_id)
        below = _within(event, "", (), is_unknown=False, redactor=redactor)
        fields = list(islice(below, _MOST_FIELDS + 1))
    except PayloadError as error:
        problem = redactor.text(cut(str(error), MOST_VALUE))
        return Model(problem=redactor.scrub(problem, least=LEAST_SCRUBBED))
    except RecursionError:
        return Model(problem="the body is nested too deeply")
    return Model(
        type(event).__name__,
        not isinstance(event, UnknownEvent),
        tuple(fields[:_MOST_FIELDS]),
        is_cut=len(fields) > _MOST_FIELDS,
    )


def _within(
    value: Any,
    shown: str,
    path: tuple[str, ...],
    *,
    is_unknown: bool,
    redactor: Redactor,
) -> Iterator[Field]:
    """Yield the fields of a value; ``shown`` is its path in Python, ``path`` its path in JSON."""
    deeper = partial(_within, redactor=redactor)
    if path and redactor.rules.hides(path):
        yield Field(shown, HIDDEN, is_unknown, is_hidden=True)
    elif isinstance(value, BaseModel | Mapping | list | tuple) and len(path) >= MOST_LEVELS:
        yield Field(shown, "…", is_unknown, is_hidden=False)
    elif isinstance(value, BaseModel):
        for name, wire, inner, is_extra in _members_of(value):
            below = cut(f"{shown}.{name}" if shown else name, _MOST_NAME)
            yield from deeper(inner, below, (*path, wire), is_unknown=is_unknown or is_extra)
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            below = cut(f"{shown}.{name}", _MOST_NAME)
            yield from deeper(inner, below, (*path, str(name)), is_unknown=is_unknown)
    elif isinstance(value, Sequence) and value and not isinstance(value, str | bytes):
        for index, inner in enumerate(value):
            yield from deeper(
                inner, cut(f"{shown}[{index}]", _MOST_NAME), path, is_unknown=is_unknown
            )
    else:
        text = redactor.text(cut(str(value), MOST_VALUE))
        shown, text = (redactor.scrub(one, least=LEAST_SCRUBBED) for one in (shown, text))
        yield Field(shown, text, is_unknown, is_hidden=False)


def _members_of(model: BaseModel) -> Iterator[tuple[str, str, Any, bool]]:
    """Yield each field in the body: name, JSON name, value, and whether the field is unknown."""
    for name, info in type(model).model_fields.items():
        if name in model.model_fields_set:
            yield name, info.alias or name, getattr(model, name), False
    for name, value in (model.model_extra or {}).items():
        yield name, name, value, True
