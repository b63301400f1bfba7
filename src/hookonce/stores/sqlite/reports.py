"""What a person or a probe asks of the file, and what processes tell each other by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

import apsw

from .. import life
from ..activity import MOST_LINES, WATCHED_SECONDS, Activity
from ..applications import MOST_REMEMBERED, REMEMBERED_SECONDS, Application
from ..contract import WORKER_SECONDS
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
from .upkeep import START, Place

T = TypeVar("T")

# One look into so many records keeps claims waiting for some milliseconds.
_MOST_LOOKED_UP = 500

# Whether a handler's name is among those of a column.
_OWES = ":handler IN (SELECT value FROM json_each(nullif({outstanding}, '')))"
# A delivery that was kept is no dead letter while an attempt at its event still runs.
_VISIBLE = f"""
NOT (kept AND EXISTS (SELECT 1 FROM attempts WHERE attempts.key = dead.key AND {LIVE}))
"""
_LETTER = f"""
SELECT l.id, l.endpoint, event_id, event_type, received_at, {{body}}, {COLUMNS}
FROM dead AS l LEFT JOIN attempts AS a USING (key)
"""
_OWED = "coalesce((SELECT outstanding FROM attempts WHERE attempts.key = dead.key), outstanding)"
_LETTERS = f"""
{_LETTER.format(body="x''")}
WHERE l.id IN (
    SELECT id FROM dead
    WHERE {_VISIBLE} AND id > :after
      AND (:endpoint IS NULL OR endpoint = :endpoint)
      AND (:event_type IS NULL OR event_type = :event_type)
      AND (:event_id IS NULL OR event_id = :event_id)
      AND (:handler IS NULL OR {_OWES.format(outstanding=_OWED)})
      AND (:since IS NULL OR buried_at >= :since)
      AND (:reason IS NULL OR reason = :reason)
    ORDER BY id LIMIT :limit
) ORDER BY l.id
"""
_ONE_LETTER = _LETTER.format(body="l.body") + "WHERE l.key = :key"
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
  AND (:handler IS NULL OR {_OWES.format(outstanding="outstanding")})
  AND (:since IS NULL OR received_at >= :since)
ORDER BY i.id LIMIT :limit
"""
_BODY = "(SELECT body FROM inbox_bodies WHERE id = i.id)"
_ONE_ENTRY = _ENTRY.format(body=_BODY) + "WHERE key = :key"
_OF_IT = "(:endpoint IS NULL OR endpoint = :endpoint)"
# Entries are numbered as they arrive, and the first of them has waited longest. Where there is no
# entry, those of all other endpoints would be looked through for one.
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
_TELL = "INSERT INTO activity (endpoint, line) VALUES (?, ?)"
_FORGET_LINES = """
DELETE FROM activity WHERE endpoint = ?1 AND place <= (
    SELECT place FROM activity WHERE endpoint = ?1 ORDER BY place DESC LIMIT 1 OFFSET ?2
)
"""
_LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'activity'"
_TOLD = "SELECT line FROM activity WHERE endpoint = ? AND place > ? AND place <= ? ORDER BY place"


