"""Calls users' functions: handlers and error hooks, each on its own.

Async functions run on the event loop, sync ones in a bounded pool of threads. Whatever a function
raises ends here as its failure. What follows from it is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import CoroutineType
from typing import Any, TypeAlias

from ..logs import get_logger

_log = get_logger("hookonce.dispatch")

THREAD_NAME_PREFIX = "hookonce-handler"

# A cancelled handler may have to clean up; one that goes on for longer ignores its cancellation.
_CLEAN_UP_SECONDS = 5.0

# What a function in a thread has returned, or raised. It is taken out of the list it is put into: a
# future would keep the error, whose traceback leads to the future: a circle, with the body in it.
_ValueOrError: TypeAlias = tuple[Any, BaseException | None]


class Threads:
    """The threads of sync handlers, started when the first of them is called.

    Args:
        most: how many sync handlers run at once.

    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], bool]) -> Future[bool]:
        """Call a function in a thread as soon as one is free, in the context of the caller."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._most, thread_name_prefix=THREAD_NAME_PREFIX)
        return self._pool.submit(contextvars.copy_context().run, work)

    def close(self) -> None:
        """Take on no more sync handlers; those that run are not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


@dataclass(slots=True, eq=False, repr=False)
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

    name: str
    task: asyncio.Task[Any] | None
    started: float | None
    thread: Future[bool] | None = None
    is_late: bool = False
    is_overdue: bool = False

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
    def is_cancelled(self) -> bool:
        """Whether its task has been cancelled, by the function itself or by its time limit."""
        return self.task is not None and self.task.cancelling() > 0

    @property
    def has_succeeded(self) -> bool:
        """Whether it is a thread that nobody waited for, and that has succeeded."""
        thread = self.thread
        return thread is not None and thread.done() and not thread.cancelled() and thread.result()

    @property
    def thread_goes_on(self) -> bool:
        """Whether it is still running in a thread, which no cancellation can end."""
        return self.thread is not None and not self.thread.done()


class Calls:
    """The calls that one run has under way.

    Args:
        threads: where sync functions run.
        timeout_seconds: after this an async function is cancelled and counts as failed. A thread
            cannot be cancelled, and an event must not run beside itself: a sync function goes on
            until it ends, and is only reported as overdue.

    Attributes:
        under_way: those that have not ended, or were stopped.
        is_stopping: whether they were cancelled at a shutdown, or with their loop while a thread
            goes on.

    """

    __slots__ = ("_threads", "_timeout_seconds", "is_stopping", "under_way")

    def __init__(self, threads: Threads, timeout_seconds: float) -> None:
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self.under_way: list[Call] = []
        self.is_stopping = False

    def look(self, now: float) -> None:
        """Cancel those whose time is over; ``now`` in the event loop's time."""
        for call in self.under_way:
            call.look(now, self._timeout_seconds)

    async def call(
        self,
        name: str,
        function: Callable[..., Any],
        is_async: bool,
        arguments: tuple[Any, ...],
        task: asyncio.Task[Any] | None = None,
    ) -> Exception | None:
        """Call a user's function, wait for all it began, and return what it raised.

        Only a cancellation at a shutdown passes; one that came out of the function is a failure
        like any other, and so are SystemExit and KeyboardInterrupt: servers learn of a signal from
        a handler of their own, and no event may end one.
        """
        loop = asyncio.get_running_loop()
        call = Call(name, task or asyncio.current_task(), loop.time() if is_async else None)
        del task  # a traceback would lead to it
        self.under_way.append(call)
        # No error is put into a variable: its traceback leads here, and here it would lead back.
        try:
            if is_async:
                result = function(*arguments)
            else:
                result, raised = await self._in_thread(call, partial(function, *arguments), loop)
                if raised is not None:
                    return as_exception(raised)
            if result.__class__ is CoroutineType:
                result = await result
            # A wrapper, or a forgotten `await`, has only begun something.
            while result is not None and inspect.isawaitable(result):
                result = await result
            if result is not None and _is_only_begun(result):
                return TypeError("it returned a generator, so nothing of it has run")
        except asyncio.CancelledError as cancelled:
            if self.is_stopping:
                raise
            if call.is_late:
                return TimeoutError(f"not finished within {self._timeout_seconds:g} s")
            return as_exception(cancelled)
        except BaseException as failed:
            if isinstance(failed, GeneratorExit) and not loop.is_running():
                raise  # the loop has ended, and this is put away
            return as_exception(failed)
        finally:
            if not self.is_stopping:
                self.under_way.remove(call)
                if call.is_cancelled:
                    await self._take_back_cancellation(call)
                call.task = None  # a traceback would lead to it
        return None

    async def _take_back_cancellation(self, call: Call) -> None:
        """Let a cancellation end that was the function's own, or that of its time limit.

        It may still be pending, and would end whatever the task waits for next.
        """
        while call.task is not None and call.task.uncancel():
            pass
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        if self.is_stopping and call.task is not None:  # meanwhile: that is for the next wait
            call.task.cancel()

    async def _in_thread(
        self, call: Call, work: Callable[[], Any], loop: asyncio.AbstractEventLoop
    ) -> _ValueOrError:
        results: list[_ValueOrError] = []
        call.thread = self._threads.submit(partial(_in_this_thread, call, loop.time, work, results))
        # Cancelling it takes back what waits for a thread, and leaves alone what runs.
        try:
            await asyncio.wrap_future(call.thread)
        except asyncio.CancelledError:
            if call.thread_goes_on:  # a stop, or the end of a loop whose receiver was not closed
                self.is_stopping = True
            raise
        return results.pop()


def _in_this_thread(
    call: Call, now: Callable[[], float], work: Callable[[], Any], results: list[_ValueOrError]
) -> bool:
    """Call a function, put down what comes of it, and return whether it has succeeded."""
    call.started = now()
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is handed on
        results.append((None, error))
        return False
    results.append((result, None))
    return not _is_only_begun(result)


def _is_only_begun(result: object) -> bool:
    """Return whether this stands for work that has still to be done."""
    return inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)


def as_exception(error: BaseException) -> Exception:
    """Return what a user's function has raised, as a failure like any other."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"the handler raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def add_note(error: Exception, note: str) -> None:
    """Add a note to an exception of a user's, whatever its class makes of attributes."""
    with contextlib.suppress(Exception):
        notes = getattr(error, "__notes__", None)
        notes = notes if isinstance(notes, list) else []
        if note not in notes:  # the same object may be raised again
            # `add_note` may be overridden, and sets an attribute, which a frozen class refuses.
            BaseException.__setattr__(error, "__notes__", [*notes, note])
