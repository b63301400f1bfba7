"""A body for a person to read: as coloured JSON, as it came, and through the model of its type.

Nothing that a body holds may break the page that shows it: neither depth, nor length, nor names
given twice, nor numbers too long to be one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from pydantic import BaseModel

from ..errors import PayloadError
from ..events import EventParser, UnknownEvent
from .redaction import HIDDEN, Redaction

__all__ = ["Field", "Model", "ShownBody", "Token", "model_of", "shown_body"]

_MOST_TOKENS = 6000
_MOST_RAW = 64 * 1024
_MOST_FIELDS = 400
_MOST_VALUE = 2000
_MOST_DEPTH = 100


class Token(NamedTuple):
    """A piece of JSON, and its kind: a name, text, number, word, mark, or hidden."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ShownBody:
    """A body as it may be shown.

    Attributes:
        size: how many bytes it has.
        tokens: the JSON, indented; empty where it is none.
        is_cut: whether it goes on after the tokens.
        raw: its text as it came; None where parts of it are hidden that cannot be cut out of it.
        raw_is_cut: whether it goes on after ``raw``.
        hidden: the values that are hidden.

    """

    size: int
    tokens: tuple[Token, ...] = ()
    is_cut: bool = False
    raw: str | None = None
    raw_is_cut: bool = False
    hidden: frozenset[str] = frozenset()


class _NumberText(str):
    """A number as it was written: neither rounded nor too long."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written: in order, with names that are given twice."""

    __slots__ = ()


def shown_body(body: bytes, redaction: Redaction) -> ShownBody:
    """Return what may be shown of a body."""
    text = body.decode("utf-8", "backslashreplace")
    try:
        tree = json.loads(
            body,
            object_pairs_hook=_Pairs,
            parse_int=_NumberText,
            parse_float=_NumberText,
            parse_constant=_NumberText,
        )
        hidden = frozenset(_hidden(tree, (), redaction))
    except (ValueError, RecursionError):
        clipped = redaction.hide_in_text(text[:_MOST_RAW])
        return ShownBody(len(body), raw=clipped, raw_is_cut=len(text) > _MOST_RAW)
    tokens = list(islice(_tokens(tree, (), redaction), _MOST_TOKENS + 1))
    return ShownBody(
        len(body),
        tuple(tokens[:_MOST_TOKENS]),
        is_cut=len(tokens) > _MOST_TOKENS,
        raw=None if hidden else text[:_MOST_RAW],
        raw_is_cut=len(text) > _MOST_RAW,
        hidden=hidden,
    )


def _hidden(value: Any, path: tuple[str, ...], redaction: Redaction) -> Iterator[str]:
    """Yield every value that is hidden, and those within it."""
    if isinstance(value, _Pairs):
        for name, inner in value:
            if redaction.hides((*path, name)):
                yield from _leaves(inner)
            else:
                yield from _hidden(inner, (*path, name), redaction)
    elif isinstance(value, list):
        for inner in value:
            yield from _hidden(inner, path, redaction)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, _Pairs):
        for _, inner in value:
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield str(value)


def _tokens(
    value: Any, path: tuple[str, ...], redaction: Redaction, indent: str = ""
) -> Iterator[Token]:
    if isinstance(value, list) and len(indent) >= 2 * _MOST_DEPTH:
        yield Token("mark", "…")
    elif isinstance(value, _Pairs):
        yield from _members(value, path, redaction, indent)
    elif isinstance(value, list):
        yield Token("mark", "[")
        for index, inner in enumerate(value):
            yield Token("mark", f"{',' if index else ''}\n{indent}  ")
            yield from _tokens(inner, path, redaction, f"{indent}  ")
        yield Token("mark", f"\n{indent}]" if value else "]")
    elif isinstance(value, _NumberText):
        yield Token("number", value)
    elif isinstance(value, str):
        yield Token("text", json.dumps(value, ensure_ascii=False))
    else:
        yield Token("word", json.dumps(value))


def _members(
    pairs: _Pairs, path: tuple[str, ...], redaction: Redaction, indent: str
) -> Iterator[Token]:
    yield Token("mark", "{")
    for index, (name, inner) in enumerate(pairs):
        yield Token("mark", f"{',' if index else ''}\n{indent}  ")
        yield Token("name", json.dumps(name, ensure_ascii=False))
        yield Token("mark", ": ")
        if redaction.hides((*path, name)):
            yield Token("hidden", HIDDEN)
        else:
            yield from _tokens(inner, (*path, name), redaction, f"{indent}  ")
    yield Token("mark", f"\n{indent}}}" if pairs else "}")


class Field(NamedTuple):
    """A field of an event as its model reads it.

    Attributes:
        path: its name, and those that lead to it, as Python spells them.
        value: what it holds, as text.
        is_unknown: whether the model does not know it, or what it is part of.
        is_hidden: whether the value is hidden.

    """

    path: str
    value: str
    is_unknown: bool
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class Model:
    """An event as its model reads it.

    Attributes:
        name: the class of the event.
        is_known: whether there is a model for its type.
        fields: the fields that came, in order.
        is_cut: whether there are more of them.
        problem: why it cannot be read; it has no fields then.

    """

    name: str = ""
    is_known: bool = True
    fields: tuple[Field, ...] = ()
    is_cut: bool = False
    problem: str = ""


def model_of(body: bytes, event_id: str | None, parser: EventParser, redaction: Redaction) -> Model:
    """Return the event in a body, field by field."""
    try:
        event = parser.parse(body, event_id)
        below = _within(event, "", (), is_unknown=False, redaction=redaction)
        fields = list(islice(below, _MOST_FIELDS + 1))
    except PayloadError as error:
        return Model(problem=str(error))
    except RecursionError:
        return Model(problem="the body is nested too deeply")
    return Model(
        type(event).__name__,
        not isinstance(event, UnknownEvent),
        tuple(fields[:_MOST_FIELDS]),
        is_cut=len(fields) > _MOST_FIELDS,
    )


def _within(
    value: Any, shown: str, path: tuple[str, ...], *, is_unknown: bool, redaction: Redaction
) -> Iterator[Field]:
    """Yield the fields below a value; names are those of Python, rules have those of the wire."""
    if path and redaction.hides(path):
        yield Field(shown, HIDDEN, is_unknown, is_hidden=True)
        return
    deep = len(path) >= _MOST_DEPTH
    if isinstance(value, BaseModel) and not deep:
        for name, wire, inner, is_extra in _members_of(value):
            below = f"{shown}.{name}" if shown else name
            yield from _within(
                inner, below, (*path, wire), is_unknown=is_unknown or is_extra, redaction=redaction
            )
    elif isinstance(value, Mapping) and value and not deep:
        for name, inner in value.items():
            below = f"{shown}.{name}"
            yield from _within(
                inner, below, (*path, str(name)), is_unknown=is_unknown, redaction=redaction
            )
    elif isinstance(value, Sequence) and value and not isinstance(value, str | bytes) and not deep:
        for index, inner in enumerate(value):
            yield from _within(
                inner, f"{shown}[{index}]", path, is_unknown=is_unknown, redaction=redaction
            )
    else:
        yield Field(shown, _text_of(value), is_unknown, is_hidden=False)


def _members_of(model: BaseModel) -> Iterator[tuple[str, str, Any, bool]]:
    """Yield the name of each field that came, its name on the wire, its value, if it is unknown."""
    for name, info in type(model).model_fields.items():
        if name in model.model_fields_set:
            yield name, info.alias or name, getattr(model, name), False
    for name, value in (model.model_extra or {}).items():
        yield name, name, value, True


def _text_of(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]}…"
