"""Claims, done records and dead letters in SQLite: one method per step of a transaction.

Leases are measured in seconds of uptime: setting the machine's clock neither ends a lease nor makes
it last. After a restart of the machine uptime begins anew; a lease that ends later than it lasts is
one from before.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from math import ceil
from typing import Any, NamedTuple, TypeAlias, cast

import apsw

from ...clock import Clock, system_clock, uptime
from ...errors import StoreError
from ..contract import check_retention
from ..values import (
    INTERRUPTED,
    Claimed,
    ClaimResult,
    Dead,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    FailedAttempt,
    InFlight,
    Ownership,
    Token,
)
from .records import add_failure, digest_of, dump_names, error_text, load_names, read_letter

__all__ = ["LIVE", "Claims", "Known", "Owned"]

_LOOK_UP = """
SELECT (SELECT expires FROM done WHERE key = ?1),
       (SELECT kept FROM dead WHERE key = ?1),
       (SELECT due FROM inbox WHERE key = ?1),
       a.token, a.until, a.lease, a.attempt, a.finished, a.history, a.owed
FROM (SELECT 1) LEFT JOIN attempts AS a ON a.key = ?1
"""
_GRANT = """
INSERT OR REPLACE INTO attempts
    (key, endpoint, token, until, lease, attempt, finished, history, owed, expires)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_OWNED = "SELECT attempt, finished, history, owed FROM attempts WHERE key = ? AND token = ?"
_SHORTEN = "UPDATE attempts SET until = ? WHERE key = ?"
_EXTEND = "UPDATE attempts SET until = ?, finished = ?, owed = ? WHERE key = ?"
_RENEW = "UPDATE attempts SET until = ?, lease = ? WHERE key = ?"
_RELEASE = """
UPDATE attempts SET token = NULL, until = 0, attempt = ?, finished = ?, history = ?, owed = ?
WHERE key = ?
"""
_RESTORE_ATTEMPT = """
INSERT INTO attempts (key, endpoint, until, lease, attempt, finished, history, owed, expires)
SELECT key, endpoint, 0, 0, attempts, finished, history, owed, ?2 FROM dead WHERE key = ?1
ON CONFLICT (key) DO NOTHING
"""
_FINISH = "INSERT OR REPLACE INTO done VALUES (?, ?)"
_FORGET_ATTEMPT = "DELETE FROM attempts WHERE key = ?"
_FORGET_DEAD = "DELETE FROM dead WHERE key = ?"
_SCHEDULE = "UPDATE inbox SET due = ?, delay = ? WHERE key = ?"
_WAITING = """
SELECT endpoint, event_id, event_type, received_at, body
FROM inbox JOIN inbox_bodies USING (id) WHERE key = ?
"""
_FORGET_WAITING = "DELETE FROM inbox WHERE key = ?"
_WRITE_LETTER = """
INSERT INTO dead (key, endpoint, event_id, event_type, received_at, body,
                  reason, error, attempts, finished, buried_at, history, owed, kept)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    reason = excluded.reason, error = excluded.error, attempts = excluded.attempts,
    finished = excluded.finished, buried_at = excluded.buried_at, history = excluded.history,
    owed = excluded.owed, kept = excluded.kept
"""
_BURY_KEPT = """
UPDATE dead SET reason = ?, error = ?, attempts = ?, finished = ?, buried_at = ?, history = ?,
                owed = ?, kept = 0
WHERE key = ? RETURNING 1
"""
_GIVE_UP_KEPT = """
UPDATE dead SET reason = 'exhausted', error = ?, attempts = ?, buried_at = ?, history = ?, kept = 0
WHERE key = ? AND kept
"""
_NOTED = """
SELECT finished, owed FROM attempts WHERE key = ?1 AND attempt > 0
UNION ALL SELECT finished, owed FROM dead WHERE key = ?1 AND attempts > 0
"""
_NOTE_ATTEMPT = "UPDATE attempts SET finished = ?, owed = ? WHERE key = ?"
_NOTE_LETTER = "UPDATE dead SET finished = ?, owed = ? WHERE key = ?"
_REPLAYED = "UPDATE dead SET kept = 0 WHERE key = ?"
_LETTER = """
SELECT endpoint, event_id, event_type, received_at, {body},
       reason, error, attempts, finished, buried_at, history, owed
FROM dead
"""
# A lease that ends later than it lasts was granted before uptime began anew.
LIVE = "until > ?1 AND until <= ?1 + lease"
# A delivery that was kept is no dead letter while an attempt at its event still runs.
_VISIBLE = f"""
NOT (kept AND EXISTS (SELECT 1 FROM attempts WHERE attempts.key = dead.key AND {LIVE}))
"""


