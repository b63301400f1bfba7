"""Runs handlers, each on its own, and returns what they raised.

Async handlers run on the event loop, sync ones in a bounded pool of threads. Whatever a user's
function raises ends here as that function's failure. What follows from it is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import CoroutineType
from typing import Any, Protocol, TypeAlias

from ..events import Event
from ..stores.values import Delivery
from ..verification.loggers import get_logger
from .context import Context
from .handler import ErrorHook, Handler
from .records import HandlerFailed, HandlerFinished, HandlerStarted, Observers
from .verdict import Failure

__all__ = ["THREAD_NAME_PREFIX", "Attempt", "Call", "Dispatcher"]

_log = get_logger("hookonce.dispatch")

THREAD_NAME_PREFIX = "hookonce-handler"

# A cancelled handler may have to clean up; one that goes on for longer ignores its cancellation.
_CLEAN_UP_SECONDS = 5.0

# What a function in a thread has returned, or raised. It is taken out of the list it is put into: a
# future would keep the error, whose traceback leads to the future: a circle, with the body in it.
_ValueOrError: TypeAlias = tuple[Any, BaseException | None]


class Call:
    """A call of a user's function that is under way.

    Attributes:
        name: the handler's name.
        task: the task it runs in, or is waited for in.
        started: when it began, in the event loop's time; None while it waits for a thread.
        thread: the end of its thread, if it has one: whether it succeeded.
        is_late: whether it was cancelled, since its time was over.
        is_overdue: whether it goes on all the same.

    """

    __slots__ = ("is_late", "is_overdue", "name", "started", "task", "thread")

    def __init__(self, name: str, task: asyncio.Task[Any] | None, started: float | None) -> None:
        self.name = name
        self.task = task
        self.started = started
        self.thread: Future[bool] | None = None
        self.is_late = False
        self.is_overdue = False

    def look(self, now: float, seconds: float) -> None:
        """Cancel it when its time is over, and say so when that ends nothing."""
        if self.started is None or now < self.started + seconds or self.is_overdue:
            return
        if self.thread is not None:
            self.is_overdue = True
            _log.error(
                "%s has been running for more than %g s; a thread cannot be cancelled, so it keeps"
                " its thread and its event until it ends",
                self.name,
                seconds,
            )
        elif not self.is_late and self.task is not None:
            self.is_late = True
            self.task.cancel()
        elif now >= self.started + seconds + min(_CLEAN_UP_SECONDS, seconds):
            self.is_overdue = True
            _log.error(
                "%s has been running for more than %g s and does not end when it is cancelled; it"
                " keeps its event until it ends: let CancelledError pass",
                self.name,
                seconds,
            )

    @property
    def has_succeeded(self) -> bool:
        """Whether it is a thread that nobody waited for, and that has succeeded."""
        thread = self.thread
        return thread is not None and thread.done() and not thread.cancelled() and thread.result()

    @property
    def thread_goes_on(self) -> bool:
        """Whether it is still running in a thread, which no cancellation can end."""
        return self.thread is not None and not self.thread.done()


class Attempt(Protocol):
    """An attempt at an event, as far as its handlers and those who watch them are told of it."""

    calls: list[Call]
    """The calls under way."""
    is_stopping: bool
    """Whether it was cancelled at a shutdown, or with its loop while a thread of it goes on."""

    @property
    def event(self) -> Event[Any]:
        """What handlers are given."""
        ...

    @property
    def delivery(self) -> Delivery:
        """What was delivered."""
        ...

    @property
    def number(self) -> int:
        """Which attempt it is, from 1."""
        ...

    @property
    def is_replay(self) -> bool:
        """Whether an operator replays a dead letter."""
        ...

    def context(self, handler: str) -> Context:
        """Return what the handler of that name is told."""
        ...

    def has_finished(self, handler: str) -> None:
        """Note that a handler has succeeded."""
        ...


class Dispatcher:
    """Runs handlers, sync ones in its own threads.

    Args:
        threads: how many sync handlers run at once.
        timeout_seconds: after this an async handler is cancelled and counts as failed. A thread
            cannot be cancelled, and an event must not run beside itself: a sync handler keeps its
            claim until it ends, and is only reported as overdue.
        observers: who is told of handlers.

    """

    def __init__(self, *, threads: int, timeout_seconds: float, observers: Observers) -> None:
        self.timeout_seconds = timeout_seconds
        self._observers = observers
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Take on no more sync handlers; those that run are not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    async def run(self, handlers: Sequence[Handler], attempt: Attempt) -> Sequence[Failure]:
        """Run every handler, and return the failures in the order of registration."""
        if not handlers:
            return ()
        if len(handlers) == 1:
            failure = await self._handle(handlers[0], attempt)
            return () if failure is None else (failure,)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._handle(handler, attempt)) for handler in handlers]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        results = [task.result() for task in tasks]
        return [failure for failure in results if failure is not None]

    async def tell(
        self,
        hooks: Sequence[ErrorHook],
        error: ExceptionGroup[Exception],
        attempt: Attempt,
        context: Context,
    ) -> None:
        """Tell every error hook; what one raises is logged and changes nothing."""
        for hook in hooks:
            arguments = (error, attempt.event, context)[: hook.arguments]
            failure = await self._called(
                "on_error", hook.function, hook.is_async, arguments, attempt
            )
            if failure is not None:
                _log.error("an on_error function failed", exc_info=failure)

    async def _handle(self, handler: Handler, attempt: Attempt) -> Failure | None:
        name, observers, delivery = handler.name, self._observers, attempt.delivery
        arguments = (
            (attempt.event, attempt.context(name)) if handler.takes_context else (attempt.event,)
        )
        if observers.wants(HandlerStarted, delivery.event_id):
            observers.tell(HandlerStarted(delivery, name, attempt.number, attempt.is_replay))
        started = time.perf_counter()  # the time of uvloop's loop has whole milliseconds
        try:
            error = await self._called(name, handler.function, handler.is_async, arguments, attempt)
        except asyncio.CancelledError:
            cancelled = RuntimeError("cancelled at shutdown")
            seconds = time.perf_counter() - started
            observers.tell(HandlerFailed(delivery, name, attempt.number, seconds, cancelled))
            raise
        if error is None:
            if observers.wants(HandlerFinished, delivery.event_id):
                seconds = time.perf_counter() - started
                observers.tell(HandlerFinished(delivery, name, attempt.number, seconds))
            attempt.has_finished(name)
            return None
        seconds = time.perf_counter() - started
        observers.tell(HandlerFailed(delivery, name, attempt.number, seconds, error))
        _note(error, f"raised by the handler {name!r}")
        return Failure(name, error)

    async def _called(
        self,
        name: str,
        function: Callable[..., Any],
        is_async: bool,
        arguments: tuple[Any, ...],
        attempt: Attempt,
    ) -> Exception | None:
        """Call a user's function, wait for all it began, and return what it raised.

        Only a cancellation at a shutdown passes; one that came out of the function is a failure
        like any other, and so are SystemExit and KeyboardInterrupt: servers learn of a signal from
        a handler of their own, and no event may end one.
        """
        loop = asyncio.get_running_loop()
        call = Call(name, asyncio.current_task(), loop.time() if is_async else None)
        attempt.calls.append(call)
        # No error is put into a variable: its traceback leads here, and here it would lead back.
        try:
            if is_async:
                result = function(*arguments)
            else:
                result, raised = await self._in_thread(call, function, arguments, attempt)
                if raised is not None:
                    return _as_exception(raised)
            if result.__class__ is CoroutineType:
                result = await result
            # A wrapper, or a forgotten `await`, has only begun something.
            while result is not None and inspect.isawaitable(result):
                result = await result
            if result is not None and _is_only_begun(result):
                return TypeError("it returned a generator, so nothing of it has run")
        except asyncio.CancelledError as cancelled:
            if attempt.is_stopping:
                raise
            if call.is_late:
                return TimeoutError(f"not finished within {self.timeout_seconds:g} s")
            return _as_exception(cancelled)
        except GeneratorExit as closed:
            if not loop.is_running():
                raise  # the loop has ended, and this is put away
            return _as_exception(closed)
        except BaseException as failed:  # noqa: BLE001 - reported as this function's failure
            return _as_exception(failed)
        finally:
            if not attempt.is_stopping:
                attempt.calls.remove(call)
                _leave(call)
        return None

    async def _in_thread(
        self,
        call: Call,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        attempt: Attempt,
    ) -> _ValueOrError:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=THREAD_NAME_PREFIX)
        results: list[_ValueOrError] = []
        work = partial(_in_this_thread, call, asyncio.get_running_loop().time, function, results)
        call.thread = self._pool.submit(contextvars.copy_context().run, work, arguments)
        # Cancelling it takes back what waits for a thread, and leaves alone what runs.
        try:
            await asyncio.wrap_future(call.thread)
        except asyncio.CancelledError:
            if call.thread_goes_on:  # a stop, or the end of a loop whose receiver was not closed
                attempt.is_stopping = True
            raise
        return results.pop()


def _in_this_thread(
    call: Call,
    now: Callable[[], float],
    function: Callable[..., Any],
    results: list[_ValueOrError],
    arguments: tuple[Any, ...],
) -> bool:
    """Call a function, put down what comes of it, and return whether it has succeeded."""
    call.started = now()
    try:
        result = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - it is handed on
        results.append((None, error))
        return False
    results.append((result, None))
    return not _is_only_begun(result)


def _leave(call: Call) -> None:
    """Let go of the task, to which a traceback would lead, and take its cancellation back."""
    task, call.task = call.task, None
    if call.is_late and task is not None:
        while task.uncancel():
            pass


def _is_only_begun(result: object) -> bool:
    """Return whether this stands for work that has still to be done."""
    return inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"the handler raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def _note(error: Exception, note: str) -> None:
    """Add a note to an exception of a user's, whatever its class makes of attributes."""
    with contextlib.suppress(Exception):
        notes = getattr(error, "__notes__", None)
        notes = notes if isinstance(notes, list) else []
        if note not in notes:  # the same object may be raised again
            # `add_note` may be overridden, and sets an attribute, which a frozen class refuses.
            BaseException.__setattr__(error, "__notes__", [*notes, note])
