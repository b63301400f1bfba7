"""The sessions of those who have shown the token; they end with this process at the latest."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict

from ...verification.clock import Clock

SESSION_SECONDS = 12 * 3600

_MOST_SESSIONS = 100


class Sessions:
    """Who may come again without the token; the oldest has to go where they are too many.

    Args:
        clock: Unix time in seconds.

    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        # Their digests, so that how long a look takes says nothing about a name.
        self._ends: OrderedDict[bytes, float] = OrderedDict()

    def begin(self) -> str:
        """Return the name of a new session, for a cookie."""
        ends = self._clock() + SESSION_SECONDS
        name = f"{int(ends)}.{secrets.token_hex(32)}"
        self._ends[_digest(name)] = ends
        if len(self._ends) > _MOST_SESSIONS:
            self._ends.popitem(last=False)
        return name

    def goes_on(self, name: str) -> bool:
        """Return whether there is a session of this name."""
        return self._clock() < self._ends.get(_digest(name), 0.0)

    def end(self, name: str) -> None:
        """End a session, if there is one."""
        self._ends.pop(_digest(name), None)


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "backslashreplace")).digest()
