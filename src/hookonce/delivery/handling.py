"""Runs the handlers of one event: side by side, each under its key lock if it has a key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import AlreadyDone
from ..logs import get_logger
from ..outcome import DUPLICATE, HANDLED, STALE, Outcome
from ..routing.context import Context
from ..routing.handler import Handler
from ..routing.keyed import Keyed, TooLateError, watermark_of
from ..stores.values import Stale, Watermark, delivery_key
from ..watching.records import (
    HandlerFailed,
    HandlerFinished,
    HandlerSkipped,
    HandlerStarted,
    SkipReason,
)
from .calls import Calls, add_note, as_exception
from .key_lock_waits import BusyTooLong, KeyLockWaits
from .key_locks import KeyLockHolder
from .lease import Lease
from .origin import Origin, Queued, Replay
from .stored_key_lock import StoredKeyLock
from .verdict import Failure, LeaseLost, NotAcquired, Report

_log = get_logger("hookonce")


@dataclass(slots=True, eq=False, repr=False)
class Handling:
    """Runs the handlers of one attempt that have not succeeded, and reports their failures.

    Attributes:
        lease: the attempt's lease; remembers each success.
        event: the parsed event.
        origin: where the attempt comes from.
        calls: the calls of handlers that run now.
        last_chance: whether the event may not be delivered again if this attempt fails.
        has_begun: whether a handler has begun; the attempt counts only then.
        success: the answer if every handler succeeds: DUPLICATE if a ledger says that the replay
            was done before, STALE if a newer event has succeeded and so each was skipped.
        waits: waits for the key locks; None until a handler has a key.
    """

    lease: Lease
    event: Any
    origin: Origin
    calls: Calls
    last_chance: bool = False
    has_begun: bool = False
    success: Outcome = HANDLED
    waits: KeyLockWaits | None = None
    _stale_count: int = 0

    @property
    def is_replay(self) -> bool:
        """Whether an operator replays a dead letter or a handled event."""
        return isinstance(self.origin, Replay)

    async def run(self, absent: frozenset[str], *, last_chance: bool) -> Report | None:
        """Run every handler that has not succeeded; return a report unless all succeed.

        Args:
            absent: the outstanding handlers that this process does not have.
            last_chance: whether the event may not be delivered again if this attempt fails.
        """
        self.last_chance = last_chance
        finished, handlers = self.lease.finished, self.lease.handlers
        if finished:
            handlers = [handler for handler in handlers if handler.name not in finished]
        if len(handlers) == 1:
            handler = handlers[0]
            keyed = handler.keyed
            failure = await (
                self._run(handler) if keyed is None else self._run_with_key_lock(handler, keyed)
            )
            failures = [] if failure is None else [failure]
            del failure  # break a reference cycle: see calls.py
        else:
            failures = await self._run_all(handlers)
        if self._stale_count and self._stale_count == len(handlers):
            self.success = STALE
        return Report(failures, absent, self.has_begun) if failures or absent else None

    async def _run_all(self, handlers: Sequence[Handler]) -> list[Failure]:
        """Run handlers side by side, and return the failures in the order of registration."""
        if not handlers:
            return []
        tasks = [
            self.lease.loop.create_task(
                self._run(handler)
                if (keyed := handler.keyed) is None
                else self._run_with_key_lock(handler, keyed)
            )
            for handler in handlers
        ]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        return [failure for task in tasks if (failure := task.result()) is not None]

    async def _run(self, handler: Handler, holder: KeyLockHolder | None = None) -> Failure | None:
        """Run one handler in this task, unless another process may have claimed the event."""
        name, lease = handler.name, self.lease
        observers, sharing = lease.dependencies.observers, lease.dependencies.sharing
        if time.monotonic() >= lease.sure_until:
            await lease.extend()
            if time.monotonic() >= lease.sure_until:
                return Failure(name, LeaseLost())
        self.has_begun = True
        arguments: tuple[Any, ...] = (self.event,)
        if handler.takes_context:
            arguments += (self.context(name),)
        ledger = handler.ledger
        if ledger is not None and (store := sharing.store_of(ledger)) is not None:
            arguments += (partial(lease.finish, store, name),)
        if observers.look_closely:
            observers.notify_of(HandlerStarted, lease.delivery, name, lease.number, self.is_replay)
        started = time.perf_counter()  # more precise than uvloop's loop.time()
        try:
            error = await self.calls.call(name, handler.function, handler.is_async, arguments)
        except asyncio.CancelledError:
            error, seconds = RuntimeError("cancelled at shutdown"), time.perf_counter() - started
            observers.notify(HandlerFailed(lease.delivery, name, lease.number, seconds, error))
            raise
        seconds = time.perf_counter() - started
        if error is not None and not isinstance(error, AlreadyDone):
            if isinstance(error, TooLateError):
                self._skip(name, SkipReason.STALE)
                return None
            try:
                return self._note_failure(name, error, seconds)
            finally:
                del error  # break a reference cycle: see calls.py
        if error is not None and self.origin.generation:
            self.success = DUPLICATE  # the error is AlreadyDone, and a replay has no other handler
        if holder is not None:
            holder.succeed()
            await holder.record_success(lease_is_over=lambda: lease.is_over)
        if observers.look_closely:
            observers.notify_of(HandlerFinished, lease.delivery, name, lease.number, seconds)
        lease.note_success(name)
        return None

    def _note_failure(
        self, handler: str, error: Exception, seconds: float, note: str | None = None
    ) -> Failure:
        """Notify the observers of a failure, and return it."""
        if note is not None:
            add_note(error, note)
        self.lease.dependencies.observers.notify(
            HandlerFailed(self.lease.delivery, handler, self.lease.number, seconds, error)
        )
        add_note(error, f"raised by the handler {handler!r}")
        return Failure(handler, error)

    def _skip(self, handler: str, reason: SkipReason) -> None:
        """Count a handler as finished without running it."""
        observers, delivery = self.lease.dependencies.observers, self.lease.delivery
        is_stale = reason is SkipReason.STALE
        self._stale_count += is_stale
        _log.info(
            "%s is not run for %s: %s",
            handler,
            self.lease.key,
            "a newer event has succeeded" if is_stale else "it has succeeded already",
            extra=self.lease.log_fields(handler),
        )
        observers.notify_of(HandlerSkipped, delivery, handler, self.lease.number, reason)
        self.lease.note_success(handler)

    async def _run_with_key_lock(self, handler: Handler, keyed: Keyed) -> Failure | None:
        """Acquire the handler's key lock and run it, unless a newer event has succeeded."""
        name, lease = handler.name, self.lease
        try:
            key_lock = keyed.key_lock(self.event, lease.delivery.endpoint, name)
        except BaseException as raised:  # noqa: BLE001 - an error of the key function is a failure of the handler
            self.has_begun = True
            # Do not bind the failure to a name, which would make a reference cycle: see calls.py.
            return self._note_failure(name, as_exception(raised), 0.0, "while its key was computed")
        if key_lock is None:
            return await self._run(handler)
        queued = self.origin if isinstance(self.origin, Queued) else None
        holder = KeyLockHolder(
            lock=StoredKeyLock(
                dependencies=self.lease.dependencies,
                key_lock=key_lock,
                delivery=lease.delivery,
                attempt=lease.number,
                work=queued.work if queued else None,
            ),
            watermark=self._watermark() if keyed.is_latest else None,
            drop_ties=keyed.drop_ties,
            late=self.origin.late,
            event=lease.key if queued else None,
        )
        if self.waits is None:
            self.waits = KeyLockWaits(lease, self.origin, self.last_chance)
        others = lease.outstanding - {name}
        result = await self.waits.acquire(holder, others)
        if isinstance(result, NotAcquired):
            return Failure(name, result)
        if isinstance(result, BusyTooLong):
            text = f"another attempt held its key lock for {result.seconds:g} s"
            return self._note_failure(name, TimeoutError(text), 0.0)
        if isinstance(result, Stale):
            if queued is not None:
                await holder.try_release()  # make the next waiting event due
            is_done = result.watermark.event_id == self.event.id
            self._skip(name, SkipReason.DONE if is_done else SkipReason.STALE)
            return None
        lease.extend_with(holder)
        try:
            return await self._run(handler, holder)
        finally:
            await holder.end(self.calls.under_way)

    def _watermark(self) -> Watermark:
        watermark, generation = watermark_of(self.event), self.origin.generation
        return watermark._replace(generation=generation) if generation else watermark

    def context(self, handler: str) -> Context:
        """Return the context that a handler receives."""
        key, generation = self.lease.key, self.origin.generation
        if generation:  # in a replay, the lease has a key that is not the event's key
            key = delivery_key(self.lease.delivery.endpoint, self.event.id)
        return Context(
            key=key,
            endpoint=self.lease.delivery.endpoint,
            event_id=self.event.id,
            event_type=self.event.type,
            handler=handler,
            attempt=self.lease.number,
            delivery_attempt=self.origin.delivery_attempt,
            last_chance=self.last_chance,
            is_replay=self.is_replay,
            received_unix=self.lease.delivery.received_unix,
            body=self.lease.delivery.body,
            generation=generation,
            late=self.origin.late,
            new_key=self.origin.new_key,
        )
