"""What the inspector hides, by one rule.

Hidden is the value of a field whose name ends in a secret word; in a text, all that stands behind
such a name; and what is hidden so, or eight letters of it in a row, wherever else it stands in the
body, the headers and the errors of a page.

A forged body is shown as well, so the cost of a text grows with its length and no faster, whatever
the text says. Every pattern below consumes what it has read, or gives up after a fixed number of
characters; no text is searched once for each hidden value.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

HIDDEN = "[redacted]"
WITHHELD = "[not shown: it may quote hidden values that are too large to be looked for]"

DEFAULT_HEADERS = frozenset({"x-amzn-oidc-data", "x-api-key", "x-auth-token", "x-csrf-token"})
"""The headers that are hidden beside those of the signature, of logins and cookies."""
DEFAULT_KEYS = frozenset(
    {
        "access_key",
        "access_token",
        "api_key",
        "authorization",
        "card_number",
        "client_secret",
        "cookie",
        "credentials",
        "cvc",
        "cvv",
        "iban",
        "id_token",
        "jwt",
        "jwt_assertion",
        "otp",
        "passcode",
        "passphrase",
        "passwd",
        "password",
        "password_confirmation",
        "password_hash",
        "private_key",
        "pwd",
        "refresh_token",
        "secret",
        "secret_key",
        "session_id",
        "signature",
        "ssn",
        "token",
    }
)
"""The names of fields whose values are hidden, also where they end a longer name."""

# Whoever has one of these can act for somebody; no configuration shows them.
_ALWAYS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
_SIGNATURE = "signature"

# A longer key ends no other word by chance, so `authtoken` needs no mark between its words.
_LEAST_ENDING = 5
# What hides a name stands at its end, in its last words.
_MOST_NAME = 64
_MOST_WORDS = 4

_NEW_WORD = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_WORD = re.compile(r"[\W_]++")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """Which headers and which parts of a body are hidden.

    Signatures, ``Authorization`` and cookies are hidden whatever is configured, and so are webhook
    secrets, bearer tokens, and logins in URLs. What people wrote (a comment, a name) is shown by
    default: name its path, such as ``data.text``, to hide it.

    Attributes:
        headers: names of headers, in any case.
        keys: names of fields, at any depth, in JSON and in texts; headers too. Case, ``_``, ``-``,
            the width of letters and a number at the end make no difference, and words may stand
            before them: ``password`` is also ``userPassword``.
        paths: JSON fields by their path, with full stops between: ``data.author.name``. ``*`` is
            any one field; the places of a list are not counted. In texts the last name of a path
            hides as a key does.

    """

    headers: Collection[str] = DEFAULT_HEADERS
    keys: Collection[str] = DEFAULT_KEYS
    paths: Collection[str] = ()
    _endings: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _last_names: frozenset[str] = field(init=False, repr=False, compare=False)
    _patterns: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("headers", "keys", "paths"):
            values = getattr(self, name)
            if isinstance(values, str) or not all(isinstance(v, str) and v for v in values):
                raise TypeError(f"{name} takes a collection of names, not {values!r}")
        # Compared in one spelling each; the frozen object cannot be changed after this.
        _set = object.__setattr__
        _set(self, "headers", frozenset(name.lower() for name in self.headers))
        keys = frozenset("".join(_words(name)) or name for name in self.keys)
        _set(self, "keys", keys)
        _set(self, "paths", tuple(self.paths))
        _set(self, "_endings", tuple(key for key in keys if len(key) >= _LEAST_ENDING))
        lasts = {"".join(_words(path.rpartition(".")[2])) for path in self.paths}
        _set(self, "_last_names", frozenset(lasts - {""}))
        _set(self, "_patterns", tuple(tuple(path.split(".")) for path in self.paths))

    @property
    def needs_paths(self) -> bool:
        """Whether the name of a field does not say whether it is hidden, only its whole path."""
        return any(path.endswith("*") for path in self.paths)

    def hides_header(self, name: str) -> bool:
        """Return whether the value of a header is hidden."""
        lowered = name.lower()
        return (
            lowered in _ALWAYS
            or lowered in self.headers
            or _SIGNATURE in lowered
            or self._hides_key(name)
        )

    def hides(self, path: tuple[str, ...]) -> bool:
        """Return whether a field of a body is hidden, given the names that lead to it."""
        return self._hides_key(path[-1]) or any(
            len(pattern) == len(path)
            and all(part in {"*", name} for part, name in zip(pattern, path, strict=True))
            for pattern in self._patterns
        )

    def hides_name(self, name: str) -> bool:
        """Return whether a field is hidden of which nothing but the name is known."""
        return self._hides_key(name) or "".join(_words(name)) in self._last_names

    def _hides_key(self, name: str) -> bool:
        words = _words(name)
        return (
            "".join(words).endswith(self._endings)
            or any("".join(words[-count:]) in self.keys for count in range(1, _MOST_WORDS + 1))
            or name in self.keys
        )


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name, in one spelling, without a number at its end."""
    return _words_of(name[-_MOST_NAME:])


@lru_cache(maxsize=1024)
def _words_of(name: str) -> tuple[str, ...]:
    spelt = _NEW_WORD.sub("_", unicodedata.normalize("NFKC", name)).casefold()
    words = [word for word in _NO_WORD.split(spelt.rstrip("_0123456789")) if word]
    return tuple(words)


