"""Runs the handlers of one event: side by side, each under its key lock if it has a key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import AlreadyDone
from ..logs import get_logger
from ..outcome import HANDLED, STALE, Outcome
from ..routing.context import Context
from ..routing.handler import ErrorHook, Handler
from ..routing.keyed import Keyed, TooLateError, watermark_of
from ..stores.values import Stale
from ..watching.records import (
    HandlerFailed,
    HandlerFinished,
    HandlerSkipped,
    HandlerStarted,
    SkipReason,
)
from .calls import Calls, add_note, as_exception
from .dependencies import Dependencies
from .key_lock_waits import KeyLockWaits
from .key_locks import KeyLockHolder
from .lease import Lease
from .origin import Origin, Queued, Replay
from .verdict import Failure, LeaseLost, NotAcquired, Report

_log = get_logger("hookonce")


@dataclass(slots=True, eq=False, repr=False)
class Handling:
    """The handlers of one attempt: runs those that have not succeeded, and reports.

    Attributes:
        dependencies: what all attempts of the receiver share.
        lease: the attempt's lease; remembers each success.
        event: the parsed event.
        origin: where the attempt comes from.
        calls: the handlers that run now.
        last_chance: whether the event may not be delivered again if this attempt fails.
        success: the answer if every handler succeeds: STALE if a newer event has succeeded and so
            each was skipped.
        waits: waits for the key locks; None until a handler has a key.
    """

    dependencies: Dependencies
    lease: Lease
    event: Any
    origin: Origin
    calls: Calls
    last_chance: bool = False
    success: Outcome = HANDLED
    waits: KeyLockWaits | None = None
    _most_finished: int = 0
    _stale_count: int = 0

    @property
    def is_replay(self) -> bool:
        """Whether an operator replays a dead letter."""
        return isinstance(self.origin, Replay)

    async def run(self, absent: frozenset[str]) -> Report | None:
        """Run every handler that has not succeeded; return a report unless all succeed.

        Args:
            absent: the outstanding handlers that this process does not have.
        """
        lease, handlers = self.lease, self.lease.handlers
        if lease.finished:
            handlers = [handler for handler in handlers if handler.name not in lease.finished]
        self._most_finished = len(lease.finished) + len(handlers)
        if len(handlers) == 1:
            handler, keyed = handlers[0], handlers[0].keyed
            failure = await (
                self._run(handler) if keyed is None else self._run_with_key_lock(handler, keyed)
            )
            failures = [] if failure is None else [failure]
            del failure  # a reference cycle: see calls.py
        else:
            failures = await self._run_all(handlers)
        if self._stale_count and self._stale_count == len(handlers):
            self.success = STALE
        return Report(failures, absent) if failures or absent else None

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
        """Run one handler in this task, if no other process can have the event by now."""
        name, delivery, observers = handler.name, self.lease.delivery, self.dependencies.observers
        if time.monotonic() >= self.lease.sure_until and not await self.lease.extend():
            return Failure(name, LeaseLost())
        self.lease.has_begun = True
        arguments = (self.event, self.context(name)) if handler.takes_context else (self.event,)
        if observers.look_closely:
            observers.notify_of(HandlerStarted, delivery, name, self.lease.number, self.is_replay)
        started = time.perf_counter()  # more precise than uvloop's loop.time()
        try:
            error = await self.calls.call(name, handler.function, handler.is_async, arguments)
        except asyncio.CancelledError:
            error, seconds = RuntimeError("cancelled at shutdown"), time.perf_counter() - started
            observers.notify(HandlerFailed(delivery, name, self.lease.number, seconds, error))
            raise
        seconds = time.perf_counter() - started
        if error is not None and not isinstance(error, AlreadyDone):
            if isinstance(error, TooLateError):
                self._skip(name, SkipReason.STALE)
                return None
            try:
                return self._note_failure(name, error, seconds)
            finally:
                del error  # a reference cycle: see calls.py
        if holder is not None:
            holder.succeed()
            await holder.record_success(lease_is_over=lambda: self.lease.is_over)
        if observers.look_closely:
            observers.notify_of(HandlerFinished, delivery, name, self.lease.number, seconds)
        self._finish(name)
        return None

    def _note_failure(
        self, handler: str, error: Exception, seconds: float, note: str | None = None
    ) -> Failure:
        """Notify the observers of a failure, and return it."""
        if note is not None:
            add_note(error, note)
        self.dependencies.observers.notify(
            HandlerFailed(self.lease.delivery, handler, self.lease.number, seconds, error)
        )
        add_note(error, f"raised by the handler {handler!r}")
        return Failure(handler, error)

    def _skip(self, handler: str, reason: SkipReason) -> None:
        """Count a handler as finished without running it."""
        observers, delivery = self.dependencies.observers, self.lease.delivery
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
        self._finish(handler)

    def _finish(self, handler: str) -> None:
        self.lease.finished.add(handler)
        if len(self.lease.finished) < self._most_finished:
            self.lease.checkpoint_soon()

    async def _run_with_key_lock(self, handler: Handler, keyed: Keyed) -> Failure | None:
        """Acquire the handler's key lock and run it, unless a newer event has succeeded."""
        name, lease = handler.name, self.lease
        try:
            key_lock = keyed.key_lock(self.event, lease.delivery.endpoint, name)
        except BaseException as raised:  # noqa: BLE001 - an error of the key function is a failure of the handler
            lease.has_begun = True
            # Bind the failure to no name: a reference cycle, see calls.py.
            return self._note_failure(
                name, as_exception(raised), 0.0, "while its key was asked for"
            )
        if key_lock is None:
            return await self._run(handler)
        queued = self.origin if isinstance(self.origin, Queued) else None
        holder = KeyLockHolder(
            dependencies=self.dependencies,
            key_lock=key_lock,
            watermark=watermark_of(self.event) if keyed.is_latest else None,
            drop_ties=keyed.drop_ties,
            delivery=lease.delivery,
            attempt=lease.number,
            event=lease.key if queued else None,
            work=queued.work if queued else None,
        )
        if self.waits is None:
            self.waits = KeyLockWaits(lease, self.origin, self.last_chance)
        others = self._most_finished - len(lease.finished) - 1
        result = await self.waits.acquire(holder, others)
        if isinstance(result, NotAcquired):
            return Failure(name, result)
        if isinstance(result, TimeoutError):
            return self._note_failure(name, result, 0.0)
        if isinstance(result, Stale):
            if queued is not None:
                await holder.give_up()  # make the next waiting event due
            is_done = result.watermark.event_id == self.event.id
            self._skip(name, SkipReason.DONE if is_done else SkipReason.STALE)
            return None
        lease.extend_with(holder)
        try:
            return await self._run(handler, holder)
        finally:
            await holder.end(self.calls.under_way)

    async def call_hooks(
        self, hooks: Sequence[ErrorHook], group: ExceptionGroup[Exception], names: str
    ) -> None:
        """Call the error hooks with the failures of these handlers."""
        context = self.context(names)
        for hook in hooks:
            arguments = (group, self.event, context)[: hook.arguments]
            raised = await self.calls.call("on_error", hook.function, hook.is_async, arguments)
            if raised is not None:
                _log.error(
                    "an on_error function failed", exc_info=raised, extra=self.lease.log_fields()
                )
            del raised  # a reference cycle: see calls.py

    def context(self, handler: str) -> Context:
        """Return the context that a handler receives."""
        return Context(
            key=self.lease.key,
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
        )
