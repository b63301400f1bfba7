"""A body for a person to read: as coloured JSON, as it came, and through the model of its type.

Nothing that a body holds may break the page that shows it: neither depth, nor length, nor names
given twice, nor numbers too long to be one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from pydantic import BaseModel

from ...errors import PayloadError
from ...events import EventParser, UnknownEvent
from .concealing import MOST_LEVELS, Concealed, Concealer, Deep, NumberText, Pairs, json_of
from .redaction import Redaction
from .scrubbing import HIDDEN, Scrubber
from .texts import cut

# What is larger is not taken apart: it would hold up the process for what nobody reads to its end.
_MOST_READ = 256 * 1024
_MOST_TOKENS = 6000
_MOST_SHOWN = 256 * 1024
_MOST_RAW = 64 * 1024
_MOST_FIELDS = 400
_MOST_VALUE = 2000
_MOST_NAME = 200
# Shorter values stand in a body for something else as well.
LEAST_SCRUBBED = 4


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
        hidden: the values that are hidden.
        is_searched: whether those are all.
        is_too_large: whether it is too large to be read as JSON.

    """

    size: int
    tokens: tuple[Token, ...] = ()
    is_cut: bool = False
    raw: str | None = None
    raw_is_cut: bool = False
    hidden: frozenset[str] = frozenset()
    is_searched: bool = True
    is_too_large: bool = False


def shown_body(body: bytes, redaction: Redaction) -> ShownBody:
    """Return what may be shown of a body."""
    if len(body) > _MOST_READ:
        clipped = _text_in(body[:_MOST_RAW], redaction, Concealer(redaction))
        return ShownBody(
            len(body), raw=clipped, raw_is_cut=True, is_searched=False, is_too_large=True
        )
    concealer = Concealer(redaction)
    try:
        tree = concealer.tree(json_of(body))
    except (ValueError, RecursionError):
        text = _text_in(body, redaction, concealer)
        return ShownBody(
            len(body),
            raw=None if text is None else text[:_MOST_RAW],
            raw_is_cut=text is not None and len(text) > _MOST_RAW,
            hidden=frozenset(concealer.values),
            is_searched=concealer.values.is_complete,
        )
    hidden = frozenset(concealer.values)
    tokens, is_cut = _bounded(_tokens(tree))
    raw = None if concealer.has_hidden else _decoded(body)
    return ShownBody(
        len(body),
        _scrubbed(tokens, hidden),
        is_cut=is_cut,
        raw=None if raw is None else raw[:_MOST_RAW],
        raw_is_cut=raw is not None and len(raw) > _MOST_RAW,
        hidden=hidden,
        is_searched=concealer.values.is_complete,
    )


def _decoded(body: bytes) -> str:
    """Return a body as text, in the encoding its first bytes tell."""
    return body.decode(json.detect_encoding(body), "backslashreplace")


def _text_in(body: bytes, redaction: Redaction, concealer: Concealer) -> str | None:
    """Return what may be shown of a body that is no JSON."""
    return None if redaction.needs_paths else concealer.text(_decoded(body))


def _bounded(tokens: Iterator[Token]) -> tuple[list[Token], bool]:
    """Return the first tokens, and whether there are more."""
    shown: list[Token] = []
    room = _MOST_SHOWN
    for token in tokens:
        room -= len(token.text)
        if room < 0 or len(shown) == _MOST_TOKENS:
            return shown, True
        shown.append(token)
    return shown, False


def _scrubbed(tokens: Sequence[Token], hidden: Iterable[str]) -> tuple[Token, ...]:
    """Return tokens without the values that are hidden under another name."""
    scrubber = Scrubber(hidden)
    texts = scrubber.scrub_all([token.text for token in tokens], least=LEAST_SCRUBBED)
    return tuple(
        Token(token.kind, text if token.kind in {"name", "text", "number"} else token.text)
        for token, text in zip(tokens, texts, strict=True)
    )


def _tokens(value: Any, indent: str = "") -> Iterator[Token]:
    if isinstance(value, Deep):
        yield Token("mark", value)
    elif isinstance(value, Pairs):
        yield from _members(value, indent)
    elif isinstance(value, list):
        yield Token("mark", "[")
        for index, inner in enumerate(value):
            yield Token("mark", f"{',' if index else ''}\n{indent}  ")
            yield from _tokens(inner, f"{indent}  ")
        yield Token("mark", f"\n{indent}]" if value else "]")
    elif isinstance(value, NumberText):
        yield from _value("number", value)
    elif isinstance(value, Concealed):
        yield Token("hidden", value)
    elif isinstance(value, str):
        yield from _value("text", value)
    else:
        yield Token("word", json.dumps(value))


def _members(pairs: Pairs, indent: str) -> Iterator[Token]:
    yield Token("mark", "{")
    for index, (name, inner) in enumerate(pairs):
        yield Token("mark", f"{',' if index else ''}\n{indent}  ")
        yield from _value("name", name)
        yield Token("mark", ": ")
        yield from _tokens(inner, f"{indent}  ")
    yield Token("mark", f"\n{indent}}}" if pairs else "}")


def _value(kind: str, value: str) -> Iterator[Token]:
    """Yield a name, text or number, cut where it is long."""
    text = value[:_MOST_VALUE]
    yield Token(kind, text if kind == "number" else json.dumps(text, ensure_ascii=False))
    if len(value) > _MOST_VALUE:
        yield Token("mark", f"… {len(value) - _MOST_VALUE:,} more characters")


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
    if len(body) > _MOST_READ:
        return Model(problem="it is too large to be shown field by field")
    concealer = Concealer(redaction)
    try:
        event = parser.parse(body, event_id)
        below = _within(event, "", (), is_unknown=False, redaction=redaction, texts=concealer)
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
    value: Any,
    shown: str,
    path: tuple[str, ...],
    *,
    is_unknown: bool,
    redaction: Redaction,
    texts: Concealer,
) -> Iterator[Field]:
    """Yield the fields below a value; names are those of Python, rules have those of the wire."""
    deeper = partial(_within, redaction=redaction, texts=texts)
    if path and redaction.hides(path):
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
        text = texts.text(value if isinstance(value, str) else str(value))
        yield Field(shown, cut(text, _MOST_VALUE), is_unknown, is_hidden=False)


def _members_of(model: BaseModel) -> Iterator[tuple[str, str, Any, bool]]:
    """Yield the name of each field that came, its name on the wire, its value, if it is unknown."""
    for name, info in type(model).model_fields.items():
        if name in model.model_fields_set:
            yield name, info.alias or name, getattr(model, name), False
    for name, value in (model.model_extra or {}).items():
        yield name, name, value, True
