"""Trials: a changed handler runs on real events, and its transactions are rolled back.

A trial is no attempt. It claims no event and records nothing in the store, calls no error hook and
notifies no observer. It leaves the ledger's rows and watermarks as they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..delivery.calls import Calls, as_exception
from ..delivery.dependencies import Dependencies
from ..delivery.key_locks import KeyLockHolder
from ..delivery.lease import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS
from ..delivery.stored_key_lock import StoredKeyLock
from ..effects.once import EndedEarlyError
from ..effects.trial import RolledBack
from ..errors import AlreadyDone, PayloadError
from ..events import Event
from ..inbox.replay_id import ReplayId
from ..inbox.waiting import filter_of
from ..routing.context import Context
from ..routing.handler import Handler
from ..stores.filters import EventFilter, select
from ..stores.handled import HandledStore
from ..stores.protocols import Store
from ..stores.values import Acquired, DeadReason, Delivery, delivery_key
from .ledgers import check_ledgers, ledgers_in_use

_PAGE = 100
_LOOK_SECONDS = 0.05
"""How often a trial checks the time limits of its handler."""


class Kept(StrEnum):
    """The part of the store that keeps an event with its body."""

    HANDLED = "handled"
    """The handled events, which ``keep_handled`` keeps."""
    DEAD = "dead"
    """The dead letters and the kept deliveries."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a handler in a trial.

    Attributes:
        event_id: the webhook-id of the event.
        event_type: the type of the event.
        kept: where the store keeps the event.
        error: what the handler has raised, or what is wrong with its event or its transaction; None
            after a success.
        seconds: how long the handler ran.
        rows: how many rows the handler changed before the rollback, by table; SQLite knows only
            their sum, as ``all tables``. None after an error, without a ledger, and if the database
            does not count changes.
        has_committed: whether the handler has committed its transaction itself, so that a part of
            its changes is in the database.
    """

    event_id: str
    event_type: str
    kept: Kept
    error: Exception | None = field(default=None, repr=False)
    seconds: float = 0.0
    rows: Mapping[str, int] | None = None
    has_committed: bool = False

    @property
    def is_last(self) -> bool:
        """Whether this trial must be the last, because the handler ends its transactions itself."""
        return self.has_committed or isinstance(self.error, EndedEarlyError)


class Trials:
    """Runs trials for one receiver.

    Args:
        dependencies: the dependencies of the receiver.
        store: holds the events.
    """

    def __init__(self, dependencies: Dependencies, store: Store) -> None:
        self._dependencies = dependencies
        self._store = store

    async def run(
        self,
        name: str,
        *,
        event_type: str | None,
        since: float | datetime | None,
        where: str | Sequence[str],
        kept: Kept | None,
        for_real: bool,
    ) -> AsyncGenerator[Trial, None]:
        """Yield the trial of each event; see ``Receiver.try_out``."""
        handler = self._handler(name, for_real=for_real)
        wanted = filter_of(self._dependencies.endpoint, event_type, None, since=since, where=where)
        retention: float | None = getattr(self._store, "retention_seconds", None)
        file: Path | None = getattr(self._store, "path", None)
        async with ledgers_in_use([handler]):
            await check_ledgers([handler], retention, file)
            tried: set[str] = set()
            async for where_kept, delivery, reason in self._deliveries(wanted, kept):
                event_id = ReplayId.event_of(delivery.event_id)
                if event_id in tried:  # an event and its failed replay may both be listed
                    continue
                tried.add(event_id)
                trial = await self._try(
                    handler, delivery._replace(event_id=event_id), where_kept, reason
                )
                if trial is None:
                    continue
                yield trial
                if trial.is_last:  # the handler commits: do not repeat its effect for more events
                    return
                # Sleep as long as the trial took, so that live traffic can take the database's
                # locks for at least half of the time.
                await asyncio.sleep(trial.seconds)

    def _handler(self, name: str, *, for_real: bool) -> Handler:
        handlers = self._dependencies.handler_table.handlers
        handler = next((one for one in handlers if one.name == name), None)
        if handler is None:
            known = ", ".join(one.name for one in handlers) or "none"
            raise LookupError(f"there is no handler {name!r}; there is {known}")
        if handler.ledger is None and not for_real:
            raise ValueError(
                f"{name} runs without a ledger, so nothing can roll its effects back; register it"
                " with within=…, or let the effects happen with for_real=True"
            )
        if handler.ledger is not None and for_real:
            raise ValueError(
                f"{name} runs within a ledger, so a trial is rolled back; leave out for_real, or"
                " replay the handled events"
            )
        return handler

    async def _deliveries(
        self, wanted: EventFilter, kept: Kept | None
    ) -> AsyncIterator[tuple[Kept, Delivery, DeadReason | None]]:
        """Yield deliveries with their bodies: first of dead letters, then of handled events.

        Leave out events that arrive during the trials: with them the trials might never end.
        """
        store, before = self._store, self._dependencies.clock()
        if kept in {None, Kept.DEAD}:
            async for dead in _loaded(store.dead_letters, store.dead_letter, wanted, before):
                yield Kept.DEAD, dead.delivery, dead.reason
        if kept in {None, Kept.HANDLED} and isinstance(store, HandledStore):
            async for done in _loaded(store.handled_events, store.handled_event, wanted, before):
                yield Kept.HANDLED, done.delivery, None

    async def _try(
        self, handler: Handler, delivery: Delivery, kept: Kept, reason: DeadReason | None
    ) -> Trial | None:
        """Return the trial of an event; None if the event is not for the handler."""
        table, event_type = self._dependencies.handler_table, delivery.event_type
        if event_type is not None and handler not in table.of_type(event_type):
            return None
        try:
            event = table.parser.parse(delivery.body, delivery.event_id)
        except PayloadError as unreadable:
            if event_type is None or reason is DeadReason.UNREADABLE:
                return None  # the event may be for another handler
            return Trial(delivery.event_id, event_type, kept, unreadable)
        if handler not in table.find(event):
            return None
        found = RolledBack()
        error = await self._run(handler, event, delivery, found)
        return Trial(
            event.id, event.type, kept, error, found.seconds, found.rows, found.has_committed
        )

    async def _run(
        self, handler: Handler, event: Event[Any], delivery: Delivery, found: RolledBack
    ) -> Exception | None:
        """Run a handler under its key lock, and return what it has raised."""
        dependencies, loop = self._dependencies, asyncio.get_running_loop()
        limits = dependencies.limits
        context = Context(
            key=delivery_key(dependencies.endpoint, event.id),
            endpoint=dependencies.endpoint,
            event_id=event.id,
            event_type=event.type,
            handler=handler.name,
            attempt=1,
            delivery_attempt=None,
            last_chance=False,
            is_replay=True,
            received_unix=delivery.received_unix,
            body=delivery.body,
        )
        function: Callable[..., Any] = handler.function
        arguments: tuple[object, ...] = (event, context) if handler.takes_context else (event,)
        if handler.roll_back is not None:
            function, arguments = handler.roll_back, (event, context, found)
        key_lock = None
        try:
            if handler.keyed is not None:
                key_lock = handler.keyed.key_lock(event, context.endpoint, handler.name)
        except BaseException as raised:  # noqa: BLE001 - an error of the key function is a failure of the handler
            return as_exception(raised)
        calls = Calls(dependencies.threads, limits.handler_timeout_seconds, loop)
        async with AsyncExitStack() as stack:
            holder = None
            if key_lock is not None:
                lock = StoredKeyLock(
                    dependencies=dependencies, key_lock=key_lock, delivery=delivery, attempt=1
                )
                try:
                    holder = await stack.enter_async_context(_held(lock, calls))
                except TimeoutError as busy:
                    return busy
            began = time.perf_counter()
            running = calls.call(handler.name, function, handler.is_async, arguments)
            error = await _watched(running, calls, holder, limits.lease_seconds)
            if handler.roll_back is None:
                found.seconds = time.perf_counter() - began
        return None if isinstance(error, AlreadyDone) else error


async def _loaded(
    find: Callable[..., Awaitable[Sequence[Any]]],
    load: Callable[..., Awaitable[Any]],
    wanted: EventFilter,
    before: float,
) -> AsyncIterator[Any]:
    """Yield each listed event that was received before ``before``, with its body, oldest first."""
    after: str | None = None
    while page := await select(find, load, wanted, after=after, limit=_PAGE):
        for listed in page:
            if listed.delivery.received_unix < before:
                event = await load(listed.delivery.key)
                if event is not None:  # the event may have been deleted since the listing
                    yield event
        after = page[-1].place


@asynccontextmanager
async def _held(lock: StoredKeyLock, calls: Calls) -> AsyncIterator[KeyLockHolder]:
    """Hold a key lock during the block, without a watermark.

    Raises:
        StoreError: the store failed.
        TimeoutError: another attempt has held the lock for as long as a handler may run.
    """
    holder = KeyLockHolder(lock=lock, watermark=None, drop_ties=False, event=None)
    pause, seconds = FIRST_POLL_SECONDS, lock.dependencies.limits.handler_timeout_seconds
    due = time.monotonic() + seconds
    try:
        while not isinstance(await holder.acquire(), Acquired):
            if time.monotonic() >= due:
                raise TimeoutError(f"another attempt held its key lock for {seconds:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL_SECONDS)
        yield holder
    finally:
        await holder.end(calls.under_way)


async def _watched(
    running: Awaitable[Exception | None],
    calls: Calls,
    holder: KeyLockHolder | None,
    lease_seconds: float,
) -> Exception | None:
    """Await the call of a handler: enforce its time limit, and extend the lease of its lock."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(running)
    extend_at = loop.time() + lease_seconds / 3
    try:
        while not (await asyncio.wait({task}, timeout=_LOOK_SECONDS))[0]:
            now = loop.time()
            calls.enforce_limits(now, lambda handler: {"handler": handler})
            if holder is not None and now >= extend_at:
                extend_at = now + lease_seconds / 3
                await holder.extend()
    except asyncio.CancelledError:
        calls.stop()
        task.cancel()
        await asyncio.wait({task})
        raise
    return task.result()
