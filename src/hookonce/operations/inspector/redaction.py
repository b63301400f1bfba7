"""What the inspector hides: headers by name, parts of bodies by key or path."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

from .concealing import Concealer

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
# What hides a name stands at its end.
_MOST_NAME = 256

_NEW_WORD = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_WORD = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """Which headers and which parts of a body are hidden.

    Signatures, ``Authorization`` and cookies are hidden whatever is configured. What people wrote
    (a comment, a name) is shown by default: name its path, such as ``data.text``, to hide it.

    Attributes:
        headers: names of headers, in any case.
        keys: names of fields, at any depth, in JSON, forms, XML and other text; headers too. Case,
            ``_``, ``-``, the width of letters and a number at the end make no difference, and words
            may stand before them: ``password`` is also ``userPassword``.
        paths: JSON fields by their path, with full stops between: ``data.author.name``. ``*`` is
            any one field; the places of a list are not counted.

    """

    headers: Collection[str] = DEFAULT_HEADERS
    keys: Collection[str] = DEFAULT_KEYS
    paths: Collection[str] = ()
    _endings: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _last_names: frozenset[str] = field(init=False, repr=False, compare=False)

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

    @property
    def needs_paths(self) -> bool:
        """Whether what it hides can be told by the whole path only, never by a name."""
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
            len(parts) == len(path)
            and all(part in {"*", name} for part, name in zip(parts, path, strict=True))
            for parts in (pattern.split(".") for pattern in self.paths)
        )

    def hides_name(self, name: str) -> bool:
        """Return whether a field is hidden of which nothing but the name is known."""
        return self._hides_key(name) or "".join(_words(name)) in self._last_names

    def hide_in_text(self, text: str) -> str:
        """Return text of any kind without what is hidden in it."""
        return Concealer(self).text(text)

    def _hides_key(self, name: str) -> bool:
        words = _words(name)
        return (
            "".join(words).endswith(self._endings)
            or any("".join(words[first:]) in self.keys for first in range(len(words)))
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
