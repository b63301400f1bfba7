"""Replaces hidden values in bodies, headers and errors, wherever they occur.

A value is hidden if the name of its field is hidden. In a text, everything after such a name is
hidden. The same value, or eight letters of it in a row, is then hidden in all other texts of the
page.

Anybody can send a forged body that an operator opens, so the cost of a text must grow no faster
than its length. Every pattern here consumes what it reads, or gives up after a fixed number of
characters, and hidden values are searched for all at once.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence

from .redaction import Redaction

HIDDEN = "[redacted]"
WITHHELD = "[not shown: it may contain hidden values, which are too large to be searched for]"

# Escapes of JSON, Python, URLs and HTML. Several backslashes count as one, because each
# quoting doubles them. The letter after them remains: `\\token` is a name, not a tab.
_BACKSLASHES = r"(?:\\|%(?:25){0,9}5[Cc])++"
_ESCAPE = re.compile(
    rf"{_BACKSLASHES}(?:u(?P<four>[0-9A-Fa-f]{{4}})|U(?P<eight>[0-9A-Fa-f]{{8}})"
    r"|x(?P<two>[0-9A-Fa-f]{2}))?"
    r"|%(?:25){0,9}(?P<byte>[0-9A-Fa-f]{2})"
    r"|&(?:amp;){0,9}(?:\#x(?P<hexadecimal>[0-9A-Fa-f]{1,6})|\#(?P<decimal>[0-9]{1,7})"
    r"|(?:lt|gt|quot|apos|amp));"
)
_LETTER_ESCAPE = re.compile(r"\\[abfnrtv]")

# Matches the start of an XML element, or a name and the sign after it, such as `:` or `=`.
_NAME = re.compile(
    r"<(?P<element>[\w.:-]++)"
    r"|(?P<name>[\w.$\[\]-]++)"
    r"""(?P<mark>[\\"']{0,8}+\s{0,64}+(?:[-=]>|[:!<>]?={1,3}|[:：＝])\s{0,8})?"""  # noqa: RUF001 - the full-width colon and equals sign
)
# Matches secrets by their form. In a URL, the user and password end at the @.
_SECRET = re.compile(
    r"wh(?:sec|sk)_[\w+/=-]++|(?<!\w)v1a?,[\w+/=-]{16,}+|(?<=://)[^\s/@]*+(?=@)"
    r"|(?<!\w)[Bb][Ee][Aa][Rr][Ee][Rr]\s{1,8}(?=[\w.~+/=-]{16})[\w.~+/=-]++"
    r"|-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[^-]*+"
)
_FIRST_PIECE = re.compile(r"""[^\s"'&,;<>()\[\]{}]++""")

# A part of a hidden value is also hidden if it has this many letters and digits. A shorter value is
# hidden only as a whole word.
_GRAM = 8
_MOST_LETTERS = 16 * 1024
# The shortest text that can contain a name, a sign and a value.
_LEAST_TEXT = 5

_HIGHEST = 0x10FFFF


class Redactor:
    """Hides values on one page, and finds the same values in all texts of the page.

    Attributes:
        is_complete: whether all hidden values could be remembered.
    """

    def __init__(self, rules: Redaction) -> None:
        self.rules = rules
        self.has_hidden: bool = False
        self.is_complete: bool = True
        self._grams: set[str] = set()
        self._short: set[str] = set()
        self._letters_left = _MOST_LETTERS

    def hide(self, value: str) -> str:
        """Remember a hidden value, and return its replacement."""
        self.has_hidden = True
        if len(value) > self._letters_left:
            self.is_complete = False
            return HIDDEN
        # Remember the bytes, too: URLs and the `repr` of bytes escape each byte of a non-ASCII
        # letter.
        as_bytes = value.encode("utf-8", "surrogatepass").decode("latin-1")
        for form in {value, as_bytes}:
            letters = _letters(_plain(form)[0])[0]
            self._letters_left -= len(letters)
            if len(letters) < _GRAM:
                self._short.add(letters)
            self._grams.update(letters[at : at + _GRAM] for at in range(len(letters) - _GRAM + 1))
        self._short.discard("")
        return HIDDEN

    def text(self, text: str, *, by_line: bool = False) -> str:
        """Return a text without the values that follow the names of hidden fields.

        Args:
            by_line: whether the next line is shown again, as in a traceback.
        """
        if len(text) < _LEAST_TEXT:
            return text
        plain, places = _plain(text)
        spans = [found.span() for found in _SECRET.finditer(plain)]
        done = 0
        for found in _NAME.finditer(plain):
            if found.start() < done or not self._is_hidden(found, plain):
                continue
            end = plain.find("\n", found.end()) if by_line else -1
            done = len(plain) if end < 0 else end
            spans.append((found.end(), done))
        for start, end in spans:
            value = plain[start:end].strip()
            if value and value != HIDDEN:
                self.hide(value)
                if (piece := _FIRST_PIECE.search(value)) is not None:
                    self.hide(piece[0])
        return _without(text, ((places[start], places[end]) for start, end in spans))

    def scrub(self, text: str, *, least: int = 1) -> str:
        """Return a text without the values given to ``hide``, escaped or not.

        Args:
            least: shorter values are not searched for.
        """
        if not self.is_complete:
            return WITHHELD if text else ""
        if not self._grams and not self._short:
            return text
        plain, places = _plain(text)
        letters, at = _letters(plain)
        spans: list[tuple[int, int]] = []
        end_of_word = -1
        for first in range(len(letters)):
            if letters[first : first + _GRAM] in self._grams:
                spans.append((at[first], at[first + _GRAM - 1] + 1))
            if at[first] != end_of_word:
                spans += self._short_ones(letters, at, first, least)
            end_of_word = at[first] + 1
        return _without(text, ((places[start], places[end]) for start, end in spans))

    def _is_hidden(self, found: re.Match[str], plain: str) -> bool:
        if (element := found["element"]) is not None:
            return self.rules.hides_name(element.rpartition(":")[2])
        if found["mark"] is None:
            return False
        name = found["name"]
        return self.rules.hides_name(name) or (
            plain[max(0, found.start() - 1)] == "\\" and self.rules.hides_name(name[1:])
        )

    def _short_ones(
        self, letters: str, at: Sequence[int], first: int, least: int
    ) -> Iterable[tuple[int, int]]:
        """Yield the range of each short hidden value at ``first`` that is a whole word."""
        for size in range(least, min(_GRAM, len(letters) - first + 1)):
            last = first + size - 1
            ends_there = last + 1 == len(letters) or at[last + 1] != at[last] + 1
            if ends_there and letters[first : last + 1] in self._short:
                yield at[first], at[last] + 1


def _plain(text: str) -> tuple[str, Sequence[int]]:
    """Return a text without escapes, and the position of each character in the original text."""
    pieces: list[str] = []
    places = array("L")
    done = 0
    for found in _ESCAPE.finditer(text):
        start, end = found.span()
        pieces += text[done:start], _character(found)
        places.extend(range(done, start + 1))
        done = end
    if not pieces:
        return text, range(len(text) + 1)
    places.extend(range(done, len(text) + 1))
    return "".join([*pieces, text[done:]]), places


_NAMED = {"lt": "<", "gt": ">", "quot": '"', "apos": "'", "amp": "&"}


def _character(found: re.Match[str]) -> str:
    """Return the character of an escape; a space if it is not printable."""
    for base, names in ((16, ("four", "eight", "two", "byte", "hexadecimal")), (10, ("decimal",))):
        for name in names:
            if (digits := found[name]) is not None:
                code = int(digits, base)
                character = chr(code) if code <= _HIGHEST else " "
                return character if character.isprintable() else " "
    written = found[0]
    if not written.startswith("&"):
        return "\\"
    return _NAMED[written.rstrip(";").rpartition("&")[2].rpartition(";")[2]]


def _letters(plain: str) -> tuple[str, Sequence[int]]:
    """Return the letters and digits of a text, without letters of escapes, and their positions."""
    plain = _LETTER_ESCAPE.sub("\\ ", plain)
    at = array("L", (place for place, one in enumerate(plain) if one.isalnum()))
    return "".join(map(plain.__getitem__, at)), at


def _without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Replace each (start, end) range of a text by ``[redacted]``; merge ranges that touch."""
    pieces: list[str] = []
    done = -1
    for start, end in sorted(spans):
        if end <= start:
            continue
        if start > done:
            pieces += [text[max(done, 0) : start], HIDDEN]
        done = max(done, end)
    return "".join([*pieces, text[max(done, 0) :]])
