"""What the inspector hides: headers by name, parts of bodies by key or path.

What was hidden once is also taken out of every other text about the same delivery, such as the
message of an exception that quotes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["DEFAULT_HEADERS", "DEFAULT_KEYS", "HIDDEN", "Redaction", "scrubbed"]

HIDDEN = "[redacted]"

DEFAULT_HEADERS = frozenset({"x-api-key", "x-auth-token", "x-csrf-token"})
DEFAULT_KEYS = frozenset(
    {
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
        "passphrase",
        "passwd",
        "password",
        "private_key",
        "refresh_token",
        "secret",
        "session_id",
        "signature",
        "ssn",
        "token",
    }
)

# Whoever has one of these can act for somebody; no configuration shows them.
_ALWAYS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
_SIGNATURE = "signature"

# Shorter ones, such as `1` or `no`, stand in every text for something else.
_LEAST_SCRUBBED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """Which headers and which parts of a body are hidden.

    Signatures, ``Authorization`` and cookies are hidden whatever is configured. What people wrote
    (a comment, a name) is shown by default: name its path, such as ``data.text``, to hide it.

    Attributes:
        headers: names of headers, in any case.
        keys: names of JSON fields, at any depth. Case, ``_`` and ``-`` make no difference.
        paths: JSON fields by their path, with full stops between: ``data.author.name``. ``*`` is
            any one field; the places of a list are not counted.

    """

    headers: Collection[str] = DEFAULT_HEADERS
    keys: Collection[str] = DEFAULT_KEYS
    paths: Collection[str] = ()

    def __post_init__(self) -> None:
        for name in ("headers", "keys", "paths"):
            values = getattr(self, name)
            if isinstance(values, str) or not all(isinstance(v, str) and v for v in values):
                raise TypeError(f"{name} takes a collection of names, not {values!r}")
        # Compared in one spelling each; the frozen object cannot be changed after this.
        _set = object.__setattr__
        _set(self, "headers", frozenset(name.lower() for name in self.headers))
        _set(self, "keys", frozenset(map(_spelling, self.keys)))
        _set(self, "paths", tuple(self.paths))

    def hides_header(self, name: str) -> bool:
        """Return whether the value of a header is hidden."""
        lowered = name.lower()
        return lowered in _ALWAYS or lowered in self.headers or _SIGNATURE in lowered

    def hides(self, path: tuple[str, ...]) -> bool:
        """Return whether a field of a body is hidden, given the names that lead to it."""
        return _spelling(path[-1]) in self.keys or any(
            len(parts) == len(path)
            and all(part in {"*", name} for part, name in zip(parts, path, strict=True))
            for parts in (pattern.split(".") for pattern in self.paths)
        )

    def hide_in_text(self, text: str) -> str:
        """Return text that is no JSON, without what stands behind the names of hidden fields."""
        last = {_spelling(path.rpartition(".")[2]) for path in self.paths}
        names = frozenset({*self.keys, *last} - {"*", ""})
        return _fields_named(names).sub(rf"\1{HIDDEN}", text) if names else text


@lru_cache(maxsize=32)
def _fields_named(names: frozenset[str]) -> re.Pattern[str]:
    """Return what finds these fields in any text, and what stands behind them."""
    spellings = (
        "[_-]?".join(map(re.escape, name)) for name in sorted(names, key=len, reverse=True)
    )
    return re.compile(
        rf"""(?<![\w-])(["']?(?:{"|".join(spellings)})["']?\s{{0,8}}[:=]\s{{0,8}})"""
        r"""(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?"""
        r"""|(?:(?:bearer|basic)\s{1,8})?[^\s,;&}\]]+)""",
        re.DOTALL | re.IGNORECASE,
    )


def _spelling(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def scrubbed(text: str, hidden: Iterable[str]) -> str:
    """Return a text without the values that are hidden elsewhere in the same delivery."""
    for value in sorted(set(hidden), key=len, reverse=True):
        if len(value) >= _LEAST_SCRUBBED:
            text = text.replace(value, HIDDEN)
    return text
