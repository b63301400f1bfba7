"""Listings, counts and activity, for operators, probes and other processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from math import inf
from typing import Any, Unpack

from psycopg import AsyncConnection

from ...clock import utc
from .. import life
from ..activity import MOST_LINES, MOST_REPORTS, WATCHED_SECONDS, Activity, ReportedWorker
from ..applications import MOST_REMEMBERED, REMEMBERED_SECONDS, Application
from ..formats import DamagedError, damaged
from ..handled import WantedHandled
from ..life import Moment
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
from .connection import Statement
from .finishes import IS_OPEN
from .parking import PARKED_SECONDS
from .records import columns, digest_of, load_history, load_names, load_record
from .schema import NOW
from .session import Session
from .wire import (
    blobs,
    documents,
    dump_float,
    dump_int,
    dump_text,
    dump_time,
)

_MOST_LOOKED_UP = 1_000

# A lease with more time left than its length is not live: it was granted before the clock was set
# back.
_LIVE = "({0}.until > at.now AND {0}.until <= at.now + {0}.lease)"
_LIVE_DEAD, _LIVE_ENTRY = _LIVE.format("d"), _LIVE.format("e")
_OPEN_IDS, _OPEN_DEAD, _OPEN_ENTRY = (
    IS_OPEN.replace("{0}", table).strip() for table in ("i", "d", "e")
)
_AT = f"(SELECT {NOW} AS now) AS at"
# The column holds names as JSON in ASCII, and $6 is a JSON string. JSON escapes quotes inside a
# name, so the search finds only whole names.
HAS_HANDLER = (
    "($6::text IS NULL OR position('[' || $6::text IN {0}::text) = 1"
    " OR position(', ' || $6::text IN {0}::text) > 0)"
)
FILTERS = """
{0}.id > $2::int8 AND ($3::text IS NULL OR {0}.endpoint = $3::text)
  AND ($4::text IS NULL OR {0}.event_type = $4::text)
  AND ($5::text IS NULL OR {0}.event_id = $5::text)
"""
# A kept delivery is not a dead letter while an attempt at its event is running.
_VISIBLE = f"NOT (d.kept > 0 AND {_LIVE_DEAD}) AND {_OPEN_DEAD}"
_DEAD_LETTER = f"""
SELECT at.now, d.id, d.endpoint, d.event_id, d.event_type, d.received_at, {{body}} AS body,
       {{record}} AS record, {columns("d")}, d.reason, d.error, d.buried_at, d.kept
FROM {{schema}}.dead AS d, {_AT}
"""
_NOTHING = "''::bytea"
_DEAD_LETTERS = f"""
{_DEAD_LETTER.replace("{body}", _NOTHING).replace("{record}", _NOTHING)}
WHERE {_VISIBLE} AND {FILTERS.format("d")} AND {HAS_HANDLER.format("d.outstanding")}
  AND ($7::float8 IS NULL OR d.buried_at >= $7::float8)
  AND ($8::text IS NULL OR d.reason = $8::text)
ORDER BY d.id LIMIT $9::int8
"""
_ONE_DEAD_LETTER = (
    _DEAD_LETTER.replace("{body}", "d.body").replace("{record}", f"coalesce(d.record, {_NOTHING})")
    + f"WHERE d.key = $2::bytea AND {_OPEN_DEAD}"
)
_SERVER_TIME = b"SELECT extract(epoch FROM clock_timestamp())::float8"
_COUNT_DAMAGED = "SELECT count(*) FROM {schema}.dead WHERE reason = 'damaged'"
_ENTRY = f"""
SELECT at.now, e.id, e.endpoint, e.event_id, e.event_type, e.received_at, {{body}} AS body,
       greatest(e.due, e.until), {_LIVE_ENTRY}, e.attempt, e.finished, e.history, e.outstanding
