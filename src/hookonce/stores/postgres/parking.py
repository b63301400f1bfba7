"""Parked entries: inbox entries that wait until no other event uses their key lock.

A key lock is in use while an entry that needs it is due or fetched, and while an attempt holds it.
An enqueue or a fetch that finds the key lock of an entry in use parks the entry: its ``due`` is
infinite, so no fetch reads it again. When the use ends, the first parked entry becomes due. A new
entry is also parked behind parked entries, so that it does not overtake them.

Two transactions that run at once do not see each other: one may park an entry while the other ends
the use. So each of them looks at the key lock again after its commit, with ``Parking.wake``, and
the later one sees the changes of both.

Nobody looks if a process ends between its commit and ``wake``, or if the lease of a key lock runs
out. So each process with a worker looks at all key locks with parked entries from time to time. The
index of parked entries leads from one key lock to the next, however many entries each of them has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from .connection import Statement
from .schema import NOW
from .wire import blobs, dump_int, dump_time

PARKED_SECONDS = 30.0
"""How often a process looks at all key locks with parked entries. A listing shows this as the time
until a parked entry is due."""

_KEY_LOCKS_AT_ONCE = 1_000
# The pause between two steps of `walk` is this many times as long as a step.
_PATIENCE = 20

# Finds the first parked entry of a key lock, or of the next key lock that has parked entries. With
# the condition `=`, the server would search the whole table if its statistics show only one lock.
_FIRST_PARKED = """
SELECT {columns} FROM {{schema}}.entries AS p WHERE p.due = 'infinity' AND p.key_lock {from_}
ORDER BY p.key_lock, p.id LIMIT 1
"""


def has_entry(key_lock: str, now: str) -> str:
    """Return the SQL condition that an entry that needs the key lock is due or fetched."""
    return f"""EXISTS (
        SELECT FROM {{schema}}.entries AS o WHERE o.key_lock = {key_lock} AND o.due < 'infinity'
        AND (o.token IS NOT NULL OR o.due <= {now})
    )"""


def is_held(key_lock: str, now: str) -> str:
    """Return the SQL condition that an attempt holds the key lock."""
    return f"""EXISTS (
        SELECT FROM {{schema}}.key_locks AS l
        WHERE l.key = {key_lock} AND l.token IS NOT NULL AND l.until > {now}
    )"""


def has_parked(key_lock: str) -> str:
    """Return the SQL condition that the key lock has a parked entry."""
    first = _FIRST_PARKED.format(columns="p.key_lock", from_=f">= {key_lock}")
    return f"({first}) = {key_lock}"


def _in_use(key_lock: str) -> str:
    return f"({has_entry(key_lock, NOW)} OR {is_held(key_lock, NOW)})"


_WAKE = f"""
UPDATE {{schema}}.entries AS e SET due = {NOW}, delay = 0
FROM unnest($2::bytea[]) AS freed (key_lock) CROSS JOIN LATERAL (
    {_FIRST_PARKED.format(columns="p.id, p.key_lock", from_=">= freed.key_lock")}
) AS first
WHERE e.id = first.id AND first.key_lock = freed.key_lock AND e.due = 'infinity'
  AND NOT {_in_use("freed.key_lock")}
RETURNING e.endpoint
"""
_WALK = f"""
WITH RECURSIVE walked AS (
    SELECT ({_FIRST_PARKED.format(columns="p.key_lock", from_="> $2::bytea")}) AS key_lock
    UNION ALL
    SELECT ({_FIRST_PARKED.format(columns="p.key_lock", from_="> w.key_lock")})
    FROM walked AS w WHERE w.key_lock IS NOT NULL
)
SELECT key_lock, {_in_use("found.key_lock")}
FROM (SELECT key_lock FROM walked LIMIT $3::int8) AS found WHERE key_lock IS NOT NULL
"""


class Parking:
    """Makes parked entries of one schema due."""

    def __init__(self, schema: str) -> None:
        self._wake = _WAKE.format(schema=schema).encode()
        self._walk = _WALK.format(schema=schema).encode()
        self._walks_at = -inf
        self._after = b""

    def wake(self, key_locks: Iterable[bytes], now: float | None) -> Statement:
        """Return the statement that makes the first parked entry of each free key lock due.

        It returns the endpoints of these entries.
        """
        return self._wake, (dump_time(now), blobs(sorted(key_locks)))

    def must_walk(self, uptime: float) -> bool:
        """Return whether a step of ``walk`` is due; if so, no other is due before ``walked``."""
        if uptime < self._walks_at:
            return False
        self._walks_at = inf
        return True

    def walk(self, now: float | None) -> Statement:
        """Return the statement that finds the next key locks with parked entries.

        It returns for each key lock whether it is in use.
        """
        return self._walk, (dump_time(now), self._after, dump_int(_KEY_LOCKS_AT_ONCE))

    def walked(self, key_locks: Sequence[bytes], uptime: float, seconds: float) -> None:
        """Continue behind these key locks in the next step of ``walk``, which took ``seconds``."""
        is_last = len(key_locks) < _KEY_LOCKS_AT_ONCE
        self._after = b"" if is_last else key_locks[-1]
        self._walks_at = uptime + (PARKED_SECONDS if is_last else _PATIENCE * seconds)
