"""What is hidden in a text of any kind: JSON, a form, XML, or lines in which names have values.

One kind stands in another: a form holds JSON, and JSON a string that is a form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any, Protocol
from urllib.parse import unquote_plus

from .scrubbing import HIDDEN, HiddenValues

MOST_LEVELS = 100
_MOST_NESTED = 4
_NAME_NAMES = {"field", "header", "key", "name"}
_VALUE_NAMES = {"content", "value", "values"}
# No name, mark and value are shorter together, and bodies are full of such texts.
_LEAST_TEXT = 5


class Rules(Protocol):
    """Which fields are hidden."""

    def hides(self, path: tuple[str, ...]) -> bool:
        """Return whether a field is hidden, given the names that lead to it."""
        ...

    def hides_name(self, name: str) -> bool:
        """Return whether a field is hidden of which only the name is known."""
        ...


class NumberText(str):
    """A number as it was written: neither rounded nor too long."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """An object as it was written: in order, with names that are given twice."""

    __slots__ = ()


class Deep(str):
    """What stands in place of a value that is too deep to be shown."""

    __slots__ = ()


class Concealed(str):
    """What stands in place of a value that is hidden."""

    __slots__ = ()


def _number(text: str) -> NumberText:
    # In Python, so that the reading of a long list lets other threads run now and then.
    return NumberText(text)


def json_of(text: str | bytes) -> Any:
    """Return the JSON in a text; raises ValueError or RecursionError."""
    return json.loads(
        text,
        object_pairs_hook=Pairs,
        parse_int=_number,
        parse_float=_number,
        parse_constant=_number,
    )


# A name, perhaps with an escape before it or in it, and what stands between it and its value.
_NAME = r"[\w.$\[\]-]|%(?!3[AaDd])|\\u[0-9A-Fa-f]{4}"
_PAIR = (
    rf"(?:(?<![\w.$%\[\]-])|(?=\\))(?:\\[bfnrt])*(?P<name>(?:{_NAME})++)"
    r"""\\{0,8}["']?\s{0,8}(?:=>|->|[:!<>]?={1,3}|[:：＝]|%3[AaDd])[\s+]{0,8}"""  # noqa: RUF001 - their wide spellings
)
_ELEMENT = r"<(?P<element>[\w.:-]+)(?:\s[^<>]*)?(?<!/)>"
_NAMED = re.compile(f"{_ELEMENT}|{_PAIR}")

_QUOTED = re.compile(
    r"""(?P<opening>[BbFRrUu]{0,2}(?P<escapes>\\{0,8})(?P<quote>["']|%2[27]))(?P<value>.*?)"""
    r"(?:(?<!\\)(?<!%5[Cc])(?P=escapes)(?P=quote)|\Z)",
    re.DOTALL,
)
_UNQUOTED = re.compile(
    r"(?:(?i:bearer|basic|digest|token)\s{1,8})?(?:(?!%26)[^\s,;&}\]<>(\[{])+|<[^<>]*>?"
)
_BRACKET = re.compile(r"[(\[{]|[)\]}]")
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_TAG = re.compile("<[^<>]*>")
_LOGIN = re.compile(r"(?<=://)(?P<user>[^\s/:@]{0,256}:)(?P<value>[^\s/@]{1,1024})(?=@)")

_FORM = re.compile(r"""[^\s<>{}"'=&]+=[^\s<>{}"']*""")


