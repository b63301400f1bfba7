"""Frees the space of handled events and removes expired records, in the background.

The work is done in small steps, so that no call waits long for locked rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ...errors import StoreError
from ...logs import get_logger
from .bodies import BodyRotation
from .finishes import IS_OPEN
from .schema import NOW, count_handled
from .session import Session
from .wire import dump_float, dump_int, dump_time

_log = get_logger("hookonce.store")

# Wait before the first work, so that a command that only reads ends before the work begins.
_FIRST_SECONDS = 1.0
_PAUSE_SECONDS = 0.05

# The number of keys that one step reads.
_KEYS = 2_000
# Lock the rows before deleting them, because a lock reads their newest versions: an event that has
# joined the inbox in the meantime has a later `expires`.
_STEP = """
WITH walked AS MATERIALIZED (
    SELECT key FROM {schema}.{table} WHERE key > $2::bytea ORDER BY key LIMIT $3::int8
), last AS (
    SELECT key FROM walked ORDER BY key DESC LIMIT 1
), expired AS MATERIALIZED (
    SELECT key FROM {schema}.{table} AS t
    WHERE key > $2::bytea AND key <= (SELECT key FROM last) AND {condition}
    ORDER BY key FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM {schema}.{table} WHERE key IN (SELECT key FROM expired) RETURNING {returning}
){counted}
SELECT (SELECT count(*) FROM removed), (SELECT key FROM last)
"""
_IS_EXPIRED = {
    "ids": f"""
        expires <= {NOW} AND (attempt IS NULL OR until <= {NOW})
        AND NOT EXISTS (SELECT FROM {{schema}}.entries AS e WHERE e.key = t.key)
        AND NOT EXISTS (SELECT FROM {{schema}}.dead AS d WHERE d.key = t.key)
    """,
    "key_locks": f"""
        until <= {NOW} AND (event_id IS NULL OR expires <= {NOW})
        AND NOT EXISTS (SELECT FROM {{schema}}.waiting AS w WHERE w.key_lock = t.key)
    """,
    "accepted": f"expires <= {NOW}",
    "handled": f"expires <= {NOW}",
    # A finish stays in this table if the process ended after the commit, and no call has asked for
    # the event since then.
    "finishes": f"""
        {NOW} IS NOT NULL -- always true, but each statement must use its parameter for the time
        AND NOT EXISTS (SELECT FROM {{schema}}.ids AS i WHERE i.key = t.key)
    """,
}
_COUNTED = f", counted AS ({count_handled('removed', '0', -1)})"
# Finds completed events whose bodies are still stored, because the process ended after the commit.
_COMPLETED = f"""
SELECT DISTINCT d.key FROM {{schema}}.finishes JOIN {{schema}}.dead AS d USING (key)
WHERE d.key > $2::bytea AND coalesce(d.until, 0) <= {NOW}
  AND NOT {IS_OPEN.replace("{0}", "d").strip()}
ORDER BY d.key LIMIT $3::int8
"""
_FORGET_NOTES = f"""
DELETE FROM {{schema}}.waiting WHERE key_lock IN (
    SELECT key FROM {{schema}}.key_locks WHERE until <= {NOW}
)
"""
_FORGET_IGNORED = f"DELETE FROM {{schema}}.ignored WHERE last <= {NOW} - $2::float8"


# Only one process prunes in an hour. The server's clock measures the hour, even if the store was
# given another clock.
_TAKE_TURN = """
UPDATE {schema}.pruned SET at = now.now
FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS now
WHERE at <= now.now - 3600 OR at > now.now RETURNING 1::int4
"""


class Upkeep:
    """Keeps the tables of a schema small while the store is used."""

    def __init__(self, session: Session, schema: str) -> None:
        self._session = session
        self._schema = schema
        self._bodies = BodyRotation(session, schema)
        self._task: asyncio.Task[None] | None = None
        self._failure = ""

    def start(self) -> None:
        """Start the background work, unless it is running already."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="hookonce-postgres-upkeep")

    async def aclose(self) -> None:
        """Stop the background work; the next process continues it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def prune(self) -> int:
        """Remove the records whose retention is over, and return their number."""
        await self._bodies.turn()
        return sum([removed async for removed in self._prune()])

    async def _run(self) -> None:
        await asyncio.sleep(_FIRST_SECONDS)
        try:
            await self._bodies.turn()
            [turn] = await self._session.ask((self._sql(_TAKE_TURN), ()))
            if turn:
                async with aclosing(self._prune()) as steps:
                    async for _ in steps:
                        await asyncio.sleep(_PAUSE_SECONDS)
            self._failure = ""
        except StoreError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                _log.warning("cannot free the space of handled events: %s", error)

    async def _prune(self) -> AsyncGenerator[int, None]:
        """Remove expired records step by step, and yield the number that each step removed."""
        session = self._session
        retention = dump_float(session.claims.retention_seconds)
        await session.ask(
            (self._sql(_FORGET_NOTES), (dump_time(session.now()),)),
            (self._sql(_FORGET_IGNORED), (dump_time(session.now()), retention)),
        )
        async for count in self._complete():
            yield count
        for table, condition in _IS_EXPIRED.items():
            step, is_handled = _STEP.replace("{condition}", condition), table == "handled"
            step = step.replace("{counted}", _COUNTED if is_handled else "")
            step = step.replace("{returning}", "endpoint, size" if is_handled else "key")
            sql = self._sql(step, table)
            after: bytes | None = b""
            while after is not None:
                values = [dump_time(session.now()), after, dump_int(_KEYS)]
                [[(count, after)]] = await session.ask((sql, values))
                yield count

    async def _complete(self) -> AsyncGenerator[int, None]:
        """Delete the remains of dead letters and kept deliveries that a commit has completed.

        No list shows them, and possibly no call asks for their events again.
        """
        session, sql, after = self._session, self._sql(_COMPLETED), b""
        while True:
            values = [dump_time(session.now()), after, dump_int(_KEYS)]
            [found] = await session.ask((sql, values))
            keys = [key for (key,) in found]
            if not keys:
                return
            await session.ask(*session.claims.finish(keys, session.now()))
            yield len(keys)
            after = keys[-1]

    def _sql(self, statement: str, table: str = "") -> bytes:
        return statement.format(schema=self._schema, table=table).encode()
