"""A body for a person to read: as coloured JSON, as it came, and through the model of its type.

Nothing that a body holds may break the page that shows it: neither depth, nor length, nor names
given twice, nor numbers too long to be one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from pydantic import BaseModel

from ...errors import PayloadError
from ...events import EventParser, UnknownEvent
from .redaction import HIDDEN, Redactor
from .texts import cut

# What is larger is not taken apart: nobody reads it to its end.
_MOST_READ = 256 * 1024
_MOST_TOKENS = 6000
_MOST_SHOWN = 256 * 1024
_MOST_RAW = 64 * 1024
_MOST_FIELDS = 400
_MOST_VALUE = 2000
_MOST_NAME = 200
_MOST_LEVELS = 100
# Shorter values stand in a body for something else as well.
LEAST_SCRUBBED = 4

# Lists of headers say in one field what the field beside it holds.
_NAME_NAMES = {"field", "header", "key", "name"}
_VALUE_NAMES = {"content", "value", "values"}


class _Number(str):
    """A number as it was written: neither rounded nor too long."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """An object as it was written: in order, with names that are given twice."""

    __slots__ = ()


def _number(text: str) -> _Number:
    # In Python, so that the reading of a long list lets other threads run now and then.
    return _Number(text)


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
        raw: its text as it came, or without what is hidden where it is no JSON; None where parts of
            it are hidden that cannot be cut out of it.
        raw_is_cut: whether it goes on after ``raw``.
        is_too_large: whether it is too large to be read as JSON.

    """

    size: int
    tokens: tuple[Token, ...] = ()
    is_cut: bool = False
    raw: str | None = None
    raw_is_cut: bool = False
    is_too_large: bool = False


def shown_body(body: bytes, redactor: Redactor) -> ShownBody:
    """Return what may be shown of a body; the redactor remembers what may not."""
    if len(body) > _MOST_READ:
        clipped = _text_in(body[:_MOST_RAW], redactor)
        redactor.is_complete = False
        return ShownBody(len(body), raw=clipped, raw_is_cut=True, is_too_large=True)
    reading = _Reading(redactor)
    try:
        reading.read(
            json.loads(
                body,
                object_pairs_hook=_Object,
                parse_int=_number,
                parse_float=_number,
                parse_constant=_number,
            )
        )
    except (ValueError, RecursionError):
        text = _text_in(body, redactor)
        return _with_raw(ShownBody(len(body)), text)
    tokens = tuple(
        token._replace(text=redactor.scrub(token.text, least=LEAST_SCRUBBED))
        if token.kind in {"name", "text", "number"}
        else token
        for token in reading.tokens
    )
    shown = ShownBody(len(body), tokens, is_cut=reading.is_cut)
    return shown if redactor.has_hidden else _with_raw(shown, _decoded(body))


def _with_raw(shown: ShownBody, raw: str | None) -> ShownBody:
    if raw is None:
        return shown
    return replace(shown, raw=raw[:_MOST_RAW], raw_is_cut=len(raw) > _MOST_RAW)


def _decoded(body: bytes) -> str:
    """Return a body as text, in the encoding its first bytes tell."""
    return body.decode(json.detect_encoding(body), "backslashreplace")


def _text_in(body: bytes, redactor: Redactor) -> str | None:
    """Return what may be shown of a body that is no JSON."""
    if redactor.rules.needs_paths:
        return None
    return redactor.scrub(redactor.text(_decoded(body)), least=LEAST_SCRUBBED)