FROM {{schema}}.entries AS e CROSS JOIN {_AT}
"""
_ENTRIES = f"""
{_ENTRY.replace("{body}", _NOTHING)}
WHERE {_OPEN_ENTRY} AND {FILTERS.format("e")} AND {HAS_HANDLER.format("e.outstanding")}
  AND ($7::float8 IS NULL OR e.received_at >= $7::float8)
ORDER BY e.id LIMIT $8::int8
"""
_ONE_ENTRY = (
    _ENTRY.replace("{body}", "b.body")
    + "JOIN {schema}.bodies AS b ON b.part = e.part AND b.id = e.id WHERE e.key = $2::bytea"
    + f" AND {_OPEN_ENTRY}"
)
_OF = "($2::text IS NULL OR {0}.endpoint = $2::text)"
_STATS = f"""
SELECT at.now,
  (SELECT count(*) FROM {{schema}}.ids AS i
   WHERE i.attempt IS NOT NULL AND {_LIVE.format("i")} AND {_OF.format("i")} AND {_OPEN_IDS}) +
  (SELECT count(*) FROM {{schema}}.dead AS d
   WHERE {_LIVE_DEAD} AND {_OF.format("d")} AND {_OPEN_DEAD}),
  (SELECT count(*) FROM {{schema}}.dead AS d
   WHERE NOT (d.kept = 2 AND d.buried_at > at.now) AND {_VISIBLE} AND {_OF.format("d")}),
  (SELECT count(*) FROM {{schema}}.dead AS d
   WHERE d.kept = 2 AND d.buried_at > at.now AND {_VISIBLE} AND {_OF.format("d")}),
  (SELECT count(*) FROM {{schema}}.workers AS w
   WHERE w.seen > at.now - $3::float8 AND w.seen <= at.now AND {_OF.format("w")}),
  waiting.depth, waiting.bytes, waiting.running,
  pg_relation_size('{{schema}}.ids') + pg_relation_size('{{schema}}.entries'),
  (SELECT e.received_at FROM {{schema}}.entries AS e
   WHERE {_OF.format("e")} AND {_OPEN_ENTRY} ORDER BY e.id LIMIT 1)
