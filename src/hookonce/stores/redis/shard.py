"""Calls one shard: each iteration of the event loop sends its steps in one call of the Lua script.

One batch is in flight at a time; steps that are queued during this time form the next batch. A
cancelled caller does not cancel its batch. A batch may run twice if a reply is lost: every step
recognises its token or nonce, and answers as it did the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import NoScriptError, RedisError, ResponseError

from ...clock import system_clock
from ...errors import StoreError
from ..formats import FormatError, unknown
from .codec import SCRIPT, SCRIPT_SHA, EncodedStep, bulk, decode
from .connection import Command, Servers, exchange, without_frames
from .faults import explained, is_passing
from .settings import RedisSettings

CALL_SECONDS = 3.0
"""The time limit of a call and its retries: a delivery must be answered even without a server."""

# Limits of one script call, which blocks the server while it runs.
_MOST_STEPS = 256
_MOST_BYTES = 1024 * 1024
# Repeat a call on a new connection if no reply has begun to arrive within this time.
_TRY_SECONDS = 1.0
# A call that waits for durability has more time: with appendfsync everysec, a server may answer up
# to a second after the write.
_DURABLE_TRY_SECONDS = 2.5
_PART_TO_WAIT = 0.8
# The server answers this PING before the script. The reply to the PING shows that the script's
# reply will come, even if the script's reply is long and slow.
_PRELUDE = b"*1\r\n$4\r\nPING\r\n"
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.25


@dataclass(eq=False, slots=True)
class _Job:
    step: EncodedStep
    future: asyncio.Future[Any]
    deadline: float
    may_be_dropped: bool


class Shard:
    """Sends the steps of one shard, within one event loop.

    Args:
        base: the prefix of the shard's keys.
        flushed: called for each batch with the number of steps and the seconds it took.
        agree: awaited before the first batch; raises StoreError if the shard must not be used.

    Attributes:
        now: Unix seconds by the script's clock in the last batch.
        format: the number of the record format in the last batch.
    """

    def __init__(
        self,
        base: bytes,
        servers: Servers,
        flushed: Callable[[int, float], None],
        settings: RedisSettings,
        agree: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.now: float = 0.0
        self._agree = agree
        self._base = base
        self._servers = servers
        self._flushed = flushed
        self._safety = settings.safety
        self._clock = settings.clock
        self._settings = settings
        self._use(settings.formats[-1])
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Job] = deque()
        self._task: asyncio.Task[None] | None = None
        self._pool: ConnectionPool | None = None
        self._connection: AbstractConnection

    @property
    def unix_time(self) -> float:
        """Unix seconds by this machine's clock, or by the clock that was given."""
        return self.now if self._clock is not None else system_clock()

    @property
    def clock_offset(self) -> float:
        """Seconds by which this machine's clock is ahead of the script's clock."""
        return self.unix_time - self.now

    def run(self, step: EncodedStep, *, may_be_dropped: bool = False) -> asyncio.Future[Any]:
        """Queue a step, and return a future of its reply.

        Args:
            may_be_dropped: skip the step if its caller is cancelled before it is sent: a claim
                would have no owner. A completion is never skipped: the handlers have run.

        Raises:
            StoreError: from the future: the step was not done, or its outcome is unknown.
        """
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(_Job(step, future, loop.time() + CALL_SECONDS, may_be_dropped))
        if self._task is None or self._task.done():
            # The task starts in the loop's next iteration, so all steps of this iteration share a
            # batch.
            self._task = loop.create_task(self._work(), name="hookonce-redis-batches")
        return future

    async def aclose(self) -> None:
        """Finish the calls in flight, and give the connection back to its pool."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        await self._let_go()

    async def _work(self) -> None:
        while batch := self._next_batch():
            started = self._loop.time()
            try:
                # The batch gets the deadline of its first step, because that deadline is the
                # earliest.
                now, *values = await self._send([job.step for job in batch], batch[0].deadline)
            except StoreError as error:
                for job in batch:
                    _fail(job, error)
            except BaseException as error:
                failure = StoreError("the Redis store was stopped before it got an answer")
                failure.__cause__ = error
                for job in [*batch, *self._waiting]:
                    _fail(job, failure)
                self._waiting.clear()
                raise
            else:
                # Notify the listeners in a callback, so that an error of a listener stays out of
                # this method.
                self._loop.call_soon(self._flushed, len(batch), self._loop.time() - started)
                self.now = float(now)
                for job, value in zip(batch, values, strict=True):
                    if value.__class__ is list and value and value[0] == b"!":
                        _fail(job, _refused(value))
                    elif not job.future.done():
                        job.future.set_result(value)

    def _next_batch(self) -> list[_Job]:
        """Return the steps to send in one call; an empty list if no step waits."""
        batch: list[_Job] = []
        size = 0
        while self._waiting and len(batch) < _MOST_STEPS:
            job = self._waiting[0]
            if job.may_be_dropped and job.future.cancelled():
                self._waiting.popleft()
                continue
            size += len(job.step.request)
            if batch and size > _MOST_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _send(self, steps: Sequence[EncodedStep], deadline: float) -> list[Any]:
        """Return the script's time and the answer to each step, or raise StoreError."""
        if self._agree is not None:
            await self._agree()
            self._agree = None
        try_seconds = _DURABLE_TRY_SECONDS if self._safety.needs_wait else _TRY_SECONDS
        # A repeated call must be identical to the first call, including the time.
        now = b"" if self._clock is None else repr(self._clock()).encode()
        pause = 0.0
        while True:
            seconds = min(deadline - self._loop.time(), try_seconds)
            try:
                async with asyncio.timeout(seconds) as limit:
                    heard = partial(limit.reschedule, deadline)
                    answer = await self._try(steps, now, seconds, heard)
                if answer[0] != b"M":
                    return answer
                # The script has done nothing: repeat the call with the format of the shard.
                self._use(self._known(*answer[1:]))
                continue
            except (RedisError, OSError, TimeoutError) as error:
                if not is_passing(error) or self._loop.time() + pause >= deadline:
                    text = f"the Redis store failed: {explained(error)}"
                    raise StoreError(text) from without_frames(error)
            self._servers.suspect()
            await asyncio.sleep(pause)
            pause = min(max(_FIRST_PAUSE_SECONDS, 2 * pause), _LONGEST_PAUSE_SECONDS)

    async def _try(
        self, steps: Sequence[EncodedStep], now: bytes, seconds: float, heard: Callable[[], None]
    ) -> list[Any]:
        safety = self._safety
        # The server must end its wait, and reply, before our own time limit ends.
        wait = [safety.command(_PART_TO_WAIT * seconds)] if safety.needs_wait else []
        try:
            answer, waited = await self._exchange(steps, now, wait, heard)
        except BaseException:
            # Late replies may still arrive on this connection, so the next try needs another
            # connection.
            await self._let_go()
            raise
        for reply in waited:
            safety.check(reply)
        return answer

    async def _exchange(
        self,
        steps: Sequence[EncodedStep],
        now: bytes,
        wait: Sequence[Command],
        heard: Callable[[], None],
    ) -> tuple[list[Any], list[Any]]:
        """Call the script; return its reply, and the replies to the commands in ``wait``."""
        connection = await self._connected()
        for script in ((b"EVALSHA", SCRIPT_SHA), (b"EVAL", SCRIPT)):
            commands: list[Command] = [_PRELUDE, self._call(script, now, steps), *wait]
            _, answer, *waited = await exchange(connection, commands, heard=heard)
            if not isinstance(answer, NoScriptError):
                break
        if isinstance(answer, Exception):
            raise answer
        for reply in answer[1:]:
            if isinstance(reply, list) and reply and reply[0] == b"!":
                error = ResponseError(decode(reply[1]))
                if is_passing(error):
                    raise error
                reply[1] = explained(error).encode()
        return answer, waited

    def _known(self, found: bytes, shards: bytes) -> int:
        """Return the format of the shard; raise FormatError if this process must not use it."""
        own = len(self._settings.bases)
        if shards != b"%d" % own:
            raise FormatError(
                f"the store has {decode(shards)} shards, and this process is set to {own}; set"
                f" shards={decode(shards)} in every process"
            )
        number = int(found) if found.isdigit() else 0
        if number not in self._settings.formats:
            raise unknown(number, self._settings.formats)
        return number

    def _use(self, number: int) -> None:
        """Use this format in all calls from now on."""
        self.format = number
        settings = self._settings
        # The arguments that are the same in every call; prelude.lua explains them.
        arguments = [
            repr(settings.retention).encode(),
            settings.channel,
            b"1" if self._safety.needs_wait else b"0",
            b"%d" % number,
            b"%d" % len(settings.bases),
            b"seen:%d" % settings.formats[-1],
        ]
        self._arguments, self._words = b"".join(map(bulk, arguments)), len(arguments)

    async def _connected(self) -> AbstractConnection:
        """Return the shard's connection; the next batch uses the same connection."""
        if self._pool is None:
            pool = await self._servers.pool(self._base)
            self._connection = await pool.get_connection()  # type: ignore[no-untyped-call]  # redis-py has no annotation
            self._pool = pool
        return self._connection

    async def _let_go(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._connection.disconnect(nowait=True)
            await pool.release(self._connection)

    def _call(self, script: tuple[bytes, ...], now: bytes, steps: Sequence[EncodedStep]) -> bytes:
        head = (*script, b"1", self._base, now)
        count = len(head) + self._words + sum(step.words for step in steps)
        requests = (step.request for step in steps)
        return b"".join([b"*%d\r\n" % count, *map(bulk, head), self._arguments, *requests])


def _refused(answer: Sequence[bytes]) -> StoreError:
    return StoreError(f"the Redis server refused a step: {decode(answer[1])}")


def _fail(job: _Job, error: StoreError) -> None:
    if not job.future.done():
        # Make an exception for each caller: a shared one would collect the tracebacks of all
        # callers.
        failure = type(error)(*error.args)
        failure.__cause__ = error.__cause__
        job.future.set_exception(failure)
