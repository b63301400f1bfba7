"""API keys and the daily quota (interface, Authentication and Limits).

The service shows a key once, when it creates the key, and keeps only the key's hash.
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
"""The roles of keys (interface, Authentication 5)."""

_PREFIX_LENGTH = 4  # the interface shows this many characters of a key's secret part
DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class KeyRow:
    """An API key without its secret text."""

    resource: ApiKey
    expires_at: float | None


@shows_half_built
class Keys:
    """The API keys of a workspace.

    Args:
        service: the first part of every key.
    """

    def __init__(self, service: str) -> None:
        self._prefix = f"{service}_sk_"
        self._by_hash: dict[str, KeyRow] = {}

    def __repr__(self) -> str:
        return f"Keys({len(self._by_hash)} keys)"

    @property
    def resources(self) -> list[ApiKey]:
        """The keys as the interface shows them, oldest first."""
        return [row.resource for row in self._by_hash.values()]

    def add(self, key: str, role: str, *, name: str, expires_at: float | None) -> None:
        """Add a key with this text; ValueError if the text does not have the documented form."""
        if not key.startswith(self._prefix) or len(key) < len(self._prefix) + 2 * _PREFIX_LENGTH:
            raise ValueError(f"a key is {self._prefix} and a secret part of 8 characters or more")
        resource = ApiKey(
            id=f"key_{token_hex(8)}",
            name=name,
            prefix=key[: len(self._prefix) + _PREFIX_LENGTH],
            role=role,
        )
        self._by_hash[_hash(key)] = KeyRow(resource, expires_at)

    def new(self, role: str, *, name: str, expires_at: float | None, most: int) -> str:
        """Return a new key.

        Args:
            role: one of ``ROLES``.
            most: how many keys the plan allows; revoked keys do not count.

        Raises:
            ValueError: there is no such role, or the workspace has too many keys.
        """
        if role not in ROLES:
            raise ValueError(f"there is no role {role!r}; there are {', '.join(ROLES)}")
        if len(self._by_hash) >= most:
            raise ValueError(f"the plan allows {most} keys; revoke one first")
        key = self._prefix + token_hex(20)
        self.add(key, role, name=name, expires_at=expires_at)
        return key

    def revoke(self, key: str) -> None:
        """Refuse a key from now on; LookupError if there is no such key."""
        if self._by_hash.pop(_hash(key), None) is None:
            raise LookupError("there is no such key; it was revoked before, or created elsewhere")

    def find_valid(self, key: str, now: float) -> KeyRow | None:
        """Return the row of a key, or None if the key is revoked, expired or unknown."""
        row = self._by_hash.get(_hash(key))
        if row is None or (row.expires_at is not None and now >= row.expires_at):
            return None
        return row


def presented_key(headers: Mapping[str, str]) -> str:
    """Return the API key that a request sends (interface, Authentication 1), or an empty text.

    Args:
        headers: the headers by their names in lower case.
    """
    return bearer_of(headers.get("authorization", "")) or headers.get("x-api-key", "")


@dataclass(frozen=True, slots=True)
class RemainingQuota:
    """The rest of the daily quota after a request.

    Attributes:
        limit: how many requests a day has.
        reset_at: when the next day begins, in Unix seconds.
        is_exceeded: whether the request was over the limit.
    """

    limit: int
    remaining: int
    reset_at: int
    is_exceeded: bool

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every authenticated response (interface, Limits: rule 1)."""
        return {
            "x-ratelimit-limit": str(self.limit),
            "x-ratelimit-remaining": str(self.remaining),
            "x-ratelimit-reset": str(self.reset_at),
        }

    def retry_after(self, now: float) -> int:
        """Return the whole seconds until the next day begins."""
        return math.ceil(self.reset_at - now)


class DailyQuota:
    """Counts the requests of all API keys together, for each UTC day.

    Args:
        day_seconds: how long a day takes at the service's speed.
    """

    def __init__(self, day_seconds: float = DAY_SECONDS) -> None:
        self._day_seconds = day_seconds
        self._day = 0
        self._count = 0

    def spend(self, limit: int, now: float) -> RemainingQuota:
        """Return the remaining quota after a request; a request over the limit does not count."""
        day = int(now // self._day_seconds)
        if day != self._day:
            self._day, self._count = day, 0
        is_exceeded = self._count >= limit
        if not is_exceeded:
            self._count += 1
        remaining = max(0, limit - self._count)
        reset_at = math.ceil((day + 1) * self._day_seconds)
        return RemainingQuota(limit, remaining, reset_at, is_exceeded)

    def set_remaining(self, remaining: int, limit: int, now: float) -> None:
        self._day, self._count = int(now // self._day_seconds), max(0, limit - remaining)


def _hash(key: str) -> str:
    # A key has 160 random bits: nobody can guess it, so a fast hash is enough.
    return sha256(key.encode()).hexdigest()
