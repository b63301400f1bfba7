"""The SQLite store: durable on one machine, shared by the processes of it.

WAL with synchronous=FULL: what has been answered survives a power cut. The file must lie on a local
disk; write-ahead logs do not work over network file systems.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw

from ..errors import StoreError
from ..types import Clock, DeliveryKey, Token, system_clock
from .base import (
    DEFAULT_RETENTION,
    Claimed,
    ClaimResult,
    Dead,
    DeadLetter,
    DeadReason,
    Delivery,
    Done,
    InFlight,
    Ownership,
    StoreStats,
    check_retention,
)
from .sqlite_writer import Writer

__all__ = ["SQLiteStore"]

T = TypeVar("T")

# One step of pruning reads this many keys: a few milliseconds in which no claim can run.
_PRUNE_KEYS = 2_000
_PRUNE_PAUSE_SECONDS = 0.05
_PRUNE_INTERVAL_SECONDS = 3_600.0
_MAX_ERROR_CHARACTERS = 4_000

_LOOK_UP = """
SELECT (SELECT expires FROM done WHERE key = ?1),
       EXISTS (SELECT 1 FROM dead WHERE key = ?1),
       a.token, a.until, a.lease, a.attempt, a.finished
FROM (SELECT 1) LEFT JOIN attempts AS a ON a.key = ?1
"""
_GRANT = "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?, ?, NULL, ?)"
_OWNED = "SELECT attempt, finished FROM attempts WHERE key = ? AND token = ?"
_EXTEND = "UPDATE attempts SET until = ?, finished = ? WHERE key = ?"
_RELEASE = "UPDATE attempts SET token = NULL, until = 0, finished = ?, error = ? WHERE key = ?"
_RESTORE_ATTEMPT = """
INSERT INTO attempts (key, until, lease, attempt, finished, expires)
VALUES (?, 0, 0, ?, ?, ?) ON CONFLICT (key) DO NOTHING
"""
_FINISH = "INSERT OR REPLACE INTO done VALUES (?, ?)"
_FORGET_ATTEMPT = "DELETE FROM attempts WHERE key = ?"
_FORGET_DEAD = "DELETE FROM dead WHERE key = ? RETURNING 1"
_WRITE_LETTER = """
INSERT INTO dead (key, endpoint, event_id, event_type, received_at, body,
                  reason, error, attempts, finished, buried_at, kept)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    reason = excluded.reason, error = excluded.error, attempts = excluded.attempts,
    finished = excluded.finished, buried_at = excluded.buried_at, kept = excluded.kept
"""
_BURY_KEPT = """
UPDATE dead SET reason = ?, error = ?, attempts = ?, finished = ?, buried_at = ?, kept = 0
WHERE key = ? RETURNING 1
"""
_GIVE_UP_KEPT = """
UPDATE dead SET reason = 'exhausted', error = ?, finished = ?, buried_at = ?, kept = 0
WHERE key = ? AND kept
"""
_NOTE_KEPT = "UPDATE dead SET finished = ? WHERE key = ? AND kept"
_REPLAYED = "UPDATE dead SET kept = 0 WHERE key = ?"
_LETTER = """
SELECT endpoint, event_id, event_type, received_at, {body},
       reason, error, attempts, finished, buried_at
FROM dead
"""
# A delivery that was kept is no dead letter while an attempt at its event still runs.
_VISIBLE = """
NOT (kept AND EXISTS (
    SELECT 1 FROM attempts WHERE attempts.key = dead.key AND attempts.until > ?1))
