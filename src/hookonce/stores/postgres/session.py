"""The connections and tasks of one event loop in one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection

from ...errors import StoreError
from ...logs import get_logger
from ..formats import SEEN_SECONDS
from .batch import CALL_SECONDS, Batches
from .claims import ClaimsTable, ConflictError
from .connection import Connections, Statement, exchange
from .faults import ServerError, failed
from .handled import HandledTable
from .inbox import InboxTable
from .schema import SchemaFormat
from .settings import PostgresSettings
from .wake import Wakeups
from .wire import rows

_log = get_logger("hookonce.store")

T = TypeVar("T")
Call = Callable[[AsyncConnection[Any]], Awaitable[T]]

_LOOK_BACK_SECONDS = 65.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 0.25
_SETTINGS = {
    "lock_timeout": "1s",
    "statement_timeout": "2500ms",
    "idle_in_transaction_session_timeout": "5s",
}

# Count the forks, because a forked process must not use the connections of its parent.
_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - the count belongs to the process, not to a store
    _forks += 1


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_count_fork)


class Session:
    """The connections of a store, and the calls that use them.

    Args:
        flushed: called for each batch with the number of calls and the seconds it took.
        used: called every ``SEEN_SECONDS`` while there are calls.
        hears: called with an endpoint when one of its events has become due, by a call of this
            session or by an announcement of another process.
    """

    def __init__(
        self,
        settings: PostgresSettings,
        formats: tuple[int, ...],
        flushed: Callable[[int, float], None],
        used: Callable[[], None],
        hears: Callable[[str], object],
    ) -> None:
        self._loop, self._forks = asyncio.get_running_loop(), _forks
        self._clock = settings.clock
        schema = settings.schema
        self._used = used
        self._prepared_at = float("-inf")
        self._preparing = asyncio.Lock()
        self._fetches: dict[str, asyncio.Task[Any]] = {}
        self._hears, self._announces = hears, settings.listen
        self._searches: set[asyncio.Task[None]] = set()
        self._connections = Connections(settings.source)
        self.wakeups: Wakeups = Wakeups(schema, self._connections.alone, self.ask, hears)
        self.format: SchemaFormat = SchemaFormat(
            schema, formats, {"synchronous_commit": settings.commit, **_SETTINGS}
        )
        self.claims: ClaimsTable = ClaimsTable(schema, settings.retention)
        self.inbox: InboxTable = InboxTable(schema, self.claims)
        self.batches: Batches = Batches(
            schema,
            self._connections,
            self.claims,
            self.inbox,
            HandledTable(schema),
            self.format,
            self.prepare,
            flushed,
            self.now,
            self.signal,
        )

    @property
    def is_ours(self) -> bool:
        """Whether the running event loop of this process has created the session."""
        return self._loop is asyncio.get_running_loop() and self._forks == _forks

    def now(self) -> float | None:
        """Return the time of the store's own clock; None if the store uses the server's clock."""
        return None if self._clock is None else self._clock()

    async def prepare(self, connection: AsyncConnection[Any]) -> None:
        """Create the tables at the first use; record from time to time that this process runs."""
        if self._loop.time() - self._prepared_at < SEEN_SECONDS:
            return
        async with self._preparing:
            if self._loop.time() - self._prepared_at >= SEEN_SECONDS:
                await self.format.prepare(connection, self.now())
                self._prepared_at = self._loop.time()
                self._used()

    async def call(
        self, call: Call[T], *, is_prepared: bool = True, seconds: float = CALL_SECONDS
    ) -> T:
        """Do a call on a connection, and repeat it after a passing error; raises StoreError."""
        deadline = self._loop.time() + seconds
        is_slow, pause = seconds > CALL_SECONDS, _FIRST_PAUSE_SECONDS
        connected = self._connections.connected
        while True:
            error: Exception
            try:
                async with asyncio.timeout_at(deadline), connected(is_slow=is_slow) as lent:
                    if is_prepared:
                        await self.prepare(lent)
                    return await call(lent)
            except ConflictError:
                continue
            except ServerError as raised:
                error = self.format.explained(raised)
                is_passing = raised.is_passing
            except (psycopg.Error, OSError) as raised:
                error, is_passing = raised, not isinstance(raised, TimeoutError)
            if not is_passing or self._loop.time() + pause >= deadline:
                failure = failed(error)
                # Keep the cause that `failed` has set: a TimeoutError's own cause has frames of
                # psycopg, which hold the password.
                raise failure from failure.__cause__
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def call_of_worker(self, worker: str, call: Call[T]) -> T:
        """Do a call after the worker's previous call; a cancelled caller does not cancel the call.

        A repeated fetch must find the events that the cancelled fetch has claimed.
        """
        last = self._fetches.get(worker)
        if last is not None and not last.done():
            await asyncio.wait([last])
        task = self._loop.create_task(self.call(call), name="hookonce-postgres-fetch")
        task.add_done_callback(_retrieve)
        self._fetches[worker] = task
        return await asyncio.shield(task)

    def look_back(self, endpoint: str) -> None:
        """Look from time to time for events of the inbox that the fetches miss.

        These became visible late, or are parked although their key lock is free. At the first call,
        and after the clock was set back, also correct due times.
        """
        now = self._loop.time()
        if self.inbox.must_correct(endpoint):
            self._search(self._correct(endpoint))
        if self.inbox.bounds.must_look_back(endpoint, now):
            self._search(self._look_back_at(endpoint))
        if self.inbox.parking.must_walk(now):
            self._search(self._walk())

    def _search(self, search: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(search)
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    async def _correct(self, endpoint: str) -> None:
        async def correct(connection: AsyncConnection[Any]) -> None:
            await self.inbox.correct(connection, self.format.guard, self.now, endpoint)

        try:
            await self.call(correct, seconds=_LOOK_BACK_SECONDS)
        except StoreError as error:
            self.inbox.correct_again(endpoint)
            _log.warning("could not correct due times of the inbox: %s", error)

    async def _look_back_at(self, endpoint: str) -> None:
        statements = self.inbox.due_before(endpoint)
        try:
            *_, found = await self.ask(*statements, seconds=_LOOK_BACK_SECONDS)
        except StoreError as error:
            _log.warning("could not look for events that were stored late: %s", error)
            return
        for (due,) in found:
            self.inbox.bounds.found(endpoint, due)

    async def _walk(self) -> None:
        """Make parked events due whose key lock nobody uses; one step of ``Parking.walk``."""
        parking, started = self.inbox.parking, self._loop.time()
        found: list[tuple[Any, ...]] = []
        try:
            [found] = await self.ask(parking.walk(self.now()))
            if free := [key_lock for key_lock, in_use in found if not in_use]:
                await self.wake(free)
        except StoreError as error:
            _log.warning("could not look for events whose key lock is free: %s", error)
        finally:
            now = self._loop.time()
            parking.walked([key_lock for key_lock, _ in found], now, now - started)

    async def wake(self, key_locks: Iterable[bytes]) -> None:
        """Make the first parked event of each free key lock due; raises StoreError."""
        [endpoints] = await self.ask(self.inbox.parking.wake(key_locks, self.now()))
        for (endpoint,) in set(endpoints):
            self.signal(endpoint)

    def signal(self, endpoint: str) -> None:
        """Wake the workers of all processes that wait for an event of an endpoint."""
        self._hears(endpoint)
        if self._announces:
            self.wakeups.notify(endpoint)

    async def ask(
        self, *statements: Statement, seconds: float = CALL_SECONDS
    ) -> list[list[tuple[Any, ...]]]:
        """Run statements in one transaction, and return the rows of each; raises StoreError."""

        async def ask(connection: AsyncConnection[Any]) -> list[list[tuple[Any, ...]]]:
            _, *results = await exchange(connection, [self.format.guard, *statements])
            return [rows(result) if result.nfields else [] for result in results]

        return await self.call(ask, seconds=seconds)

    async def aclose(self) -> None:
        """Finish the calls in flight and close the connections."""
        searches = set(self._searches)
        for search in searches:
            search.cancel()
        if searches:
            await asyncio.wait(searches)
        if self._fetches:
            await asyncio.wait(self._fetches.values())
        await self.batches.aclose()
        await self.wakeups.aclose()  # after the calls, because they announce due events
        await self._connections.aclose()


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Read the error of a call whose caller may be gone, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