class _Reading:
    """Takes all of a JSON value apart, and keeps its first tokens.

    Args:
        redactor: says what is hidden, and remembers it.

    Attributes:
        tokens: those that are shown.
        is_cut: whether there are more.

    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._room = _MOST_SHOWN
        self.tokens: list[Token] = []
        self.is_cut = False

    def read(self, value: Any, path: tuple[str, ...] = (), level: int = 0) -> None:
        """Read a value that stands at a path, so many levels deep."""
        if isinstance(value, list) and level == _MOST_LEVELS:
            self._redactor.has_hidden, self._redactor.is_complete = True, False
            self._put("mark", "…")
        elif isinstance(value, _Object):
            self._read_object(value, path, level)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                self._begin_line("," if index else "[", level + 1)
                self.read(inner, path, level + 1)
            self._end("[]", level, is_empty=not value)
        elif isinstance(value, _Number):
            self._put_value("number", value)
        elif isinstance(value, str):
            self._put_value("text", self._redactor.text(value))
        else:
            self._put("word", json.dumps(value))

    def _read_object(self, pairs: _Object, path: tuple[str, ...], level: int) -> None:
        rules = self._redactor.rules
        names_a_hidden_one = any(
            name in _NAME_NAMES and isinstance(value, str) and rules.hides_name(value)
            for name, value in pairs
        )
        for index, (name, inner) in enumerate(pairs):
            self._begin_line("," if index else "{", level + 1)
            self._put_value("name", self._redactor.text(name))
            self._put("mark", ": ")
            below = (*path, name)
            if rules.hides(below) or (names_a_hidden_one and name in _VALUE_NAMES):
                self._hide(inner)
                self._put("hidden", HIDDEN)
            else:
                self.read(inner, below, level + 1)
        self._end("{}", level, is_empty=not pairs)

    def _hide(self, value: Any) -> None:
        """Remember every text and number in a value; words such as ``null`` tell nothing."""
        self._redactor.has_hidden = True
        if isinstance(value, _Object):
            for _, inner in value:
                self._hide(inner)
        elif isinstance(value, list):
            for inner in value:
                self._hide(inner)
        elif isinstance(value, str):
            self._redactor.hide(value)

    def _begin_line(self, mark: str, level: int) -> None:
        if not self.is_cut:
            self._put("mark", f"{mark}\n{'  ' * level}")

    def _end(self, brackets: str, level: int, *, is_empty: bool) -> None:
        if not self.is_cut:
            self._put("mark", brackets if is_empty else f"\n{'  ' * level}{brackets[1]}")

    def _put_value(self, kind: str, value: str) -> None:
        """Put a name, text or number, cut where it is long."""
        if self.is_cut:
            return
        text = value[:_MOST_VALUE]
        self._put(kind, text if kind == "number" else json.dumps(text, ensure_ascii=False))
        if len(value) > _MOST_VALUE:
            self._put("mark", f"… {len(value) - _MOST_VALUE:,} more characters")

    def _put(self, kind: str, text: str) -> None:
        self._room -= len(text)
        if self._room < 0 or len(self.tokens) == _MOST_TOKENS:
            self.is_cut = True
        if not self.is_cut:
            self.tokens.append(Token(kind, text))


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


def model_of(body: bytes, event_id: str | None, parser: EventParser, redactor: Redactor) -> Model:
    """Return the event in a body, field by field, given what has read its JSON."""
    if len(body) > _MOST_READ:
        return Model(problem="it is too large to be shown field by field")
    try:
        event = parser.parse(body, event_id)
        below = _within(event, "", (), is_unknown=False, redactor=redactor)
        fields = list(islice(below, _MOST_FIELDS + 1))
    except PayloadError as error:
        problem = redactor.text(cut(str(error), _MOST_VALUE))
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
    """Yield the fields below a value; names are those of Python, rules have those of the wire."""
    deeper = partial(_within, redactor=redactor)
    if path and redactor.rules.hides(path):
        yield Field(shown, HIDDEN, is_unknown, is_hidden=True)
    elif isinstance(value, BaseModel | Mapping | list | tuple) and len(path) >= _MOST_LEVELS:
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
        text = redactor.text(cut(str(value), _MOST_VALUE))
        shown, text = (redactor.scrub(one, least=LEAST_SCRUBBED) for one in (shown, text))
        yield Field(shown, text, is_unknown, is_hidden=False)


def _members_of(model: BaseModel) -> Iterator[tuple[str, str, Any, bool]]:
    """Yield the name of each field that came, its name on the wire, its value, if it is unknown."""
    for name, info in type(model).model_fields.items():
        if name in model.model_fields_set:
            yield name, info.alias or name, getattr(model, name), False
    for name, value in (model.model_extra or {}).items():
        yield name, name, value, True
