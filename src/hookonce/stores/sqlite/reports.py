"""Listings, counts and reports of workers, for operators, health checks and other processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, Unpack

import apsw

from .. import life
from ..activity import MOST_LINES, MOST_REPORTS, WATCHED_SECONDS, Activity, ReportedWorker
from ..applications import MOST_REMEMBERED, REMEMBERED_SECONDS, Application
from ..formats import DamagedError, damaged
from ..protocols import WORKER_SECONDS
from ..values import (
    DeadLetter,
    Delivery,
    DeliveryKey,
    Entry,
    Known,
    StoreStats,
    Wanted,
    WantedDeadLetters,
    delivery_key,
    number_behind,
)
from .claims import LIVE
from .records import COLUMNS, digest_of, load_history, load_names, load_record
from .shared import SharedFile
from .upkeep import START, Position

T = TypeVar("T")

# One transaction reads no more records than this, because claims wait for its end.
_MOST_LOOKED_UP = 500

# The SQL condition that a column of names contains the name of a handler.
_IS_OUTSTANDING = (
    ":handler IN (SELECT value FROM json_each(iif(json_valid({outstanding}), {outstanding}, '[]')))"
)
# A kept delivery is not a dead letter while an attempt at its event is running.
_VISIBLE = f"""
NOT (kept AND EXISTS (SELECT 1 FROM attempts WHERE attempts.key = dead.key AND {LIVE}))
"""
_DEAD_LETTER = f"""
SELECT l.id, l.endpoint, event_id, event_type, received_at, {{body}}, {{record}}, {COLUMNS}
FROM dead AS l LEFT JOIN attempts AS a USING (key)
"""
_OUTSTANDING = (
    "coalesce((SELECT outstanding FROM attempts WHERE attempts.key = dead.key), outstanding)"
)
_DEAD_LETTERS = f"""
{_DEAD_LETTER.format(body="x''", record="x''")}
WHERE l.id IN (
    SELECT id FROM dead
    WHERE {_VISIBLE} AND id > :after
      AND (:endpoint IS NULL OR endpoint = :endpoint)
      AND (:event_type IS NULL OR event_type = :event_type)
      AND (:event_id IS NULL OR event_id = :event_id)
      AND (:handler IS NULL OR {_IS_OUTSTANDING.format(outstanding=_OUTSTANDING)})
      AND (:since_unix IS NULL OR buried_at >= :since_unix)
      AND (:reason IS NULL OR reason = :reason)
    ORDER BY id LIMIT :limit
) ORDER BY l.id
"""
_ONE_DEAD_LETTER = (
    _DEAD_LETTER.format(body="l.body", record="coalesce(l.record, x'')") + "WHERE l.key = :key"
)
_COUNT_DAMAGED = "SELECT count(*) FROM dead WHERE reason = 'damaged'"
_ENTRY = f"""
SELECT i.id, i.endpoint, event_id, event_type, received_at, {{body}},
       due, {LIVE}, attempt, finished, history, outstanding
FROM entries AS i LEFT JOIN attempts USING (key)
"""
_ENTRIES = f"""
{_ENTRY.format(body="x''")}
WHERE i.id > :after
  AND (:endpoint IS NULL OR i.endpoint = :endpoint)
  AND (:event_type IS NULL OR event_type = :event_type)
  AND (:event_id IS NULL OR event_id = :event_id)
  AND (:handler IS NULL OR {_IS_OUTSTANDING.format(outstanding="outstanding")})
  AND (:since_unix IS NULL OR received_at >= :since_unix)
ORDER BY i.id LIMIT :limit
"""
_BODY = "(SELECT body FROM inbox_bodies WHERE id = i.id)"
_ONE_ENTRY = _ENTRY.format(body=_BODY) + "WHERE key = :key"
_OF_IT = "(:endpoint IS NULL OR endpoint = :endpoint)"
# Ids grow in the order of arrival, so the first entry has waited longest. _STATS runs this query
# only if the endpoint has entries; otherwise the query would read the entries of all other
# endpoints.
_FIRST_RECEIVED = f"SELECT received_at FROM entries WHERE {_OF_IT} ORDER BY id LIMIT 1"
_STATS = f"""
SELECT (SELECT count(*) FROM attempts WHERE {LIVE} AND {_OF_IT}),
       (SELECT count(*) FROM dead
        WHERE NOT (kept = 2 AND buried_at > :unix) AND {_VISIBLE} AND {_OF_IT}),
       coalesce(sum(depth), 0),
       coalesce(sum(bytes), 0),
       iif(sum(depth) > 0, ({_FIRST_RECEIVED}), NULL),
       (SELECT count(*) FROM workers WHERE seen > :now - :seconds AND seen <= :now AND {_OF_IT}),
       (SELECT count(*) FROM dead WHERE kept = 2 AND buried_at > :unix AND {_VISIBLE} AND {_OF_IT})
