"""The rules that select the hidden values, by names of headers and fields."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

DEFAULT_HEADERS = frozenset({"x-amzn-oidc-data", "x-api-key", "x-auth-token", "x-csrf-token"})
"""The headers that are hidden by default, in addition to signatures, credentials and cookies."""
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
"""The field names that are hidden by default, alone or at the end of a longer name."""

# Credentials, which are hidden in every configuration.
_ALWAYS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
_SIGNATURE = "signature"

# A secret word of at least this length also hides every longer word that ends with it: `authtoken`
# is hidden like `auth_token`. Few harmless words end with a word of this length.
_LEAST_ENDING = 5
# Names may be long, so compare only this many characters at the end of a name.
_MOST_NAME = 64
_MOST_WORDS = 4

_NEW_WORD = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_WORD = re.compile(r"[\W_]++")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """Rules that select the values which the pages hide.

    Signatures, ``Authorization``, cookies, webhook secrets, bearer tokens, private keys and logins
    in URLs are always hidden. Texts that people wrote, such as comments and names, are shown unless
    their path, such as ``data.text``, is given.

    Attributes:
        headers: names of headers, in any case.
        keys: names of fields at any depth, in JSON and in texts, and of headers. ``password`` also
            hides ``userPassword``, ``PASSWORD`` and ``password_2``.
        paths: paths of JSON fields, such as ``data.author.name``. ``*`` stands for any one field;
            indexes of lists are left out. In texts, the last name of a path works like a key.

    Raises:
        TypeError: an argument is a single string, or contains something else than names.
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
        # Normalize the names once instead of at each comparison.
        _set = object.__setattr__
        _set(self, "headers", frozenset(name.lower() for name in self.headers))
        keys = frozenset("".join(_words(name)) or name for name in self.keys)
        _set(self, "keys", keys)
        _set(self, "paths", tuple(self.paths))
        _set(self, "_endings", tuple(key for key in keys if len(key) >= _LEAST_ENDING))
        lasts = {"".join(_words(path.rpartition(".")[2])) for path in self.paths}
        _set(self, "_last_names", frozenset(lasts - {""}))
        _set(self, "_patterns", tuple(tuple(path.split(".")) for path in self.paths))

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
        """Return whether a field of a body is hidden, given the names on its path."""
        return self._hides_key(path[-1]) or any(
            len(pattern) == len(path)
            and all(part in {"*", name} for part, name in zip(pattern, path, strict=True))
            for pattern in self._patterns
        )

    def hides_name(self, name: str) -> bool:
        """Return whether a field is hidden, by its name alone."""
        return self._hides_key(name) or "".join(_words(name)) in self._last_names

    def _hides_key(self, name: str) -> bool:
        words = _words(name)
        return (
            "".join(words).endswith(self._endings)
            or any("".join(words[-count:]) in self.keys for count in range(1, _MOST_WORDS + 1))
            or name in self.keys
        )


def _words(name: str) -> tuple[str, ...]:
    """Return the normalized words of a name, without a number at its end."""
    return _words_of(name[-_MOST_NAME:])


@lru_cache(maxsize=1024)
def _words_of(name: str) -> tuple[str, ...]:
    spelt = _NEW_WORD.sub("_", unicodedata.normalize("NFKC", name)).casefold()
    words = [word for word in _NO_WORD.split(spelt.rstrip("_0123456789")) if word]
    return tuple(words)