class Known(NamedTuple):
    """What the file knows of an event; None where it knows nothing."""

    done_until: int | None
    kept: int | None
    waiting_until: float | None
    owner: Token | None
    until: float | None
    lease: float | None
    attempt: int | None
    finished: str | None
    history: str | None
    owed: str | None


class Owned(NamedTuple):
    """An event whose claim is the caller's.

    Attributes:
        digest: the key's digest.
        attempt: which attempt the claim is for.
        finished: the handlers known to have succeeded.
        history: its failed attempts, as the column's text.
        owed: the handlers known to have failed or not run.

    """

    digest: bytes
    attempt: int
    finished: frozenset[str]
    history: str
    owed: frozenset[str]

    def noting(self, finished: frozenset[str], owed: frozenset[str]) -> Owned:
        """Return it with more handlers that have finished, or are owed."""
        finished |= self.finished
        return self._replace(finished=finished, owed=(self.owed | owed) - finished)


_NONE: frozenset[str] = frozenset()

OwnedStep: TypeAlias = Callable[[apsw.Connection, Owned], None]


class Claims:
    """Reads and writes who handles what; every method runs within the caller's transaction.

    Args:
        retention: how long a done event is remembered.
        clock: Unix time in seconds. Given by the caller, it measures leases as well.

    """

    def __init__(self, retention: timedelta, clock: Clock) -> None:
        self._retention = check_retention(retention)
        self.clock = clock
        self.uptime = uptime if clock is system_clock else clock

    def look_up(self, connection: apsw.Connection, digest: bytes) -> Known:
        """Return what is known of an event, with a live lease no longer than it lasts."""
        known = Known(*cast("tuple[Any, ...]", connection.execute(_LOOK_UP, (digest,)).get))
        now = self.uptime()
        if known.until is not None and known.lease is not None and known.until > now + known.lease:
            known = known._replace(until=now + known.lease)
            connection.execute(_SHORTEN, (known.until, digest))
        return known

    def is_done(self, known: Known) -> bool:
        """Whether the event has been handled, and not too long ago to be remembered."""
        return known.done_until is not None and self.clock() < known.done_until

    def is_live(self, known: Known) -> bool:
        """Whether somebody holds a claim."""
        return known.until is not None and self.uptime() < known.until

    def unix_time(self, uptime: float) -> float:
        """Return the Unix time that a time of the lease clock stands for."""
        return self.clock() + (uptime - self.uptime())

    def expires(self) -> int:
        """Return the Unix time until which what is done now is remembered."""
        return ceil(self.clock() + self._retention)  # never forgotten early

    def claim(
        self, connection: apsw.Connection, key: DeliveryKey, token: Token, lease: float
    ) -> ClaimResult:
        """Claim an event; see ``Store.claim``."""
        digest = digest_of(key)
        known = self.look_up(connection, digest)
        return self._claim(connection, key, digest, known, token, lease)

    def replay(
        self, connection: apsw.Connection, key: DeliveryKey, token: Token, lease: float
    ) -> ClaimResult | None:
        """Claim a dead letter; see ``Store.replay``."""
        if self.letter(connection, key) is None:
            return None
        digest = digest_of(key)
        connection.execute(_RESTORE_ATTEMPT, (digest, self.expires()))
        connection.execute(_REPLAYED, (digest,))
        known = self.look_up(connection, digest)._replace(kept=None)
        return self._claim(connection, key, digest, known, token, lease)

    def _claim(
        self,
        connection: apsw.Connection,
        key: DeliveryKey,
        digest: bytes,
        known: Known,
        token: Token,
        lease: float,
    ) -> ClaimResult:
        if self.is_done(known):
            return Done()
        if self.is_live(known):
            if known.owner == token:
                names, owed = load_names(known.finished), load_names(known.owed)
                return Claimed(key, token, known.attempt or 1, names, known.lease or lease, owed)
            return InFlight(self.unix_time(known.until or 0.0))
        if known.kept is not None:
            return Dead()
        if known.waiting_until is not None:
            return InFlight(self.unix_time(max(known.waiting_until, self.uptime())))
        return self.grant(connection, key, digest, known, token, lease)

    def grant(
        self,
        connection: apsw.Connection,
        key: DeliveryKey,
        digest: bytes,
        known: Known,
        token: Token,
        lease: float,
    ) -> Claimed:
        """Write a claim on an event that is free."""
        history = known.history or ""
        if known.owner is not None and known.attempt is not None:
            ended_at = self.unix_time(known.until or 0.0)
            history = add_failure(history, FailedAttempt(known.attempt, ended_at, INTERRUPTED))
        attempt = (known.attempt or 0) + 1
        connection.execute(
            _GRANT,
            (
                digest,
                key.partition(":")[0],
                token,
                self.uptime() + lease,
                lease,
                attempt,
                known.finished or "",
                history,
                known.owed or "",
                self.expires(),
            ),
        )
        names, owed = load_names(known.finished), load_names(known.owed)
        return Claimed(key, token, attempt, names, lease, owed)

    def renew(
        self,
        connection: apsw.Connection,
        key: DeliveryKey,
        digest: bytes,
        known: Known,
        token: Token,
        lease: float,
    ) -> Claimed:
        """Return the caller's own claim again, with its lease begun anew."""
        connection.execute(_RENEW, (self.uptime() + lease, lease, digest))
        names, owed = load_names(known.finished), load_names(known.owed)
        return Claimed(key, token, known.attempt or 1, names, lease, owed)

    def as_owner(
        self,
        connection: apsw.Connection,
        claim: Claimed,
        step: OwnedStep,
        finished: frozenset[str] = _NONE,
    ) -> Ownership:
        """Run ``step`` if the claim is still the caller's, else only note what has finished."""
        digest = digest_of(claim.key)
        row: Any = connection.execute(_OWNED, (digest, claim.token)).fetchone()
        if row is None:
            if finished:
                self._note_without_claim(connection, digest, finished)
            return Ownership.LOST
        attempt, names, history, owed = row
        step(connection, Owned(digest, attempt, load_names(names), history, load_names(owed)))
        return Ownership.HELD

    def _note_without_claim(
        self, connection: apsw.Connection, digest: bytes, finished: frozenset[str]
    ) -> None:
        """Remember what has succeeded of an event that is not done."""
        owed = _NONE
        rows = cast("list[tuple[str, str]]", connection.execute(_NOTED, (digest,)).fetchall())
        if not rows:  # without an attempt there is nothing that can have succeeded
            return
        for names, owed_names in rows:
            finished |= load_names(names)
            owed |= load_names(owed_names)
        for note in (_NOTE_ATTEMPT, _NOTE_LETTER):
            connection.execute(note, (dump_names(finished), dump_names(owed - finished), digest))

    def extend(
        self,
        connection: apsw.Connection,
        owned: Owned,
        lease: float,
        finished: frozenset[str],
        owed: frozenset[str],
    ) -> None:
        """Start the lease anew; see ``Store.extend``."""
        until, noted = self.uptime() + lease, owned.noting(finished, owed)
        names = dump_names(noted.finished), dump_names(noted.owed)
        connection.execute(_EXTEND, (until, *names, owned.digest))
        connection.execute(_SCHEDULE, (until, lease, owned.digest))
        if noted != owned:
            connection.execute(_NOTE_LETTER, (*names, owned.digest))

    def release(
        self,
        connection: apsw.Connection,
        owned: Owned,
        finished: frozenset[str],
        error: str | None,
        after: float,
        owed: frozenset[str],
        *,
        began: bool,
    ) -> None:
        """Give the event back; see ``Store.release`` and ``InboxStore.retry``."""
        text, noted, after = error_text(error or ""), owned.noting(finished, owed), max(0.0, after)
        names = dump_names(noted.finished), dump_names(noted.owed)
        history = self._with_failure(owned, text)
        attempt = owned.attempt - (not began)
        connection.execute(_RELEASE, (attempt, names[0], history, names[1], owned.digest))
        connection.execute(_SCHEDULE, (self.uptime() + after, after, owned.digest))
        if noted != owned:
            connection.execute(_NOTE_LETTER, (*names, owned.digest))
        connection.execute(_GIVE_UP_KEPT, (text, attempt, self.clock(), history, owned.digest))

    def finish(self, connection: apsw.Connection, key: DeliveryKey) -> None:
        """Record that the event is handled; see ``Store.complete``."""
        digest = digest_of(key)
        connection.execute(_FINISH, (digest, self.expires()))
        connection.execute(_FORGET_ATTEMPT, (digest,))
        connection.execute(_FORGET_WAITING, (digest,))
        connection.execute(_FORGET_DEAD, (digest,))

    def keep(self, connection: apsw.Connection, owned: Owned, delivery: Delivery) -> None:
        """Keep the delivery beside its claim; see ``Store.keep``."""
        if self._waiting(connection, owned.digest) is None:
            self._keep(connection, owned, delivery)

    def keep_in_flight(self, connection: apsw.Connection, delivery: Delivery) -> None:
        """Keep a delivery beside somebody else's claim; see ``Store.keep_in_flight``."""
        digest = digest_of(delivery.key)
        known = self.look_up(connection, digest)
        if self.is_done(known) or known.kept is not None or known.waiting_until is not None:
            return
        names, owed = load_names(known.finished), load_names(known.owed)
        owned = Owned(digest, known.attempt or 0, names, known.history or "", owed)
        self._keep(connection, owned, delivery)

    def bury(
        self,
        connection: apsw.Connection,
        owned: Owned,
        reason: DeadReason,
        error: str,
        finished: frozenset[str],
        owed: frozenset[str],
        delivery: Delivery | None,
    ) -> None:
        """Make the event a dead letter; see ``Store.bury``."""
        error = error_text(error)
        history = self._with_failure(owned, error)
        owned = owned.noting(finished, owed)._replace(history=history)
        delivery = delivery or self._waiting(connection, owned.digest)
        if delivery is not None:
            self._write_letter(connection, owned, delivery, reason, error)
        elif not connection.execute(
            _BURY_KEPT,
            (
                reason,
                error,
                owned.attempt,
                dump_names(owned.finished),
                self.clock(),
                history,
                dump_names(owned.owed),
                owned.digest,
            ),
        ).get:
            raise StoreError("there is no delivery to bury: none was given or kept")
        connection.execute(_FORGET_ATTEMPT, (owned.digest,))
        connection.execute(_FORGET_WAITING, (owned.digest,))

    def letters(
        self,
        connection: apsw.Connection,
        endpoint: str | None,
        event_type: str | None,
        limit: int,
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first, with empty bodies."""
        query = _LETTER.format(body="x''") + (
            f"WHERE {_VISIBLE}"
            " AND (?2 IS NULL OR endpoint = ?2) AND (?3 IS NULL OR event_type = ?3)"
            " ORDER BY id LIMIT ?4"
        )
        bindings = (self.uptime(), endpoint, event_type, limit)
        return [read_letter(row) for row in connection.execute(query, bindings)]

    def letter(self, connection: apsw.Connection, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter with its body."""
        query = _LETTER.format(body="body") + f"WHERE {_VISIBLE} AND key = ?2"
        row = connection.execute(query, (self.uptime(), digest_of(key))).fetchone()
        return None if row is None else read_letter(row)

    def discard(self, connection: apsw.Connection, key: DeliveryKey) -> bool:
        """Forget a dead letter and remember the event as done; see ``Store.discard``."""
        if self.letter(connection, key) is None:
            return False
        self.finish(connection, key)
        return True

    def count(self, connection: apsw.Connection, endpoint: str | None) -> tuple[int, int]:
        """Return how many claims live and how many letters are dead, of one endpoint or all."""
        now = self.uptime()
        of_it = " AND (?2 IS NULL OR endpoint = ?2)"
        live = f"SELECT count(*) FROM attempts WHERE {LIVE}{of_it}"
        dead = f"SELECT count(*) FROM dead WHERE {_VISIBLE}{of_it}"
        return (
            cast("int", connection.execute(live, (now, endpoint)).get),
            cast("int", connection.execute(dead, (now, endpoint)).get),
        )

    def _with_failure(self, owned: Owned, error: str) -> str:
        if not error:
            return owned.history
        failure = FailedAttempt(owned.attempt, self.clock(), error)
        return add_failure(owned.history, failure)

    def _waiting(self, connection: apsw.Connection, digest: bytes) -> Delivery | None:
        row: Any = connection.execute(_WAITING, (digest,)).fetchone()
        return None if row is None else Delivery(*row)

    def _keep(self, connection: apsw.Connection, owned: Owned, delivery: Delivery) -> None:
        reason = DeadReason.INTERRUPTED
        self._write_letter(connection, owned, delivery, reason, "", kept=True)

    def _write_letter(
        self,
        connection: apsw.Connection,
        owned: Owned,
        delivery: Delivery,
        reason: DeadReason,
        error: str,
        *,
        kept: bool = False,
    ) -> None:
        connection.execute(
            _WRITE_LETTER,
            (
                owned.digest,
                delivery.endpoint,
                delivery.event_id,
                delivery.event_type,
                delivery.received_at,
                delivery.body,
                reason,
                error,
                owned.attempt,
                dump_names(owned.finished),
                self.clock(),
                owned.history,
                dump_names(owned.owed),
                kept,
            ),
        )
