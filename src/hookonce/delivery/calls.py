"""Calls the user's functions, which are handlers and error hooks, each with a time limit.

Async functions run on the event loop, sync functions in a bounded pool of threads. Each exception
of a function becomes its failure here; other modules decide what follows.

Nothing sets a timer for a call: the timer of `Attempts` looks at the limits every few milliseconds,
and cancels a call that takes too long. The call takes the cancellation back.

Reference cycles: an exception holds its traceback, and the traceback holds each frame that the
exception has passed. If a variable of such a frame still holds the exception, only the garbage
collector frees the two, and the delivery's body with them. So in this package a frame passes an
exception on without a variable, or deletes the variable, or drops the traceback. Comments at these
lines refer to this paragraph.
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

# The time that a cancelled handler has to clean up. After that, the handler counts as overdue.
_CLEAN_UP_SECONDS = 5.0

# Close a coroutine at most this many times: each close ends one `await`, and then the clean-up of a
# handler may reach another `await`.
_MOST_CLOSES = 20

# The value that a function in a thread returned, or its error. A list carries the pair out of the
# thread: a future would make a reference cycle (see above).
_ValueOrError: TypeAlias = tuple[Any, BaseException | None]

LogFields: TypeAlias = Callable[[str], dict[str, object]]
"""Returns the fields of a log record about a handler, given the handler's name."""


class Threads:
    """The threads of sync handlers, started at the first call.

    Args:
        most: how many sync handlers run at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], bool]) -> Future[bool]:
        """Call a function in the next free thread, with the context variables of the caller."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._most, thread_name_prefix=THREAD_NAME_PREFIX)
        return self._pool.submit(contextvars.copy_context().run, work)

    def close(self) -> None:
        """Accept no more sync handlers; do not wait for those that run."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """A running call of a user's function.

    Attributes:
        name: the handler's name.
        task: the task that runs the function, or waits for its thread.
        started: when the function began, in the event loop's time; None until a thread is free.
        thread: the result of its thread, True after a success; None for an async function.
        is_late: whether the call was cancelled because its time was over.
        is_overdue: whether it still runs after that.
    """

    name: str
    task: asyncio.Task[Any] | None
    started: float | None
    thread: Future[bool] | None = None
    is_late: bool = False
    is_overdue: bool = False

    def enforce_limit(self, now: float, seconds: float, log_fields: LogFields) -> None:
        """Cancel the call when its time is over; log a call that does not end then."""
        if self.started is None or now < self.started + seconds or self.is_overdue:
            return
        if self.thread is not None:
            self.is_overdue = True
            _log.error(
                "%s has been running for more than %g s; a thread cannot be cancelled, so it keeps"
                " its thread and its event until it ends",
                self.name,
                seconds,
                extra=log_fields(self.name),
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
                extra=log_fields(self.name),
            )

    @property
    def has_succeeded(self) -> bool:
        """Whether the function ran in a thread and has succeeded."""
        thread = self.thread
        return thread is not None and thread.done() and not thread.cancelled() and thread.result()

    @property
    def thread_goes_on(self) -> bool:
        """Whether the function still runs in a thread, which nothing can cancel."""
        return self.thread is not None and not self.thread.done()


class Calls:
    """The running calls of one attempt to the user's functions.

    Args:
        threads: where sync functions run.
        timeout_seconds: after this an async function is cancelled and counts as failed. A thread
            cannot be cancelled, and an event must not be handled twice at the same time, so a sync
            function is only logged as overdue.
        loop: the event loop of the attempt.

    Attributes:
        under_way: the calls that have not ended, or were stopped.
        is_stopping: whether the calls were cancelled at a shutdown, or at the end of their event
            loop while a thread still runs.
    """

    __slots__ = ("_loop", "_threads", "_timeout_seconds", "is_stopping", "under_way")

    def __init__(
        self, threads: Threads, timeout_seconds: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self._loop = loop
        self.under_way: list[Call] = []
        self.is_stopping: bool = False

    def stop(self) -> None:
        """Let a cancellation of a call end it: a shutdown has begun."""
        self.is_stopping = True

    def enforce_limits(self, now: float, log_fields: LogFields) -> None:
        """Cancel the calls whose time is over; ``now`` is in the event loop's time."""
        for call in self.under_way:
            call.enforce_limit(now, self._timeout_seconds, log_fields)

    async def call(
        self,
        name: str,
        function: Callable[..., Any],
        is_async: bool,
        arguments: tuple[Any, ...],
    ) -> Exception | None:
        """Call a user's function, await its result, and return its exception; None after a success.

        Only a cancellation at a shutdown is raised. A cancellation by the function itself is a
        failure, and so are SystemExit and KeyboardInterrupt: an event must not end the server,
        which learns of signals by its own handlers.
        """
        loop = self._loop
        call = Call(name, asyncio.current_task(loop), loop.time() if is_async else None)
        self.under_way.append(call)
        try:
            if is_async:
                result = function(*arguments)
            else:
                result, raised = await self._in_thread(call, partial(function, *arguments))
                if raised is not None:
                    return as_exception(raised)
            if result.__class__ is CoroutineType:
                result = await result
            if result is not None:
                return await _finish(result)
        except asyncio.CancelledError as cancelled:
            if self.is_stopping:
                raise
            if call.is_late:
                return TimeoutError(f"not finished within {self._timeout_seconds:g} s")
            return as_exception(cancelled)
        except BaseException as failed:
            if isinstance(failed, GeneratorExit) and (self.is_stopping or not loop.is_running()):
                raise  # the coroutine was closed by a shutdown or at the end of the loop
            return as_exception(failed)
        finally:
            if not self.is_stopping:
                self.under_way.remove(call)
                if call.task is not None and call.task.cancelling():
                    await self._take_back_cancellation(call)
                call.task = None  # otherwise a traceback of this frame would keep the task alive
        return None

    async def _take_back_cancellation(self, call: Call) -> None:
        """Undo a cancellation by the function itself or by its time limit.

        A pending cancellation would end the task's next wait.
        """
        while call.task is not None and call.task.uncancel():
            pass
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        if self.is_stopping and call.task is not None:  # a shutdown began in the meantime
            call.task.cancel()

    async def _in_thread(self, call: Call, work: Callable[[], Any]) -> _ValueOrError:
        results: list[_ValueOrError] = []
        now = self._loop.time
        call.thread = self._threads.submit(partial(_in_this_thread, call, now, work, results))
        # Cancelling this future drops work that waits for a thread; running work continues.
        try:
            await asyncio.wrap_future(call.thread)
        except asyncio.CancelledError:
            if call.thread_goes_on:  # cancelled by a shutdown or the end of the loop
                self.is_stopping = True
            raise
        return results.pop()