class SQLiteReports(ABC):
    """A SQLite store, as far as it reports."""

    _file: SharedFile

    @abstractmethod
    def _run(self, step: Callable[[apsw.Connection], T]) -> Awaitable[T]:
        """Take a step within a transaction."""

    def _rows(self, statement: str, load: Callable[[Any], T], **named: Any) -> Awaitable[list[T]]:
        """Return what is made of the rows of a statement, which may ask for the time as well."""

        def read(connection: apsw.Connection) -> list[T]:
            named["now"] = self._file.claims.uptime()
            return [load(row) for row in connection.execute(statement, named).fetchall()]

        return self._run(read)

    async def dead_letters(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedDeadLetters]
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first; see ``DeadLetterQueue.dead_letters``."""
        letters = await self._rows(_LETTERS, self._letter, **_listing(after, limit, wanted))
        return [letter for letter in letters if letter is not None]

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter with its body; see ``DeadLetterQueue.dead_letter``."""
        return _first(await self._rows(_ONE_LETTER, self._letter, key=digest_of(key)))

    def _letter(self, row: tuple[Any, ...]) -> DeadLetter | None:
        number, *delivery = row[:6]
        record, moment = load_record(row[6:]), self._file.claims.moment()
        return life.dead_letter(record, moment, Delivery(*delivery), place=str(number))

    async def entries(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[Wanted]
    ) -> list[Entry]:
        """Return the events of the inbox, oldest first; see ``InboxListing.entries``."""
        return await self._rows(_ENTRIES, self._entry, **_listing(after, limit, wanted))

    async def entry(self, key: DeliveryKey) -> Entry | None:
        """Return one event of the inbox with its body; see ``InboxListing.entry``."""
        return _first(await self._rows(_ONE_ENTRY, self._entry, key=digest_of(key)))

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        due, in_flight, attempts, finished, history, outstanding = row[6:]
        return Entry(
            delivery=Delivery(*row[1:6]),
            due_at=self._file.claims.moment().unix_time(due),
            in_flight=bool(in_flight),
            attempts=attempts or 0,
            finished=load_names(finished),
            history=load_history(history),
            outstanding=load_names(outstanding),
            place=str(row[0]),
        )

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        """Return how much the file holds, of one endpoint or of all; see ``Reports.stats``."""
        unix = self._file.claims.clock()
        [row] = await self._rows(
            _STATS, tuple, seconds=WORKER_SECONDS, endpoint=endpoint, unix=unix
        )
        in_flight, dead, depth, size, received, workers, kept = row
        age = None if received is None else max(0.0, unix - received)
        return StoreStats(in_flight, dead, depth, size, age, workers, kept)

    async def retire(self, worker: str) -> None:
        """Forget a worker that ends; see ``Queue.retire``."""
        await self._rows(_FORGET_WORKER, tuple, worker=worker)

    async def known(self, endpoint: str, event_ids: Sequence[str]) -> dict[str, Known]:
        """Return what is known of these events of an endpoint; see ``Reports.known``."""
        claims = self._file.claims

        def look(some: Sequence[str], connection: apsw.Connection) -> dict[str, Known]:
            moment, found = claims.moment(), {}
            for event_id in some:
                record = claims.read(connection, digest_of(delivery_key(endpoint, event_id)))
                if (one := life.known_as(record, moment)) is not None:
                    found[event_id] = one
            return found

        found: dict[str, Known] = {}
        for start in range(0, len(event_ids), _MOST_LOOKED_UP):
            found |= await self._run(partial(look, event_ids[start : start + _MOST_LOOKED_UP]))
        return found

    async def prune(self) -> int:
        """Remove records whose retention is over, in small steps, and return how many."""
        removed = 0
        place: Place | None = START
        while place is not None:
            count, place = await self._run(partial(self._file.upkeep.prune, place))
            removed += count
        return removed

    async def register(
        self, endpoint: str, application: Application | None
    ) -> tuple[Application, ...]:
        """Note an application of an endpoint; see ``RegisteringStore.register``."""

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
        """Keep lines while somebody looks; see ``ActivityStore.publish``."""

        def add(connection: apsw.Connection) -> bool:
            if not connection.execute(_IS_WATCHED, (endpoint, self._file.claims.clock())).get:
                return False
            if lines:
                connection.executemany(_TELL, [(endpoint, line) for line in lines])
                connection.execute(_FORGET_LINES, (endpoint, MOST_LINES))
            return True

        return await self._run(add)

    async def follow(self, endpoint: str, place: int | None) -> Activity:
        """Return what was told after a place; see ``ActivityStore.follow``."""

        def look(connection: apsw.Connection) -> Activity:
            now = self._file.claims.clock()
            # Not at every look: what is written has to last on the disk.
            if not connection.execute(_IS_WATCHED, (endpoint, now + WATCHED_SECONDS / 2)).get:
                connection.execute(_WATCH, (endpoint, now + WATCHED_SECONDS))
            last: Any = connection.execute(_LAST).get
            if place is None:
                return Activity(last, ())
            since = place if place <= last else 0
            rows: Any = connection.execute(_TOLD, (endpoint, since, last)).fetchall()
            return Activity(last, tuple(line for (line,) in rows))

        return await self._run(look)


def _listing(after: str | None, limit: int, wanted: Wanted) -> dict[str, Any]:
    """Return what the statement of a listing asks for by name."""
    named = {"after": number_behind(after), "limit": limit}
    return {**dict.fromkeys(WantedDeadLetters.__optional_keys__), **wanted, **named}


def _first(found: Sequence[T]) -> T | None:
    return found[0] if found else None