"""


class SQLiteStore:
    """Remembers events in one SQLite file.

    Args:
        path: the file; it is created where it does not exist, its folder is not.
        retention: how long a done event is remembered; at least 26 hours.
        clock: Unix time in seconds.

    """

    keeps_bodies = True

    def __init__(
        self,
        path: str | Path,
        *,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self._retention = check_retention(retention)
        self._clock = clock
        self._writer = Writer(Path(path), self._maintain)
        self._prune_walk: tuple[str, bytes] | None = None

    async def open(self) -> None:
        """Open the file and bring its schema up to date, or raise StoreError."""
        await self._writer.run(_nothing)

    async def aclose(self) -> None:
        """Finish what waits and close the file."""
        await self._writer.aclose()

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event; see ``Store.claim``."""
        step = partial(self._claim, key, token, lease, replay=False)
        return await self._writer.run(step, may_be_dropped=True)

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Claim a dead letter; see ``Store.replay``."""

        def step(connection: apsw.Connection) -> ClaimResult | None:
            letter = self._find_letter(connection, key)
            if letter is None:
                return None
            digest = _digest(key)
            expires = int(self._clock() + self._retention)
            finished = _dump(letter.finished)
            connection.execute(_RESTORE_ATTEMPT, (digest, letter.attempts, finished, expires))
            connection.execute(_REPLAYED, (digest,))
            return self._claim(key, token, lease, connection, replay=True)

        return await self._writer.run(step, may_be_dropped=True)

    async def extend(self, claim: Claimed, finished: frozenset[str] = frozenset()) -> Ownership:
        """Start the lease anew; see ``Store.extend``."""

        def step(connection: apsw.Connection, digest: bytes, known: frozenset[str]) -> None:
            until = self._clock() + claim.lease
            connection.execute(_EXTEND, (until, _dump(known | finished), digest))
            if finished - known:
                connection.execute(_NOTE_KEPT, (_dump(known | finished), digest))

        return await self._as_owner(claim, step)

    async def release(
        self, claim: Claimed, finished: frozenset[str], error: str | None = None
    ) -> Ownership:
        """Give the event back; see ``Store.release``."""

        def step(connection: apsw.Connection, digest: bytes, known: frozenset[str]) -> None:
            text, names = _error_text(error or ""), _dump(known | finished)
            connection.execute(_RELEASE, (names, text, digest))
            connection.execute(_GIVE_UP_KEPT, (text, names, self._clock(), digest))

        return await self._as_owner(claim, step)

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled; see ``Store.complete``."""
        await self._writer.run(lambda connection: self._finish(connection, claim.key))

    async def keep(self, claim: Claimed, delivery: Delivery) -> Ownership:
        """Keep the delivery beside its claim; see ``Store.keep``."""

        def step(connection: apsw.Connection, digest: bytes, known: frozenset[str]) -> None:
            self._keep(connection, digest, delivery, claim.attempt, known)

        return await self._as_owner(claim, step)

    async def keep_in_flight(self, delivery: Delivery) -> None:
        """Keep a delivery beside somebody else's claim; see ``Store.keep_in_flight``."""

        def step(connection: apsw.Connection) -> None:
            digest = _digest(delivery.key)
            row = cast("tuple[Any, ...]", connection.execute(_LOOK_UP, (digest,)).get)
            done_until, is_dead, _, _, _, count, finished = row
            if not is_dead and (done_until is None or done_until <= self._clock()):
                self._keep(connection, digest, delivery, count or 0, _load(finished))

        await self._writer.run(step)

    async def bury(
        self,
        claim: Claimed,
        reason: DeadReason,
        *,
        error: str = "",
        finished: frozenset[str] = frozenset(),
        delivery: Delivery | None = None,
    ) -> Ownership:
        """Make the event a dead letter; see ``Store.bury``."""
        error = _error_text(error)

        def step(connection: apsw.Connection, digest: bytes, known: frozenset[str]) -> None:
            known |= finished
            if delivery is not None:
                self._write_letter(
                    connection, digest, delivery, reason, error, claim.attempt, known
                )
            elif not connection.execute(
                _BURY_KEPT, (reason, error, claim.attempt, _dump(known), self._clock(), digest)
            ).get:
                raise StoreError("there is no delivery to bury: none was given or kept")
            connection.execute(_FORGET_ATTEMPT, (digest,))

        return await self._as_owner(claim, step)

    async def dead_letters(
        self, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first, with empty bodies."""
        query = _LETTER.format(body="x''") + (
            f"WHERE {_VISIBLE}"
            " AND (?2 IS NULL OR endpoint = ?2) AND (?3 IS NULL OR event_type = ?3)"
            " ORDER BY id LIMIT ?4"
        )
        bindings = (self._clock(), endpoint, event_type, limit)
        return await self._writer.run(
            lambda connection: [_letter(row) for row in connection.execute(query, bindings)]
        )

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter with its body."""
        return await self._writer.run(lambda connection: self._find_letter(connection, key))

    async def discard(self, key: DeliveryKey) -> bool:
        """Forget a dead letter and remember the event as done; see ``Store.discard``."""

        def step(connection: apsw.Connection) -> bool:
            if self._find_letter(connection, key) is None:
                return False
            self._finish(connection, key)
            return True

        return await self._writer.run(step)

    async def prune(self) -> int:
        """Remove records whose retention is over, in small steps, and return how many."""
        removed = 0
        for table in ("done", "attempts"):
            after: bytes | None = b""
            while after is not None:
                count, after = await self._writer.run(partial(self._prune_step, table, after))
                removed += count
        return removed

    async def stats(self) -> StoreStats:
        """Return how much is in flight and dead."""

        def step(connection: apsw.Connection) -> StoreStats:
            now = self._clock()
            in_flight = connection.execute(
                "SELECT count(*) FROM attempts WHERE until > ?", (now,)
            ).get
            dead = connection.execute(f"SELECT count(*) FROM dead WHERE {_VISIBLE}", (now,)).get  # noqa: S608
            return StoreStats(in_flight=cast("int", in_flight), dead=cast("int", dead))

        return await self._writer.run(step)

    def _claim(
        self,
        key: DeliveryKey,
        token: Token,
        lease: float,
        connection: apsw.Connection,
        *,
        replay: bool,
    ) -> ClaimResult:
        now = self._clock()
        digest = _digest(key)
        row = cast("tuple[Any, ...]", connection.execute(_LOOK_UP, (digest,)).get)
        done_until, is_dead, owner, until, its_lease, count, finished_text = row
        if done_until is not None and now < done_until:
            return Done()
        finished = _load(finished_text)
        if until is not None and now < until:
            if until > now + its_lease:
                # A lease cannot end later than it lasts, unless the clock was set back.
                until = now + its_lease
                connection.execute(_EXTEND, (until, finished_text, digest))
            if owner == token:
                return Claimed(key, token, count, finished, its_lease)
            return InFlight(until)
        if is_dead and not replay:
            return Dead()
        count = 1 if count is None else count + 1
        expires = int(now + self._retention)
        connection.execute(
            _GRANT, (digest, token, now + lease, lease, count, finished_text or "", expires)
        )
        return Claimed(key, token, count, finished, lease)

    async def _as_owner(
        self, claim: Claimed, step: Callable[[apsw.Connection, bytes, frozenset[str]], None]
    ) -> Ownership:
        """Run ``step`` with the handlers known as finished, if the claim is still the caller's."""

        def owned_step(connection: apsw.Connection) -> Ownership:
            digest = _digest(claim.key)
            row = connection.execute(_OWNED, (digest, claim.token)).get
            if row is None:
                return Ownership.LOST
            step(connection, digest, _load(cast("tuple[int, str]", row)[1]))
            return Ownership.HELD

        return await self._writer.run(owned_step)

    def _finish(self, connection: apsw.Connection, key: DeliveryKey) -> None:
        digest = _digest(key)
        connection.execute(_FINISH, (digest, int(self._clock() + self._retention)))
        connection.execute(_FORGET_ATTEMPT, (digest,))
        connection.execute(_FORGET_DEAD, (digest,))

    def _keep(
        self,
        connection: apsw.Connection,
        digest: bytes,
        delivery: Delivery,
        attempts: int,
        finished: frozenset[str],
    ) -> None:
        reason = DeadReason.INTERRUPTED
        self._write_letter(connection, digest, delivery, reason, "", attempts, finished, kept=True)

    def _write_letter(
        self,
        connection: apsw.Connection,
        digest: bytes,
        delivery: Delivery,
        reason: DeadReason,
        error: str,
        attempts: int,
        finished: frozenset[str],
        *,
        kept: bool = False,
    ) -> None:
        connection.execute(
            _WRITE_LETTER,
            (
                digest,
                delivery.endpoint,
                delivery.event_id,
                delivery.event_type,
                delivery.received_at,
                delivery.body,
                reason,
                error,
                attempts,
                _dump(finished),
                self._clock(),
                kept,
            ),
        )

    def _find_letter(self, connection: apsw.Connection, key: DeliveryKey) -> DeadLetter | None:
        query = _LETTER.format(body="body") + f"WHERE {_VISIBLE} AND key = ?2"
        row = connection.execute(query, (self._clock(), _digest(key))).fetchone()
        return None if row is None else _letter(row)

    def _prune_step(
        self, table: str, after: bytes, connection: apsw.Connection
    ) -> tuple[int, bytes | None]:
        """Prune the next keys of a table; return how many went, and where to go on, if anywhere."""
        last = connection.execute(
            f"SELECT key FROM {table} WHERE key > ? ORDER BY key LIMIT 1 OFFSET ?",  # noqa: S608
            (after, _PRUNE_KEYS - 1),
        ).get
        # 17 bytes of 0xff sort behind every 16-byte key.
        upto = b"\xff" * 17 if last is None else last
        now = self._clock()
        live = " AND until <= ?" if table == "attempts" else ""
        connection.execute(
            f"DELETE FROM {table} WHERE key > ? AND key <= ? AND expires <= ?{live}",  # noqa: S608
            (after, upto, now, *([now] if live else [])),
        )
        return connection.changes(), cast("bytes | None", last)

    def _maintain(self, connection: apsw.Connection) -> float:
        """Prune one step further; a whole walk every hour keeps the file from growing."""
        table, after = self._prune_walk or ("done", b"")
        _, next_key = self._prune_step(table, after, connection)
        if next_key is not None:
            self._prune_walk = (table, next_key)
        elif table == "done":
            self._prune_walk = ("attempts", b"")
        else:
            self._prune_walk = None
            return _PRUNE_INTERVAL_SECONDS
        return _PRUNE_PAUSE_SECONDS


def _nothing(_: apsw.Connection) -> None:
    """Make the writer open the file."""


def _digest(key: DeliveryKey) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()


def _error_text(error: str) -> str:
    """Return the text, bounded, with an escape for what no encoding can hold."""
    return error[:_MAX_ERROR_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def _dump(finished: frozenset[str]) -> str:
    return json.dumps(sorted(finished)) if finished else ""


def _load(text: str | None) -> frozenset[str]:
    return frozenset(json.loads(text)) if text else frozenset()


def _letter(row: Any) -> DeadLetter:
    endpoint, event_id, event_type, received_at, body, reason, error, attempts, finished, at = row
    return DeadLetter(
        delivery=Delivery(endpoint, event_id, event_type, received_at, body),
        reason=DeadReason(reason),
        error=error,
        attempts=attempts,
        finished=_load(finished),
        buried_at=at,
    )
