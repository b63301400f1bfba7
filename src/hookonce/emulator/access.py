"""Who may call the API, and how often (interface, Authentication and Limits).

A key is shown once, when it is made. What is kept is its hash: nothing here can show it again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex

from ..errors import shows_half_built
from ..http.bearer import bearer_of
from ..resources import ApiKey

ADMIN = "admin"
ROLES = ("viewer", "contributor", "editor", ADMIN)
"""Authentication 5."""

_SHOWN_OF_A_KEY = 4  # characters of the secret part that a prefix exposes
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class KeyRow:
    """What is kept of a key, beside its hash.

    Attributes:
        shown: the resource of the interface.
        expires_at: Unix seconds from which on it is refused, or None.

    """

    shown: ApiKey
    expires_at: float | None


@shows_half_built
class Keys:
    """The API keys of a workspace.

    Args:
        service: the name that keys start with.

    """

    def __init__(self, service: str) -> None:
        self._prefix = f"{service}_sk_"
        self._by_hash: dict[str, KeyRow] = {}

    def __repr__(self) -> str:
        return f"Keys({len(self._by_hash)} keys)"

    @property
    def shown(self) -> list[ApiKey]:
        """What may be known of the keys, oldest first."""
        return [row.shown for row in self._by_hash.values()]

    def take(self, key: str, role: str, *, name: str, expires_at: float | None) -> None:
        """Accept a key that is known already; ValueError if it has not the documented form."""
        if not key.startswith(self._prefix) or len(key) < len(self._prefix) + 2 * _SHOWN_OF_A_KEY:
            raise ValueError(f"a key is {self._prefix} and a secret part of 8 characters or more")
        shown = ApiKey(
            id=f"key_{token_hex(8)}",
            name=name,
            prefix=key[: len(self._prefix) + _SHOWN_OF_A_KEY],
            role=role,
        )
        self._by_hash[_hash(key)] = KeyRow(shown, expires_at)

    def new(self, role: str, *, name: str, expires_at: float | None, most: int) -> str:
        """Return a new key.

        Args:
            role: one of ``ROLES``.
            name: what people call it.
            expires_at: Unix seconds from which on it is refused, or None.
            most: how many keys the plan allows; those that were revoked do not count.

        Raises:
            ValueError: there is no such role, or there are too many keys.

        """
        if role not in ROLES:
            raise ValueError(f"there is no role {role!r}; there are {', '.join(ROLES)}")
        if len(self._by_hash) >= most:
            raise ValueError(f"the plan allows {most} keys; revoke one first")
        key = self._prefix + token_hex(20)
        self.take(key, role, name=name, expires_at=expires_at)
        return key

    def revoke(self, key: str) -> None:
        """Refuse a key from now on; LookupError if there is none."""
        if self._by_hash.pop(_hash(key), None) is None:
            raise LookupError("there is no such key; it was revoked before, or never made here")

    def in_force(self, key: str, now: float) -> KeyRow | None:
        """Return what is kept of a key, or None for one that is revoked, expired or unknown."""
        row = self._by_hash.get(_hash(key))
        if row is None or (row.expires_at is not None and now >= row.expires_at):
            return None
        return row


def presented_key(headers: Mapping[str, str]) -> str:
    """Return the key that a request carries (interface, Authentication 1), or an empty string.

    Args:
        headers: of the request; their names are looked up in lower case.

    """
    return bearer_of(headers.get("authorization", "")) or headers.get("x-api-key", "")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a day's requests.

    Attributes:
        limit: how many there are.
        remaining: how many are left after this one.
        reset_at: Unix seconds at which the count starts anew.
        is_exceeded: whether this one was one too many.

    """

    limit: int
    remaining: int
    reset_at: int
    is_exceeded: bool

    @property
    def headers(self) -> dict[str, str]:
        """What every authenticated response carries (interface, Limits: rule 1)."""
        return {
            "x-ratelimit-limit": str(self.limit),
            "x-ratelimit-remaining": str(self.remaining),
            "x-ratelimit-reset": str(self.reset_at),
        }

    def retry_after(self, now: float) -> int:
        """Return in how many whole seconds the count has started anew."""
        return math.ceil(self.reset_at - now)


class DailyQuota:
    """The requests of a workspace by days of UTC; all its keys share it."""

    def __init__(self) -> None:
        self._day = 0
        self._count = 0

    def spend(self, limit: int, now: float) -> Allowance:
        """Count a request, unless it is over the limit, and return what is left."""
        day = int(now // _DAY_SECONDS)
        if day != self._day:
            self._day, self._count = day, 0
        is_exceeded = self._count >= limit
        if not is_exceeded:
            self._count += 1
        remaining = max(0, limit - self._count)
        return Allowance(limit, remaining, (day + 1) * _DAY_SECONDS, is_exceeded)

    def leave(self, remaining: int, limit: int, now: float) -> None:
        """Let so many of this day's requests be left."""
        self._day, self._count = int(now // _DAY_SECONDS), max(0, limit - remaining)


def _hash(key: str) -> str:
    # A key is 160 random bits, so nothing slower than this is needed against guessing.
    return sha256(key.encode()).hexdigest()
