"""Rotation of the partitions of bodies, so that the bodies of handled events free their disk space.

New bodies go to the current partition. When that partition is large or old, an empty partition
becomes the current partition. A partition that no entry needs is truncated. So no statement deletes
single bodies, which would leave dead rows. If only few events of a partition still wait, their
bodies are copied to the current partition first.

Each step is a transaction of its own, and relies only on what it reads itself. If a process dies
between two steps, another process continues, and nothing needs repair.

A partition must not be truncated while an event needs it:

- A transaction that has begun before the switch may still write to the partition. So the last check
  holds SHARE ROW EXCLUSIVE: earlier writers have committed, and the check sees their entries; later
  writers wait, or fail and begin again with the current partition. Readers do not wait.
- A statement locks all partitions before it takes the snapshot by which it reads entries. So a
  fetch either ends before TRUNCATE gets its lock, or sees no entry of the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from psycopg import AsyncConnection

from ...errors import StoreError
from .checks import CANNOT_EMPTY
from .connection import Statement, exchange
from .faults import LOCK_NOT_FREE, NOT_ALLOWED, ServerError
from .schema import BODY_PARTS
from .session import Session
from .wire import dump_int, rows

T = TypeVar("T")

FULL_BYTES = 64 * 1024 * 1024
"""A partition gets no more bodies when it has this size."""
_OLD_SECONDS = 3_600.0  # a partition of this age gets no more bodies, unless it is empty
# The rotation moves the remaining bodies out of a partition when they fill at most a sixteenth of
# it, or half of it if no empty partition is left. So the disk holds about twice the bytes of
# waiting bodies.
_FEW, _HALF = 16, 2
# Limits of one step. They are small, because workers cannot fetch the moved entries during the
# step.
_MOST_MOVED, _MOST_MOVED_BYTES = 200, 8 * 1024 * 1024
# While TRUNCATE waits for its lock, every later statement that reads bodies waits behind it.
_LOCK_WAIT = "30ms"
# Two statements read all entries. They block nothing, but take long in a large inbox. So the pause
# after them is `_PATIENCE` times as long as the statements took.
_STATEMENT_TIME, _STEP_SECONDS = "60s", 75.0
_PATIENCE = 20

_BEGIN: Statement = (b"BEGIN ISOLATION LEVEL READ COMMITTED", ())
_COMMIT: Statement = (b"COMMIT", ())
_LIMITS: Statement = (
    (
        f"SELECT set_config('lock_timeout', '{_LOCK_WAIT}', true),"
        f" set_config('statement_timeout', '{_STATEMENT_TIME}', true)"
    ).encode(),
    (),
)
_TAKE_TURN = "SELECT pg_try_advisory_xact_lock(hashtext('{schema}.bodies'), 0)"
# Use the server's clock, even if the store has another clock: the age of a partition does not
# depend on the time of events.
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_STATE = f"""
SELECT c.part = p.part, ({_NOW} - c.since) BETWEEN 0 AND {_OLD_SECONDS},
       (p.part - c.part + {BODY_PARTS}) % {BODY_PARTS}, p.part,
       pg_relation_size(p.name) = 0, pg_table_size(p.name)
FROM {{schema}}.body_part AS c, (
    SELECT part, ('{{schema}}.bodies_' || part)::regclass AS name
    FROM generate_series(0, {BODY_PARTS - 1}) AS part
) AS p ORDER BY 3
"""
_SWITCH = f"UPDATE {{schema}}.body_part SET part = $1::int8, since = {_NOW}"
_NEEDED = "SELECT part, sum(size)::int8 FROM {schema}.entries GROUP BY part"
_MOVE = """
WITH chosen AS MATERIALIZED (
    SELECT id, size FROM {schema}.entries WHERE part = $1::int8 AND id > $2::int8
    ORDER BY id LIMIT $3::int8 FOR NO KEY UPDATE SKIP LOCKED
), counted AS (
    SELECT id, row_number() OVER w AS number, sum(size) OVER w AS total FROM chosen
    WINDOW w AS (ORDER BY id)
), copied AS (
    INSERT INTO {schema}.bodies
    SELECT c.part, b.id, b.body
    FROM counted JOIN {schema}.bodies AS b ON b.part = $1::int8 AND b.id = counted.id,
        {schema}.body_part AS c
    WHERE c.part <> $1::int8 AND (number = 1 OR total <= $4::int8)
    RETURNING part, id
), moved AS (
    UPDATE {schema}.entries AS e SET part = copied.part FROM copied WHERE e.id = copied.id
)
SELECT max(id) FROM copied
"""
_CLOSE = "LOCK TABLE {schema}.bodies_{part} IN SHARE ROW EXCLUSIVE MODE"
_IS_NEEDED = """
SELECT EXISTS (SELECT FROM {schema}.body_part WHERE part = $1::int8)
    OR EXISTS (SELECT FROM {schema}.entries WHERE part = $1::int8)
