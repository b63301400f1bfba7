"""Bodies as coloured JSON and as raw text, with hidden values replaced.

No body may break the page: not by its depth or length, by repeated names, or by huge numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .redactor import HIDDEN, Redactor

MOST_READ = 256 * 1024
"""The most bytes of a body that are read as JSON."""
_MOST_TOKENS = 6000
_MOST_SHOWN = 256 * 1024
_MOST_RAW = 64 * 1024
MOST_VALUE = 2000
MOST_LEVELS = 100
LEAST_SCRUBBED = 4
"""Search only for hidden values of at least this many characters: shorter ones occur by chance."""

# In a list of headers, one field holds a header's name and the next holds its value.
_NAME_NAMES = {"field", "header", "key", "name"}
_VALUE_NAMES = {"content", "value", "values"}


class _Number(str):
    """A JSON number as text, because conversion could round it."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """A JSON object as pairs, because names may be repeated."""

    __slots__ = ()


def _number(text: str) -> _Number:
    # Do not pass the class itself to json: only the call of a Python function lets other threads
    # run while json reads a long list.
    return _Number(text)


class Token(NamedTuple):
    """A token of JSON; its kind is name, text, number, word, mark or hidden."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ShownBody:
    """A body as a page shows it.

    Attributes:
        size: bytes of the whole body.
        tokens: the JSON, indented; empty if the body is not JSON.
        is_cut: whether the last tokens are missing.
        raw: the text; None if it contains hidden values that cannot be removed from it.
        raw_is_cut: whether the end of ``raw`` is missing.
        is_too_large: whether it is too large to be read as JSON.
    """

    size: int
    tokens: tuple[Token, ...] = ()
    is_cut: bool = False
    raw: str | None = None
    raw_is_cut: bool = False
    is_too_large: bool = False


def shown_body(body: bytes, redactor: Redactor) -> ShownBody:
    """Return a body for a page, and let the redactor remember its hidden values."""
    if len(body) > MOST_READ:
        clipped = _text_in(body[:_MOST_RAW], redactor)
        redactor.is_complete = False
        return ShownBody(len(body), raw=clipped, raw_is_cut=True, is_too_large=True)
    reader = _Reader(redactor)
    try:
        reader.read(
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
        for token in reader.tokens
    )
    shown = ShownBody(len(body), tokens, is_cut=reader.is_cut)
    return shown if redactor.has_hidden else _with_raw(shown, _decoded(body))


def _with_raw(shown: ShownBody, raw: str | None) -> ShownBody:
    if raw is None:
        return shown
    return replace(shown, raw=raw[:_MOST_RAW], raw_is_cut=len(raw) > _MOST_RAW)


def _decoded(body: bytes) -> str:
    """Return a body as text; its first bytes show the encoding."""
    return body.decode(json.detect_encoding(body), "backslashreplace")


def _text_in(body: bytes, redactor: Redactor) -> str | None:
    """Return a body that is not JSON as redacted text; None if redaction is impossible."""
    # A path that ends in * hides all fields there. Plain text has no fields, so it is not shown.
    if any(path.endswith("*") for path in redactor.rules.paths):
        return None
    return redactor.scrub(redactor.text(_decoded(body)), least=LEAST_SCRUBBED)


class _Reader:
    """Reads a whole JSON value to find its hidden values, and keeps only the first tokens.

    Attributes:
        is_cut: whether there are more tokens.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._characters_left = _MOST_SHOWN
        self.tokens: list[Token] = []
        self.is_cut = False

    def read(self, value: Any, path: tuple[str, ...] = (), level: int = 0) -> None:
        """Read the value at a path."""
        if isinstance(value, list) and level == MOST_LEVELS:
            self._redactor.has_hidden, self._redactor.is_complete = True, False
            self._add("mark", "…")
        elif isinstance(value, _Object):
            self._read_object(value, path, level)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                self._begin_line("," if index else "[", level + 1)
                self.read(inner, path, level + 1)
            self._end("[]", level, is_empty=not value)
        elif isinstance(value, _Number):
            self._add_value("number", value)
        elif isinstance(value, str):
            self._add_value("text", self._redactor.text(value))
        else:
            self._add("word", json.dumps(value))

    def _read_object(self, pairs: _Object, path: tuple[str, ...], level: int) -> None:
        rules = self._redactor.rules
        names_hidden_field = any(
            name in _NAME_NAMES and isinstance(value, str) and rules.hides_name(value)
            for name, value in pairs
        )
        for index, (name, inner) in enumerate(pairs):
            self._begin_line("," if index else "{", level + 1)
            self._add_value("name", self._redactor.text(name))
            self._add("mark", ": ")
            below = (*path, name)
            if rules.hides(below) or (names_hidden_field and name in _VALUE_NAMES):
                self._hide(inner)
                self._add("hidden", HIDDEN)
            else:
                self.read(inner, below, level + 1)
        self._end("{}", level, is_empty=not pairs)

    def _hide(self, value: Any) -> None:
        """Remember every text and number in a value as hidden, but not words such as ``null``."""
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
            self._add("mark", f"{mark}\n{'  ' * level}")

    def _end(self, brackets: str, level: int, *, is_empty: bool) -> None:
        if not self.is_cut:
            self._add("mark", brackets if is_empty else f"\n{'  ' * level}{brackets[1]}")

    def _add_value(self, kind: str, value: str) -> None:
        """Add a name, text or number; cut it if it is long."""
        if self.is_cut:
            return
        text = value[:MOST_VALUE]
        self._add(kind, text if kind == "number" else json.dumps(text, ensure_ascii=False))
        if len(value) > MOST_VALUE:
            self._add("mark", f"… {len(value) - MOST_VALUE:,} more characters")

    def _add(self, kind: str, text: str) -> None:
        self._characters_left -= len(text)
        if self._characters_left < 0 or len(self.tokens) == _MOST_TOKENS:
            self.is_cut = True
        if not self.is_cut:
            self.tokens.append(Token(kind, text))