class Concealer:
    """Hides what the rules say.

    Args:
        rules: which fields are hidden.

    Attributes:
        values: what was hidden so far.
        has_hidden: whether anything was.

    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.values = HiddenValues()
        self.has_hidden = False

    def tree(self, value: Any, path: tuple[str, ...] = (), depth: int = 0, level: int = 0) -> Any:
        """Return JSON with `Concealed` in place of what is hidden, or is too deep to be shown."""
        if isinstance(value, list) and level == MOST_LEVELS:
            self.has_hidden, self.values.is_complete = True, False
            return Deep("…")
        if isinstance(value, Pairs):
            is_named = any(map(self._names_a_hidden_one, value))
            return Pairs(
                (name, self._conceal(inner))
                if self._rules.hides((*path, name)) or (is_named and name in _VALUE_NAMES)
                else (name, self.tree(inner, (*path, name), depth, level + 1))
                for name, inner in value
            )
        if isinstance(value, list):
            return [self.tree(inner, path, depth, level + 1) for inner in value]
        if isinstance(value, str) and not isinstance(value, NumberText):
            return self.text(value, depth)
        return value

    def _names_a_hidden_one(self, pair: tuple[str, Any]) -> bool:
        """Return whether a field says what the field beside it is, as lists of headers have it."""
        name, value = pair
        return name in _NAME_NAMES and isinstance(value, str) and self._rules.hides_name(value)

    def _conceal(self, value: Any) -> Concealed:
        for leaf in _leaves(value):
            self.values.add(leaf)
        return self._concealed()

    def text(self, text: str, depth: int = 0) -> str:
        """Return a text without what is hidden in it, of whatever kind it is."""
        if len(text) < _LEAST_TEXT:
            return text
        if depth == _MOST_NESTED:
            return self._concealed() if _NAMED.search(text) else text
        start = text.lstrip()[:1]
        if start in {"{", "[", '"'}:
            try:
                return self._inner(text, json_of(text), depth + 1)
            except (ValueError, RecursionError):
                return self.lines(text)
        if _FORM.fullmatch(text.strip()):
            return self._form(text, depth + 1)
        return self.lines(text)

    def _inner(self, text: str, tree: Any, depth: int) -> str:
        """Return JSON that is the content of a string: as it came where nothing in it is hidden."""
        had_hidden, self.has_hidden = self.has_hidden, False
        shown = self.tree(tree, depth=depth)
        if self.has_hidden:
            return _written(shown)
        self.has_hidden = had_hidden
        return text

    def _form(self, text: str, depth: int) -> str:
        return "&".join(self._field(part, depth) for part in text.split("&"))

    def _field(self, part: str, depth: int) -> str:
        name, equals, encoded = part.partition("=")
        value = unquote_plus(encoded.strip())
        if equals and value and self._rules.hides_name(unquote_plus(name)):
            self.values.add(value)
            return f"{name}={self._concealed()}"
        shown = self.text(value, depth)
        return part if shown == value else f"{name}={shown}"

    def lines(self, text: str) -> str:
        """Return a text without what stands behind the names of hidden fields and elements."""
        pieces: list[str] = []
        done = 0
        while found := _NAMED.search(text, done):
            first = last = found.end()
            if (element := found["element"]) is None:
                if self._rules.hides_name(_decoded(found["name"])):
                    last = _end_of_value(text, first)
            elif self._rules.hides_name(element.rpartition(":")[2]):
                closing = text.find(f"</{element}", first)
                last = len(text) if closing < 0 else closing
            else:
                first = last = found.end("element")  # its attributes may be hidden
            value = text[first:last]
            pieces.append(text[done:first])
            if value:
                self._note(value)
                pieces.append(self._concealed())
            done = last
        pieces.append(text[done:])
        shown = "".join(pieces)
        return _LOGIN.sub(self._login, shown) if self._rules.hides_name("password") else shown

    def _login(self, found: re.Match[str]) -> str:
        self.values.add(found["value"])
        return f"{found['user']}{self._concealed()}"

    def _note(self, written: str) -> None:
        """Keep a value as it was written, and as it is."""
        if written == HIDDEN:
            return
        quoted = _QUOTED.fullmatch(written)
        value = quoted["value"] if quoted else written
        self.values.add(value)
        for read in (_unescaped, _text_of_element):
            if (other := read(value)) != value:
                self.values.add(other)

    def _concealed(self) -> Concealed:
        self.has_hidden = True
        return Concealed(HIDDEN)


def _end_of_value(text: str, start: int) -> int:
    """Return where the value ends that begins there, in whatever notation."""
    if text.startswith(HIDDEN, start):
        return start + len(HIDDEN)
    found = _QUOTED.match(text, start) or _UNQUOTED.match(text, start)
    end = start if found is None else found.end()
    if text[end : end + 1] not in {"(", "[", "{"}:
        return end
    depth = 0  # an object, a list, or what a call returned
    for bracket in _BRACKET.finditer(text, end):
        depth += 1 if bracket[0] in "([{" else -1
        if depth == 0:
            return bracket.end()
    return len(text)


def _leaves(value: Any) -> Iterator[str]:
    """Yield what is hidden with a value; words such as ``null`` tell nothing."""
    if isinstance(value, Pairs):
        for _, inner in value:
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, str):
        yield str(value)


def _written(tree: Any) -> str:
    """Return a tree as JSON, its numbers as they came."""
    if isinstance(tree, Pairs):
        return f"{{{', '.join(f'{_written(name)}: {_written(inner)}' for name, inner in tree)}}}"
    if isinstance(tree, list):
        return f"[{', '.join(map(_written, tree))}]"
    return tree if isinstance(tree, NumberText | Deep) else json.dumps(tree, ensure_ascii=False)


def _decoded(name: str) -> str:
    """Return a name without the escapes of JSON and URLs."""
    if "\\" in name:
        name = re.sub(r"\\u([0-9A-Fa-f]{4})", lambda found: chr(int(found[1], 16)), name)
    return unquote_plus(name) if "%" in name else name


def _unescaped(value: str) -> str:
    """Return a value without the backslashes of JSON or Python."""
    try:
        return str(json.loads(f'"{value}"', strict=False)) if "\\" in value else value
    except ValueError:
        return value


def _text_of_element(value: str) -> str:
    """Return the text of an element."""
    return unescape(_TAG.sub("", _CDATA.sub(r"\1", value))).strip()
