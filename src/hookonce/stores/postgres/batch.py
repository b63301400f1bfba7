"""Batches: do the calls of one event-loop iteration in one transaction, with few statements.

Most calls are about events that the store does not know yet, or complete them. One statement for
each kind does all of these in one round trip. The other calls, and those of events that turn out to
be known, are steps of ``life``: a second transaction reads their records, does the steps in the
order of the calls, and writes what has changed.

No call is answered before the commit, and no call fails because another call of its batch does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import AsyncConnection

from ...errors import StoreError
from ...logs import get_logger
from .. import life
from ..life import Moment, Record
from ..record_store import EventStep
from ..values import Claimed, ClaimResult, Delivery, DeliveryKey, EnqueueResult, Full, Stored, Token
from .claims import STATUS, ClaimsTable, ConflictError, key_locks_left
from .connection import Connections, Statement, exchange
from .faults import LOCK_NOT_FREE, ServerError, failed
from .handled import HandledTable, Kept
from .inbox import TAKE_LONGER, InboxTable
from .records import digest_of
from .rooms import InboxLimits, Room
from .schema import NOW, SchemaFormat
from .wire import blobs, dump_float, dump_time, floats, rows, texts

_log = get_logger("hookonce.store")

T = TypeVar("T")

CALL_SECONDS = 3.0
"""The time limit of a call and its retries: a delivery must be answered even without a server."""

# The limits of a batch. Without the limit of bytes, many large bodies that arrive together would
# exceed the time limit of all their calls.
_MOST_CALLS, _MOST_BYTES = 512, 4 * 1024 * 1024
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 0.25
_NONE: frozenset[str] = frozenset()

# The row FREE.claim of `life.LIFE`, for events that the store does not know.
_CLAIM_NEW = f"""
INSERT INTO {{schema}}.ids (key, expires, endpoint, token, until, lease, attempt)
SELECT key, ceil(now + $6)::int8, endpoint, token, now + lease, lease, 1
FROM unnest($2::bytea[], $3::text[], $4::text[], $5::float8[]) AS g (key, endpoint, token, lease),
    (SELECT {NOW} AS now) AS at
ORDER BY key ON CONFLICT (key) DO NOTHING RETURNING key
"""


@dataclass(eq=False, slots=True)
class Job(Generic[T]):
    """A call about an event, queued for the next batch.

    Attributes:
        key: the event.
        delivery: stored if the step makes an entry or a dead letter.
        may_be_dropped: skip the job if its caller was cancelled in the meantime: a claim would have
            no owner. A completion is never skipped, because the handlers have run.
        outcome: what the caller gets after the commit.
        error: the error that the caller gets instead.
    """

    key: DeliveryKey
    delivery: Delivery | None = field(kw_only=True, default=None)
    may_be_dropped: bool = field(kw_only=True, default=False)
    future: asyncio.Future[T] = field(init=False)
    outcome: T = field(init=False)
    error: StoreError | None = field(init=False, default=None)

    @property
    def size(self) -> int:
        """The bytes of the body that the job brings."""
        return 0 if self.delivery is None else len(self.delivery.body)

    def step(self, record: Record, moment: Moment) -> tuple[T, Record]:
        """Do the step on the event's record, and return the answer and the next record."""
        raise NotImplementedError


@dataclass(eq=False, slots=True)
class StepJob(Job[T]):
    """A call that does any step of ``life``.

    Attributes:
        do: the step.
        is_heartbeat: whether the step leaves the owner of the event unchanged.
    """

    do: EventStep[T]
    is_heartbeat: bool = field(kw_only=True, default=False)

    def step(self, record: Record, moment: Moment) -> tuple[T, Record]:
        return self.do(record, moment)


@dataclass(eq=False, slots=True)
class ClaimJob(Job[ClaimResult]):
    """A call of ``Claims.claim``."""

    token: Token
    lease: float

    def step(self, record: Record, moment: Moment) -> tuple[ClaimResult, Record]:
        return life.claim(record, moment, self.key, self.token, self.lease)


@dataclass(eq=False, slots=True)
class CompleteJob(Job[None]):
    """A call of ``Claims.complete``."""

    def step(self, record: Record, moment: Moment) -> tuple[None, Record]:  # noqa: ARG002 - a completion ignores the record
        return None, life.complete(moment)


@dataclass(eq=False, slots=True)
class CompleteAndKeepJob(CompleteJob):
    """A call of ``HandledStore.complete_and_keep``."""

    kept: Kept

    @property
    def size(self) -> int:
        return len(self.kept.delivery.body)