FROM inbox_sizes WHERE {_OF_IT}
"""
_FORGET_WORKER = "DELETE FROM workers WHERE worker = :worker"
_NOTE_APPLICATION = "INSERT OR REPLACE INTO applications VALUES (?, ?, ?)"
_FORGET_APPLICATIONS = """
DELETE FROM applications WHERE endpoint = ?1 AND (seen <= ?2 OR application NOT IN (
    SELECT application FROM applications WHERE endpoint = ?1 ORDER BY seen DESC LIMIT ?3
))
"""
_APPLICATIONS = """
SELECT application, seen FROM applications WHERE endpoint = ? AND seen > ? ORDER BY seen
"""
_IS_WATCHED = "SELECT EXISTS (SELECT 1 FROM watched WHERE endpoint = ? AND until > ?)"
_WATCH = "INSERT OR REPLACE INTO watched VALUES (?, ?)"
_ADD_LINE = "INSERT INTO activity (endpoint, line) VALUES (?, ?)"
_FORGET_LINES = """
DELETE FROM activity WHERE endpoint = ?1 AND place <= (
    SELECT place FROM activity WHERE endpoint = ?1 ORDER BY place DESC LIMIT 1 OFFSET ?2
)
"""
_LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'activity'"
_LINES = "SELECT line FROM activity WHERE endpoint = ? AND place > ? AND place <= ? ORDER BY place"

_REPORT_WORKER = "INSERT OR REPLACE INTO worker_reports VALUES (?, ?, ?, ?)"
_FORGET_REPORT = "DELETE FROM worker_reports WHERE endpoint = ? AND worker = ?"
# Delete a report also if `seen` is in the future: the report was written before uptime was reset.
_FORGET_REPORTS = """
DELETE FROM worker_reports WHERE seen <= ?1 - ?2 OR seen > ?1 OR (endpoint, worker) NOT IN (
    SELECT endpoint, worker FROM worker_reports ORDER BY seen DESC LIMIT ?3
)
"""
_WORKERS = f"""
SELECT endpoint, worker, :now - seen, report FROM worker_reports
WHERE seen > :now - :seconds AND seen <= :now AND {_OF_IT}
"""


class SQLiteReports(ABC):
    """The part of a SQLite store that implements ``Reports`` and the listings."""

    _file: SharedFile

    @abstractmethod
    def _run(self, step: Callable[[apsw.Connection], T]) -> Awaitable[T]:
        """Run ``step`` in a transaction."""

    def _rows(self, statement: str, load: Callable[[Any], T], **named: Any) -> Awaitable[list[T]]:
        """Return each row of a statement, converted by ``load``; ``:now`` is the uptime."""

        def read(connection: apsw.Connection) -> list[T]:
            named["now"] = self._file.claims.uptime()
            try:
                return [load(row) for row in connection.execute(statement, named).fetchall()]
            except DamagedError:
                self._set_aside_all(connection, statement, load, named)
            return [load(row) for row in connection.execute(statement, named).fetchall()]

        return self._run(read)

    async def dead_letters(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedDeadLetters]
    ) -> list[DeadLetter]:
        found = await self._rows(
            _DEAD_LETTERS, self._load_dead_letter, **_listing(after, limit, wanted)
        )
        return [dead_letter for dead_letter in found if dead_letter is not None]

    async def _count_damaged(self) -> int:
        """Return how many records were set aside and wait for a decision."""
        [(count,)] = await self._rows(_COUNT_DAMAGED, tuple)
        return int(count)

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        return _first(
            await self._rows(_ONE_DEAD_LETTER, self._load_dead_letter, key=digest_of(key))
        )

    def _load_dead_letter(self, row: tuple[Any, ...]) -> DeadLetter | None:
        number, *delivery, raw = row[:7]
        record, moment = load_record(row[7:]), self._file.claims.moment()
        letter = life.dead_letter(record, moment, Delivery(*delivery), place=str(number))
        return letter and replace(letter, record=raw)

    def _set_aside_all(
        self,
        connection: apsw.Connection,
        statement: str,
        load: Callable[[Any], object],
        named: dict[str, Any],
    ) -> None:
        """Set aside every event of a listing that cannot be read."""
        rows: Any = connection.execute(statement, named).fetchall()
        for row in rows:
            try:
                load(row)
            except DamagedError:
                key = delivery_key(row[1], row[2])
                self._file.claims.set_aside(connection, key, digest_of(key))

    async def entries(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[Wanted]
    ) -> list[Entry]:
        return await self._rows(_ENTRIES, self._load_entry, **_listing(after, limit, wanted))

    async def entry(self, key: DeliveryKey) -> Entry | None:
        return _first(await self._rows(_ONE_ENTRY, self._load_entry, key=digest_of(key)))

    def _load_entry(self, row: tuple[Any, ...]) -> Entry:
        due, in_flight, attempts, finished, history, outstanding = row[6:]
        try:
            names, failures = load_names(finished), load_history(history)
            others = load_names(outstanding)
        except (ValueError, TypeError) as error:
            raise damaged() from error
        return Entry(
            delivery=Delivery(*row[1:6]),
            due_unix=self._file.claims.moment().unix_time(due),
            in_flight=bool(in_flight),
            attempts=attempts or 0,
            finished=names,
            history=failures,
            outstanding=others,
            place=str(row[0]),
        )

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        unix = self._file.claims.clock()
        [row] = await self._rows(
            _STATS, tuple, seconds=WORKER_SECONDS, endpoint=endpoint, unix=unix
        )
        in_flight, dead, depth, size, received, workers, kept = row
        age = None if received is None else max(0.0, unix - received)
        return StoreStats(in_flight, dead, depth, size, age, workers, kept)

    async def retire(self, worker: str) -> None:
        await self._rows(_FORGET_WORKER, tuple, worker=worker)

    async def known(self, endpoint: str, event_ids: Sequence[str]) -> dict[str, Known]:
        claims = self._file.claims

        def look(batch: Sequence[str], connection: apsw.Connection) -> dict[str, Known]:
            moment, found = claims.moment(), {}
            for event_id in batch:
                key = delivery_key(endpoint, event_id)
                record = claims.read(connection, key, digest_of(key))
                if (known := life.known_as(record, moment)) is not None:
                    found[event_id] = known
            return found

        found: dict[str, Known] = {}
        for start in range(0, len(event_ids), _MOST_LOOKED_UP):
            found |= await self._run(partial(look, event_ids[start : start + _MOST_LOOKED_UP]))
        return found

    async def prune(self) -> int:
        """Remove expired records in small steps, and return how many."""
        removed = 0
        position: Position | None = START
        while position is not None:
            count, position = await self._run(partial(self._file.upkeep.prune, position))
            removed += count
        return removed

    async def register(
        self, endpoint: str, application: Application | None
    ) -> tuple[Application, ...]:
        def note(connection: apsw.Connection) -> tuple[Application, ...]:
            now = self._file.claims.clock()
            since = now - REMEMBERED_SECONDS
            if application is not None:
                connection.execute(_NOTE_APPLICATION, (endpoint, application.dump(), now))
                connection.execute(_FORGET_APPLICATIONS, (endpoint, since, MOST_REMEMBERED))
            rows: Any = connection.execute(_APPLICATIONS, (endpoint, since)).fetchall()
            return tuple(Application.load(text, seen) for text, seen in rows)

        return await self._run(note)

    async def publish(self, endpoint: str, lines: Sequence[bytes]) -> bool:
        def add(connection: apsw.Connection) -> bool:
            if not connection.execute(_IS_WATCHED, (endpoint, self._file.claims.clock())).get:
                return False
            if lines:
                connection.executemany(_ADD_LINE, [(endpoint, line) for line in lines])
                connection.execute(_FORGET_LINES, (endpoint, MOST_LINES))
            return True

        return await self._run(add)

    async def follow(self, endpoint: str, place: int | None) -> Activity:
        def look(connection: apsw.Connection) -> Activity:
            now = self._file.claims.clock()
            # Do not write at every call: each write costs an fsync.
            if not connection.execute(_IS_WATCHED, (endpoint, now + WATCHED_SECONDS / 2)).get:
                connection.execute(_WATCH, (endpoint, now + WATCHED_SECONDS))
            last: Any = connection.execute(_LAST).get
            if place is None:
                return Activity(last, ())
            since = place if place <= last else 0
            rows: Any = connection.execute(_LINES, (endpoint, since, last)).fetchall()
            return Activity(last, tuple(line for (line,) in rows))

        return await self._run(look)

    async def report_worker(self, endpoint: str, worker: str, report: bytes | None) -> None:
        def write(connection: apsw.Connection) -> None:
            if report is None:
                connection.execute(_FORGET_REPORT, (endpoint, worker))
                return
            now = self._file.claims.uptime()
            connection.execute(_REPORT_WORKER, (endpoint, worker, now, report))
            connection.execute(_FORGET_REPORTS, (now, WORKER_SECONDS, MOST_REPORTS))

        await self._run(write)

    async def workers(self, *, endpoint: str | None = None) -> list[ReportedWorker]:
        return await self._rows(
            _WORKERS, lambda row: ReportedWorker(*row), seconds=WORKER_SECONDS, endpoint=endpoint
        )


def _listing(after: str | None, limit: int, wanted: Wanted) -> dict[str, Any]:
    """Return the named parameters of a listing's statement."""
    named = {"after": number_behind(after), "limit": limit}
    return {**dict.fromkeys(WantedDeadLetters.__optional_keys__), **wanted, **named}


def _first(found: Sequence[T]) -> T | None:
    return found[0] if found else None