FROM {_AT}, LATERAL (
    SELECT count(*) AS depth, coalesce(sum(e.size), 0)::int8 AS bytes,
           count(*) FILTER (WHERE {_LIVE_ENTRY}) AS running
    FROM {{schema}}.entries AS e WHERE {_OF.format("e")} AND {_OPEN_ENTRY}
) AS waiting
"""
# `stats` reads all rows of two tables: a counter would be a row that every call changes, and an
# index on the leases of `ids` would end the HOT updates. If these tables are large, probes and
# metrics get counts that are some seconds old. So a process counts for at most a twentieth of the
# time.
_LARGE_BYTES = 32 * 1024 * 1024
_PATIENCE, _OLDEST_SECONDS = 20, 10.0
_NOTE_APPLICATION = f"""
INSERT INTO {{schema}}.applications (endpoint, mark, application, seen)
VALUES ($2::text, $3::bytea, ($4::text[])[1]::json, {NOW})
ON CONFLICT (endpoint, mark) DO UPDATE SET seen = excluded.seen, place = DEFAULT
"""
_FORGET_APPLICATIONS = f"""
DELETE FROM {{schema}}.applications WHERE endpoint = $2::text AND (
    seen <= {NOW} - {REMEMBERED_SECONDS} OR mark NOT IN (
        SELECT mark FROM {{schema}}.applications WHERE endpoint = $2::text
        ORDER BY seen DESC, place DESC LIMIT {MOST_REMEMBERED}
    )
)
"""
_APPLICATIONS = f"""
SELECT application, seen FROM {{schema}}.applications
WHERE endpoint = $2::text AND seen > {NOW} - {REMEMBERED_SECONDS}
ORDER BY seen, place
"""
_IS_WATCHED = f"""
SELECT EXISTS (SELECT FROM {{schema}}.watched WHERE endpoint = $2::text AND until > {NOW} + $3)
"""
_WATCH = f"""
INSERT INTO {{schema}}.watched VALUES ($2::text, {NOW} + $3::float8)
ON CONFLICT (endpoint) DO UPDATE SET until = excluded.until
"""
# With this lock, the places of lines follow the order of the commits, so a reader skips no line.
_LOCK_LINES = """
SELECT FROM pg_advisory_xact_lock(hashtext('{schema}.activity'), hashtext($1::text))
"""
_ADD_LINES = f"""
INSERT INTO {{schema}}.activity (endpoint, line) SELECT $2::text, line
FROM unnest($3::bytea[]) WITH ORDINALITY AS given (line, number)
WHERE EXISTS (SELECT FROM {{schema}}.watched WHERE endpoint = $2::text AND until > {NOW})
ORDER BY number
"""
_FORGET_LINES = f"""
DELETE FROM {{schema}}.activity WHERE endpoint = $1::text AND place <= (
    SELECT place FROM {{schema}}.activity WHERE endpoint = $1::text
    ORDER BY place DESC LIMIT 1 OFFSET {MOST_LINES}
)
"""
_LINES = """
SELECT place, line FROM {schema}.activity
WHERE endpoint = $1::text AND place > $2::int8 ORDER BY place
"""
_LAST = """
SELECT coalesce(max(place), 0) FROM {schema}.activity WHERE endpoint = $1::text
"""
_REPORT_WORKER = f"""
INSERT INTO {{schema}}.worker_reports VALUES ($2::text, $3::text, {NOW}, $4::bytea)
ON CONFLICT (endpoint, worker) DO UPDATE SET seen = excluded.seen, report = excluded.report
"""
_FORGET_REPORT = (
    "DELETE FROM {schema}.worker_reports WHERE endpoint = $1::text AND worker = $2::text"
)
_FORGET_REPORTS = f"""
DELETE FROM {{schema}}.worker_reports
WHERE seen <= {NOW} - $2::float8 OR seen > {NOW} OR (endpoint, worker) NOT IN (
    SELECT endpoint, worker FROM {{schema}}.worker_reports ORDER BY seen DESC LIMIT {MOST_REPORTS}
)
"""
_WORKERS = f"""
SELECT endpoint, worker, at.now - seen, report FROM {{schema}}.worker_reports AS w, {_AT}
WHERE seen > at.now - $3::float8 AND seen <= at.now AND {_OF.format("w")}
"""


class PostgresReports:
    """The part of a PostgreSQL store that implements ``Reports`` and the listings."""

    _schema: str
    _counted: dict[str | None, tuple[StoreStats, float]]

    @property
    def _session(self) -> Session:
        raise NotImplementedError

    def _sql(self, statement: str) -> bytes:
        return statement.replace("{schema}", self._schema).encode()

    async def server_times(self) -> list[datetime]:
        """Return the time of the server; raises StoreError."""
        [[(now,)]] = await self._session.ask((_SERVER_TIME, ()))
        return [utc(now)]

    async def dead_letters(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedDeadLetters]
    ) -> list[DeadLetter]:
        reason = wanted.get("reason")
        values = [
            *listing(after, wanted, dump_time(self._session.now())),
            None if reason is None else dump_text(reason),
            dump_int(limit),
        ]
        found = await self._listed(_DEAD_LETTERS, values, self._load_dead_letter)
        return [letter for letter in found if letter is not None]

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        values = [dump_time(self._session.now()), digest_of(key)]
        found = await self._listed(_ONE_DEAD_LETTER, values, self._load_dead_letter)
        return found[0] if found else None

    def _load_dead_letter(self, row: tuple[Any, ...]) -> DeadLetter | None:
        at, number, *delivery = row[:7]
        raw, attempt, dead = row[7], row[8:15], row[15:]
        record = load_record(attempt, 0.0, None, dead)
        letter = life.dead_letter(
            record, Moment(at, at, at), Delivery(*delivery), place=str(number)
        )
        return letter and replace(letter, record=raw)

    async def entries(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[Wanted]
    ) -> list[Entry]:
        values = [*listing(after, wanted, dump_time(self._session.now())), dump_int(limit)]
        return await self._listed(_ENTRIES, values, _load_entry)

    async def entry(self, key: DeliveryKey) -> Entry | None:
        values = [dump_time(self._session.now()), digest_of(key)]
        found = await self._listed(_ONE_ENTRY, values, _load_entry)
        return found[0] if found else None

    async def _listed(self, statement: str, values: Sequence[bytes | None], load: Any) -> list[Any]:
        """Return the rows of a listing; rows that cannot be read are set aside first."""
        asked = (self._sql(statement), values)
        [listed] = await self._session.ask(asked)
        unreadable, found = [], []
        for row in listed:
            try:
                found.append(load(row))
            except DamagedError:
                unreadable.append(delivery_key(row[2], row[3]))
        if not unreadable:
            return found
        await self._set_aside(unreadable)
        [listed] = await self._session.ask(asked)
        return [load(row) for row in listed]

    async def _set_aside(self, keys: Sequence[DeliveryKey]) -> None:
        session = self._session

        async def write(connection: AsyncConnection[Any]) -> None:
            _, moment, held = await session.claims.read(
                connection, session.format.guard, keys, session.now()
            )
            await session.claims.write(connection, list(held.values()), moment)

        await session.call(write)

    def _count_damaged(self) -> Statement:
        return self._sql(_COUNT_DAMAGED), ()

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        now = asyncio.get_running_loop().time
        counted = self._counted.get(endpoint)
        if counted is not None and now() < counted[1]:
            return counted[0]
        started = now()
        stats, size = await self._count(endpoint)
        if size >= _LARGE_BYTES:
            fresh = min(_PATIENCE * (now() - started), _OLDEST_SECONDS)
            self._counted[endpoint] = stats, now() + fresh
        return stats

    async def _count(self, endpoint: str | None) -> tuple[StoreStats, int]:
        """Return the counts of an endpoint or of all, and the bytes of the tables."""
        values = [
            dump_time(self._session.now()),
            None if endpoint is None else dump_text(endpoint),
            dump_float(WORKER_SECONDS),
        ]
        [[row]] = await self._session.ask((self._sql(_STATS), values))
        at, in_flight, dead, kept, workers, depth, size, running, table_bytes, received = row
        age = None if received is None else max(0.0, at - received)
        stats = StoreStats(in_flight + running, dead, depth, size, age, workers, kept)
        return stats, table_bytes

    async def known(self, endpoint: str, event_ids: Sequence[str]) -> dict[str, Known]:
        session = self._session
        found: dict[str, Known] = {}
        for start in range(0, len(event_ids), _MOST_LOOKED_UP):
            keys = {
                delivery_key(endpoint, event_id): event_id
                for event_id in event_ids[start : start + _MOST_LOOKED_UP]
            }

            async def look(
                connection: AsyncConnection[Any], keys: dict[DeliveryKey, str] = keys
            ) -> tuple[Moment, dict[DeliveryKey, Any]]:
                _, moment, held = await session.claims.read(
                    connection, session.format.guard, keys, session.now(), locks=False
                )
                return moment, held

            moment, held = await session.call(look)
            for key, one in held.items():
                known = life.known_as(one.record, moment)
                if known is not None:
                    found[keys[key]] = known
        return found

    async def register(
        self, endpoint: str, application: Application | None
    ) -> tuple[Application, ...]:
        at = (dump_time(self._session.now()), dump_text(endpoint))
        statements: list[tuple[bytes, Sequence[bytes | None]]] = []
        if application is not None:
            text = application.dump()
            mark = blake2b(text.encode(), digest_size=16).digest()
            statements = [
                (self._sql(_NOTE_APPLICATION), (*at, mark, documents([text]))),
                (self._sql(_FORGET_APPLICATIONS), at),
            ]
        *_, listed = await self._session.ask(*statements, (self._sql(_APPLICATIONS), at))
        return tuple(Application.load(text, seen) for text, seen in listed)

    async def publish(self, endpoint: str, lines: Sequence[bytes]) -> bool:
        time, name = dump_time(self._session.now()), dump_text(endpoint)
        statements: list[tuple[bytes, Sequence[bytes | None]]] = [
            (self._sql(_IS_WATCHED), (time, name, dump_float(0.0)))
        ]
        if lines:
            statements += [
                (self._sql(_LOCK_LINES), (name,)),
                (self._sql(_ADD_LINES), (time, name, blobs(list(lines)))),
                (self._sql(_FORGET_LINES), (name,)),
            ]
        [[(is_watched,)], *_] = await self._session.ask(*statements)
        return bool(is_watched)

    async def follow(self, endpoint: str, place: int | None) -> Activity:
        session, name = self._session, dump_text(endpoint)
        time = dump_time(session.now())
        behind = dump_int(place or 0)
        [[(is_watched,)], [(last,)], lines] = await session.ask(
            (self._sql(_IS_WATCHED), (time, name, dump_float(WATCHED_SECONDS / 2))),
            (self._sql(_LAST), (name,)),
            (self._sql(_LINES), (name, behind)),
        )
        if not is_watched:  # write rarely: each write costs an fsync
            await session.ask((self._sql(_WATCH), (time, name, dump_float(WATCHED_SECONDS))))
        if place is None:
            return Activity(last, ())
        if place > last:
            [lines] = await session.ask((self._sql(_LINES), (name, dump_int(0))))
        places = [number for number, _ in lines]
        return Activity(max([last, *places]), tuple(line for _, line in lines))

    async def report_worker(self, endpoint: str, worker: str, report: bytes | None) -> None:
        time = dump_time(self._session.now())
        name, who = dump_text(endpoint), dump_text(worker)
        if report is None:
            await self._session.ask((self._sql(_FORGET_REPORT), (name, who)))
            return
        await self._session.ask(
            (self._sql(_REPORT_WORKER), (time, name, who, report)),
            (self._sql(_FORGET_REPORTS), (time, dump_float(WORKER_SECONDS))),
        )

    async def workers(self, *, endpoint: str | None = None) -> list[ReportedWorker]:
        values = [
            dump_time(self._session.now()),
            None if endpoint is None else dump_text(endpoint),
            dump_float(WORKER_SECONDS),
        ]
        [listed] = await self._session.ask((self._sql(_WORKERS), values))
        return [ReportedWorker(*row) for row in listed]


def _load_entry(row: tuple[Any, ...]) -> Entry:
    now, number, *delivery = row[:7]
    due, in_flight, attempts, finished, history, outstanding = row[7:]
    try:
        names, failures = load_names(finished), load_history(history)
        others = load_names(outstanding)
    except (ValueError, TypeError) as error:
        raise damaged() from error
    return Entry(
        delivery=Delivery(*delivery),
        due_unix=due if due < inf else now + PARKED_SECONDS,
        in_flight=bool(in_flight),
        attempts=attempts,
        finished=names,
        history=failures,
        outstanding=others,
        place=str(number),
    )


def listing(
    after: str | None, wanted: Wanted | WantedDeadLetters | WantedHandled, now: bytes | None
) -> list[bytes | None]:
    """Return the parameters 1 to 7 of a listing."""
    handler, since = wanted.get("handler"), wanted.get("since_unix")
    texts = (wanted.get("endpoint"), wanted.get("event_type"), wanted.get("event_id"))
    return [
        now,
        dump_int(number_behind(after)),
        *(None if text is None else dump_text(text) for text in texts),
        None if handler is None else json.dumps(handler).encode(),
        None if since is None else dump_float(since),
    ]