"""
_EMPTY = "TRUNCATE {schema}.bodies_{part}"


class _State(NamedTuple):
    """The state of the partitions.

    Attributes:
        left: the number and size of each older partition that still holds bodies, oldest first.
        following: the empty partition that can become the current partition; None if none is empty.
        is_due: whether the current partition is large or old.
    """

    left: tuple[tuple[int, int], ...]
    following: int | None
    is_due: bool


class BodyRotation:
    """Switches the current partition of a schema, moves bodies, and truncates old partitions.

    Args:
        full_bytes: a partition gets no more bodies when it has this size.
    """

    def __init__(self, session: Session, schema: str, *, full_bytes: int = FULL_BYTES) -> None:
        self._session = session
        self._schema = schema
        self._full_bytes = full_bytes
        self._count_at = float("-inf")

    async def turn(self) -> None:
        """Empty partitions that few or no events need; replace a large or old current partition.

        Do nothing while another process does this.

        Raises:
            StoreError: a step failed; nothing needs to be undone.
        """
        state = await self._step(self._look)
        if state is None:
            return
        loop = asyncio.get_running_loop()
        if state.left and loop.time() >= self._count_at:
            begun = loop.time()
            needed = await self._step(self._count)
            self._count_at = loop.time() + _PATIENCE * (loop.time() - begun)
            if needed is None:
                return
            enough = _FEW if state.following is not None else _HALF
            for part, size in state.left:
                if enough * needed.get(part, 0) > size:
                    continue
                if part in needed:
                    await self._move(part)
                await self._step(partial(self._empty, part))
        if state.is_due:
            await self._step(self._switch)

    async def _step(self, step: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T | None:
        """Do a step in a transaction; return None while another process does a step."""
        take_turn = self._sql(_TAKE_TURN)

        async def run(connection: AsyncConnection[Any]) -> T | None:
            *_, result = await exchange(
                connection, [_BEGIN, self._session.format.guard, _LIMITS, (take_turn, ())]
            )
            [(is_ours,)] = rows(result)
            if not is_ours:
                return None
            outcome = await step(connection)
            await exchange(connection, [_COMMIT])
            return outcome

        return await self._session.call(run, seconds=_STEP_SECONDS)

    async def _look(self, connection: AsyncConnection[Any]) -> _State:
        [result] = await exchange(connection, [(self._sql(_STATE), ())])
        (_, is_young, _, _, is_empty, size), *others = rows(result)
        left = tuple((part, size) for *_, part, is_empty, size in others if not is_empty)
        following = next((part for *_, part, is_empty, _ in others if is_empty), None)
        return _State(left, following, size >= self._full_bytes or not (is_empty or is_young))

    async def _count(self, connection: AsyncConnection[Any]) -> dict[int, int]:
        """Return the bytes of the waiting bodies of each partition."""
        [result] = await exchange(connection, [(self._sql(_NEEDED), ())])
        return dict(rows(result))

    async def _switch(self, connection: AsyncConnection[Any]) -> None:
        # Look again: another process may have switched partitions in the meantime.
        state = await self._look(connection)
        if state.is_due and state.following is not None:
            await exchange(connection, [(self._sql(_SWITCH), (dump_int(state.following),))])

    async def _move(self, part: int) -> None:
        """Copy the bodies that events still need into the current partition.

        Leave out entries that another transaction has locked: the next turn finds them.
        """
        sql, after = self._sql(_MOVE), 0

        async def move(connection: AsyncConnection[Any]) -> int | None:
            values = map(dump_int, (part, after, _MOST_MOVED, _MOST_MOVED_BYTES))
            [result] = await exchange(connection, [(sql, list(values))])
            last: int | None = rows(result)[0][0]
            return last

        while (last := await self._step(move)) is not None:
            after = last

    async def _empty(self, part: int, connection: AsyncConnection[Any]) -> None:
        """Truncate a partition that no entry needs; if it is in use, the next turn tries again."""
        close, empty = self._sql(_CLOSE, part), self._sql(_EMPTY, part)
        check: Statement = (self._sql(_IS_NEEDED), (dump_int(part),))
        try:
            _, result = await exchange(connection, [(close, ()), check])
            [(is_needed,)] = rows(result)
            if not is_needed:
                await exchange(connection, [(empty, ()), _COMMIT])
        except ServerError as error:
            if error.state == NOT_ALLOWED:
                raise StoreError(CANNOT_EMPTY.format(schema=self._schema)) from error
            if error.state != LOCK_NOT_FREE:
                raise
            await exchange(connection, [(b"ROLLBACK", ())])

    def _sql(self, statement: str, part: int | None = None) -> bytes:
        return statement.format(schema=self._schema, part=part).encode()