def _in_this_thread(
    call: Call, now: Callable[[], float], work: Callable[[], Any], results: list[_ValueOrError]
) -> bool:
    """Call a function and put its result into ``results``; return whether the call succeeded."""
    call.started = now()
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - passed to the caller in `results`
        results.append((None, error))
        return False
    results.append((result, None))
    return not _is_only_begun(result)


async def _finish(result: object) -> TypeError | None:
    """Await a result that is awaitable; return a TypeError for a generator, which cannot run.

    A wrapper of an async function, or a forgotten ``await``, returns an awaitable.
    """
    while inspect.isawaitable(result):
        result = await result
    if _is_only_begun(result):
        return TypeError("it returned a generator, so none of its code has run")
    return None


def _is_only_begun(result: object) -> bool:
    """Return whether a result is an awaitable or a generator, whose work has not begun."""
    return inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)


def end_by_force(task: asyncio.Task[Any]) -> None:
    """End a task that ignores its cancellation; otherwise the loop would never close."""
    task.cancel()
    if (coroutine := task.get_coro()) is None:
        return
    # The closed coroutine ends the task with an error. Read it, or asyncio would log it.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    for _ in range(_MOST_CLOSES):
        try:
            coroutine.close()
        except BaseException as error:  # noqa: BLE001 - the handler may raise anything
            _log.debug("the handler resists its end", exc_info=error)
        else:
            return


def as_exception(error: BaseException) -> Exception:
    """Return the error of a user's function as an ``Exception``; wrap any other class."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"the handler raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def add_note(error: Exception, note: str) -> None:
    """Add a note to a user's exception, even if its class refuses attributes."""
    with contextlib.suppress(Exception):
        notes = getattr(error, "__notes__", None)
        notes = notes if isinstance(notes, list) else []
        if note not in notes:  # add it once: a handler may raise the same object twice
            # `add_note` may be overridden, and sets an attribute, which a frozen class refuses.
            BaseException.__setattr__(error, "__notes__", [*notes, note])