# How JSON, Python, URLs and HTML write a character. A run of backslashes is one: texts stand within
# texts. Behind it a letter such as `n` stays, since `\\token` is a name and no tab.
_BACKSLASHES = r"(?:\\|%(?:25){0,9}5[Cc])++"
_ESCAPE = re.compile(
    rf"{_BACKSLASHES}(?:u(?P<four>[0-9A-Fa-f]{{4}})|U(?P<eight>[0-9A-Fa-f]{{8}})"
    r"|x(?P<two>[0-9A-Fa-f]{2}))?"
    r"|%(?:25){0,9}(?P<byte>[0-9A-Fa-f]{2})"
    r"|&(?:amp;){0,9}(?:\#x(?P<hexadecimal>[0-9A-Fa-f]{1,6})|\#(?P<decimal>[0-9]{1,7})"
    r"|(?:lt|gt|quot|apos|amp));"
)
_LETTER_ESCAPE = re.compile(r"\\[abfnrtv]")

# An XML element, or a name and perhaps what says that its value follows.
_NAME = re.compile(
    r"<(?P<element>[\w.:-]++)"
    r"|(?P<name>[\w.$\[\]-]++)"
    r"""(?P<mark>[\\"']{0,8}+\s{0,64}+(?:[-=]>|[:!<>]?={1,3}|[:：＝])\s{0,8})?"""  # noqa: RUF001 - their wide spellings
)
# Hidden whatever stands before it. A login in a URL ends at its @.
_SECRET = re.compile(
    r"whsec_[\w+/=-]++|(?<!\w)v1a?,[\w+/=-]{16,}+|(?<=://)[^\s/@]*+(?=@)"
    r"|(?<!\w)[Bb][Ee][Aa][Rr][Ee][Rr]\s{1,8}(?=[\w.~+/=-]{16})[\w.~+/=-]++"
    r"|-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[^-]*+"
)
_FIRST_PIECE = re.compile(r"""[^\s"'&,;<>()\[\]{}]++""")

# So many letters of a hidden value in a row are hidden; of shorter ones only the whole, as words.
_GRAM = 8
_MOST_LETTERS = 16 * 1024
# No name, mark and value are shorter together, and bodies are full of such texts.
_LEAST_TEXT = 5

_HIGHEST = 0x10FFFF


class Redactor:
    """Hides what a redaction says on one page, and remembers it for the page's other texts.

    Args:
        rules: which fields are hidden.

    Attributes:
        has_hidden: whether anything was.
        is_complete: whether all that was hidden could be remembered.

    """

    def __init__(self, rules: Redaction) -> None:
        self.rules = rules
        self.has_hidden = False
        self.is_complete = True
        self._grams: set[str] = set()
        self._short: set[str] = set()
        self._room = _MOST_LETTERS

    def hide(self, value: str) -> str:
        """Remember a value that is hidden, and return what stands in its place."""
        self.has_hidden = True
        if len(value) > self._room:
            self.is_complete = False
            return HIDDEN
        # A URL and the `repr` of bytes write the bytes of a letter.
        as_bytes = value.encode("utf-8", "surrogatepass").decode("latin-1")
        for form in {value, as_bytes}:
            letters = _letters(_plain(form)[0])[0]
            self._room -= len(letters)
            if len(letters) < _GRAM:
                self._short.add(letters)
            self._grams.update(letters[at : at + _GRAM] for at in range(len(letters) - _GRAM + 1))
        self._short.discard("")
        return HIDDEN

    def text(self, text: str, *, by_line: bool = False) -> str:
        """Return a text without what stands behind the names of hidden fields.

        Args:
            text: of any kind.
            by_line: whether only the rest of the line is hidden: what a program writes, such as a
                traceback, goes on with something else.

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
        """Return a text without what was hidden so far, however it is written there.

        Args:
            text: what may quote it.
            least: how many letters a value has that is looked for.

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
        """Return whether what was found is the name of a hidden field."""
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
        """Yield where short values stand that begin with a letter and end with their word."""
        for size in range(least, min(_GRAM, len(letters) - first + 1)):
            last = first + size - 1
            ends_there = last + 1 == len(letters) or at[last + 1] != at[last] + 1
            if ends_there and letters[first : last + 1] in self._short:
                yield at[first], at[last] + 1


def _plain(text: str) -> tuple[str, Sequence[int]]:
    """Return a text with one character for each escape, and where each of them began."""
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
    """Return the character that an escape stands for, or a space for one that cannot be seen."""
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
    """Return the letters and digits of a text, which every notation keeps, and their places."""
    plain = _LETTER_ESCAPE.sub("\\ ", plain)
    at = array("L", (place for place, one in enumerate(plain) if one.isalnum()))
    return "".join(map(plain.__getitem__, at)), at


def _without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text with one mark in place of each span, or of several that touch."""
    pieces: list[str] = []
    done = -1
    for start, end in sorted(spans):
        if end <= start:
            continue
        if start > done:
            pieces += [text[max(done, 0) : start], HIDDEN]
        done = max(done, end)
    return "".join([*pieces, text[max(done, 0) :]])