@dataclass(eq=False, slots=True)
class EnqueueJob(Job[EnqueueResult]):
    """A call of ``Queue.enqueue``.

    Attributes:
        key_lock: the digest of the key lock that the event needs, if it is known.
        room: what the inbox of the endpoint holds, with what the batch has added.
    """

    given: Delivery
    token: Token
    limits: InboxLimits
    key_lock: bytes | None = None
    room: Room = field(init=False, default_factory=lambda: Room(0, 0))

    @property
    def size(self) -> int:
        return len(self.given.body)

    def step(self, record: Record, moment: Moment) -> tuple[EnqueueResult, Record]:
        result, after = life.enqueue(record, moment, self.token)
        if after.queued is not None and record.queued is None:
            size = len(self.given.body)
            if not self.limits.allow(self.room.depth + 1, self.room.size + size):
                return Full(), record
            self.room.add(size)
        return result, after


class Batches:
    """Runs the calls about events in batches, within one event loop.

    Args:
        flushed: called for each batch with the number of calls and the seconds it took.
        now: returns the time of a given clock, or None for the server's clock.
        is_due: called with an endpoint when one of its events has become due.
    """

    def __init__(
        self,
        schema: str,
        connections: Connections,
        claims: ClaimsTable,
        inbox: InboxTable,
        handled: HandledTable,
        schema_format: SchemaFormat,
        prepare: Callable[[AsyncConnection[Any]], Awaitable[None]],
        flushed: Callable[[int, float], None],
        now: Callable[[], float | None],
        is_due: Callable[[str], object],
    ) -> None:
        self._connections = connections
        self._claims, self._inbox, self._handled = claims, inbox, handled
        self._format = schema_format
        self._prepare = prepare
        self._flushed = flushed
        self._now = now
        self._is_due = is_due
        self._claim_new = _CLAIM_NEW.format(schema=schema).encode()
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Job[Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._rooms: dict[str, Room] = {}
        self._counting: dict[str, asyncio.Task[None]] = {}
        self._apart: set[asyncio.Task[None]] = set()

    def run(self, job: Job[T]) -> asyncio.Future[T]:
        """Queue a job, and return a future of its outcome, set after the commit.

        Raises:
            StoreError: from the future: the job was not done, or its outcome is unknown.
        """
        job.future = self._loop.create_future()
        self._waiting.append(job)
        if self._task is None or self._task.done():
            # The task starts in the loop's next iteration, so all calls of this iteration share a
            # batch.
            self._task = self._loop.create_task(self._work(), name="hookonce-postgres-batches")
        return job.future

    async def aclose(self) -> None:
        """Finish the calls in flight."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        if others := [*self._apart, *self._counting.values()]:
            await asyncio.wait(others)

    async def _work(self) -> None:
        while batch := self._next_batch():
            started = self._loop.time()
            try:
                await self._do(batch)
                self._loop.call_soon(self._flushed, len(batch), self._loop.time() - started)
                # Let the answered callers run once before the next batch begins. Many of them call
                # again at once, so the next batch has more calls, and there are fewer commits.
                await asyncio.sleep(0)
            except BaseException as error:
                _stop([*batch, *self._waiting], error)
                self._waiting.clear()
                raise

    def _next_batch(self) -> list[Job[Any]]:
        batch: list[Job[Any]] = []
        size = 0
        while self._waiting and len(batch) < _MOST_CALLS and size < _MOST_BYTES:
            job = self._waiting.popleft()
            if not (job.may_be_dropped and job.future.cancelled()):
                batch.append(job)
                size += job.size
        return batch

    async def _do(self, batch: Sequence[Job[Any]]) -> None:
        """Do all jobs of a batch; if one job prevents the others, do each job alone."""
        deadline = self._loop.time() + CALL_SECONDS
        try:
            await self._try(batch, deadline)
        except ServerError as error:
            left = [job for job in batch if not job.future.done()]
            if error.is_of_values and len(left) > 1:
                for job in left:
                    await self._do([job])
            elif error.state == LOCK_NOT_FREE and len(by_key := _by_key(left)) > 1:
                for jobs in by_key.values():
                    task = self._loop.create_task(self._do_apart(jobs))
                    self._apart.add(task)
                    task.add_done_callback(self._apart.discard)
            else:
                _fail(left, error)
        except (psycopg.Error, OSError, TimeoutError, StoreError) as error:
            _fail(batch, error)

    async def _do_apart(self, jobs: Sequence[Job[Any]]) -> None:
        """Do the jobs of one event, while the next batches go on.

        Another transaction may hold the rows of an event for seconds, for example a ledger's whose
        commit waits for a standby.
        """
        try:
            await self._do(jobs)
        except BaseException as error:
            _stop(jobs, error)
            raise

    async def _try(self, batch: Sequence[Job[Any]], deadline: float) -> None:
        """Do a batch; repeat it after a passing error, which is safe because calls have tokens."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    async with self._connections.connected() as connection:
                        await self._prepare(connection)
                        left = await self._do_new(connection, batch)
                    if left:
                        await self._do_steps(left)
            except ConflictError:
                pause = 0.0
            except ServerError as error:
                explained = self._format.explained(error)
                if explained is not error:
                    raise explained from None
                left = [job for job in batch if not job.future.done()]
                is_held = error.state == LOCK_NOT_FREE and len(_by_key(left)) > 1
                if is_held or not error.is_passing or self._loop.time() + pause >= deadline:
                    raise
            except (psycopg.OperationalError, OSError):
                if self._loop.time() + pause >= deadline:
                    raise
            else:
                return
            batch = [job for job in batch if not job.future.done()]
            await asyncio.sleep(pause)
            pause = min(max(_FIRST_PAUSE_SECONDS, 2 * pause), _LONGEST_PAUSE_SECONDS)

    async def _do_new(
        self, connection: AsyncConnection[Any], batch: Sequence[Job[Any]]
    ) -> list[Job[Any]]:
        """Do the jobs that need not read a record, and return the other jobs."""
        await self._measure(connection, batch)
        first: dict[DeliveryKey, Job[Any]] = {}
        for job in batch:
            first.setdefault(job.key, job)
        now = self._now()
        completed = [job for job in first.values() if isinstance(job, CompleteJob)]
        claimed = {digest_of(job.key): job for job in first.values() if isinstance(job, ClaimJob)}
        put = {digest_of(job.key): job for job in first.values() if isinstance(job, EnqueueJob)}
        if not _fit(put.values()):
            put = {}
        statements: list[Statement] = [self._format.guard]
        if completed:
            statements += self._claims.finish([digest_of(job.key) for job in completed], now)
            statements += self._keep(completed, now)
        if claimed:
            statements.append(self._claims_of(claimed, now))
        if put:
            given = [(digest, job.given, job.token, job.key_lock) for digest, job in put.items()]
            statements.append(self._inbox.put(given, now))
        if len(statements) == 1:
            return list(batch)
        results = await exchange(connection, statements)
        left = key_locks_left(results)
        done: set[Job[Any]] = set(completed)
        for job in completed:
            job.outcome = None
        if put:
            for digest, *parked in rows(results.pop()):
                left.update(key_lock for key_lock in parked if key_lock is not None)
                job = put[digest]
                job.outcome = Stored()
                job.room.add(len(job.given.body))
                done.add(job)
        if claimed:
            for (digest,) in rows(results.pop()):
                claim = claimed[digest]
                claim.outcome = Claimed(claim.key, claim.token, 1, _NONE, claim.lease)
                done.add(claim)
        try:
            await self._wake(connection, left)
        finally:  # these jobs are done, even if the connection is broken now
            for finished in done:
                _resolve(finished)
        return [job for job in batch if job not in done]

    def _keep(self, jobs: Iterable[Job[Any]], now: float | None) -> list[Statement]:
        """Return the statements that keep the deliveries of completed events."""
        kept = [job.kept for job in jobs if isinstance(job, CompleteAndKeepJob)]
        return self._handled.keep(kept, now) if kept else []

    def _claims_of(self, claimed: dict[bytes, ClaimJob], now: float | None) -> Statement:
        jobs = claimed.values()
        return self._claim_new, [
            dump_time(now),
            blobs(list(claimed)),
            texts(job.key.partition(":")[0] for job in jobs),
            texts(job.token for job in jobs),
            floats(job.lease for job in jobs),
            dump_float(self._claims.retention_seconds),
        ]

    async def _measure(self, connection: AsyncConnection[Any], batch: Sequence[Job[Any]]) -> None:
        """Find out how much the inboxes hold whose limits the batch must keep."""
        limited = [
            job for job in batch if isinstance(job, EnqueueJob) and job.limits != (None, None)
        ]
        for endpoint, limits in {job.given.endpoint: job.limits for job in limited}.items():
            room = self._rooms.get(endpoint)
            if room is None or room.must_be_counted(limits):
                await self._count(connection, endpoint)
            elif not room.is_fresh(self._loop.time()) and endpoint not in self._counting:
                counting = self._loop.create_task(self._count_again(endpoint, room))
                self._counting[endpoint] = counting
        for job in limited:
            job.room = self._rooms[job.given.endpoint]

    async def _count(
        self, connection: AsyncConnection[Any], endpoint: str, *settings: Statement
    ) -> None:
        started = self._loop.time()
        statements = [self._format.guard, *settings, self._inbox.size(endpoint)]
        *_, result = await exchange(connection, statements)
        [(depth, size)] = rows(result)
        now = self._loop.time()
        self._rooms[endpoint] = Room(depth, size, now, now - started)

    async def _count_again(self, endpoint: str, room: Room) -> None:
        """Count the events of an inbox, while the batches use the last count."""
        try:
            async with self._connections.connected(is_slow=True) as connection:
                await self._count(connection, endpoint, TAKE_LONGER)
        except (ServerError, psycopg.Error, OSError) as error:
            room.counted_at = self._loop.time()  # do not try again at once
            _log.debug("could not count the events of an inbox", exc_info=error)
        finally:
            del self._counting[endpoint]

    async def _do_steps(self, jobs: Sequence[Job[Any]]) -> None:
        """Do steps of ``life`` in one transaction."""
        keys = dict.fromkeys(job.key for job in jobs)
        heartbeats = frozenset(keys).difference(
            job.key for job in jobs if not (isinstance(job, StepJob) and job.is_heartbeat)
        )
        transaction: str | None = None
        try:
            async with self._connections.connected() as connection:
                transaction, moment, held = await self._claims.read(
                    connection, self._format.guard, keys, self._now(), heartbeats=heartbeats
                )
                for job in jobs:
                    one = held[job.key]
                    try:
                        # The step refuses to enqueue an event whose record is damaged. Store the
                        # delivery nevertheless: the record may have been set aside without a body,
                        # and a replay needs the body.
                        given = job.given if isinstance(job, EnqueueJob) else job.delivery
                        if given is not None and one.is_damaged:
                            one.delivery = given
                        answer, record = job.step(one.record, moment)
                        one.accept(record, given)
                        job.outcome, job.error = answer, None
                    except StoreError as error:
                        job.error = error
                keep = self._keep(jobs, self._now())
                left = await self._claims.write(connection, list(held.values()), moment, keep)
                await self._wake(connection, left)
        except (psycopg.OperationalError, OSError):
            if transaction is None or not await self._has_committed(transaction):
                raise
        for job in jobs:
            _resolve(job)

    async def _wake(self, connection: AsyncConnection[Any], key_locks: set[bytes]) -> None:
        """Make the first parked event of each free key lock due; see ``parking``."""
        if not key_locks:
            return
        statement = self._inbox.parking.wake(key_locks, self._now())
        try:
            _, result = await exchange(connection, [self._format.guard, statement])
        except ServerError as error:
            _log.debug("could not make the next event of a key due", exc_info=error)
            return
        for endpoint in {endpoint for (endpoint,) in rows(result)}:
            self._is_due(endpoint)

    async def _has_committed(self, transaction: str) -> bool:
        """Return whether a transaction has committed although its reply was lost.

        After a restart of the server or a failover this is unknown. Then the answer is False, and
        the calls are repeated, which is safe because calls have tokens.
        """
        asked: Statement = (STATUS, (transaction.encode(),))
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                async with self._connections.connected() as connection:
                    _, result = await exchange(connection, [self._format.guard, asked])
                [(status, _)] = rows(result)
            except ServerError as error:
                if not error.is_passing:
                    return False
            except (psycopg.OperationalError, OSError):
                pass
            else:
                if status != "in progress":
                    return bool(status == "committed")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _fit(jobs: Iterable[EnqueueJob]) -> bool:
    """Return whether all deliveries fit within the limits of their inboxes."""
    rooms: dict[str, Room] = {}
    for job in jobs:
        endpoint = job.given.endpoint
        room = rooms.get(endpoint)
        if room is None:
            room = rooms[endpoint] = replace(job.room)
        room.add(len(job.given.body))
        if not job.limits.allow(room.depth, room.size):
            return False
    return True


def _by_key(jobs: Iterable[Job[Any]]) -> dict[DeliveryKey, list[Job[Any]]]:
    found: dict[DeliveryKey, list[Job[Any]]] = {}
    for job in jobs:
        found.setdefault(job.key, []).append(job)
    return found


def _stop(jobs: Iterable[Job[Any]], cause: BaseException) -> None:
    failure = StoreError("the PostgreSQL store was stopped before it got an answer")
    failure.__cause__ = cause
    for job in jobs:
        job.error = failure
        _resolve(job)


def _fail(batch: Sequence[Job[Any]], error: BaseException) -> None:
    failure = failed(error)
    for job in batch:
        if not job.future.done():
            # Make an exception for each caller: a shared one would collect the tracebacks of all
            # callers.
            job.error = type(failure)(*failure.args)
            job.error.__cause__ = failure.__cause__
            _resolve(job)


def _resolve(job: Job[T]) -> None:
    if job.future.done():
        return
    if job.error is not None:
        job.future.set_exception(job.error)
    else:
        job.future.set_result(job.outcome)
