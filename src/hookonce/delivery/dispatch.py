"""Runs the handlers of one event, each on its own, and collects what became of them.

A failure of one handler never hides another: all run, and all failures are reported together.
Async handlers run on the event loop, sync ones in a bounded pool of threads. What follows from a
report (answer, retry, dead letter) is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

from ..errors import Reject, Retry
from ..events import Event
from ..stores.values import Delivery
from .context import Context
from .handler import ErrorHook, Handler
from .records import HandlerFailed, HandlerFinished, HandlerStarted, Observers
from .time_limit import OutOfTimeError, limited

__all__ = ["THREAD_NAME_PREFIX", "Attempted", "Dispatcher", "Failure", "Progress", "Report"]

_log = logging.getLogger("hookonce.dispatch")

THREAD_NAME_PREFIX = "hookonce-handler"

# What a function in a thread has returned, or raised. It is taken out of the list it is put into: a
# future would keep the error, whose traceback leads to the future: a circle, with the body in it.
_ValueOrError: TypeAlias = tuple[Any, BaseException | None]


@dataclass(frozen=True, slots=True)
class Failure:
    """A handler and what it raised."""

    handler: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one attempt.

    Attributes:
        finished: the handlers that have succeeded in this attempt.
        failures: the others, in the order of registration.

    """

    finished: frozenset[str]
    failures: tuple[Failure, ...]

    @property
    def rejected(self) -> bool:
        """Whether there are failures, and all of them are ``Reject``."""
        return bool(self.failures) and all(isinstance(f.error, Reject) for f in self.failures)

    @property
    def retry_after(self) -> float | None:
        """The longest wait a ``Retry`` asked for, in seconds; None if none named one."""
        asked = [f.error.after_seconds for f in self.failures if isinstance(f.error, Retry)]
        return max((seconds for seconds in asked if seconds is not None), default=None)

    @property
    def errors(self) -> tuple[Failure, ...]:
        """The failures that nobody asked for: all but ``Retry``."""
        return tuple(f for f in self.failures if not isinstance(f.error, Retry))

    def describe(self) -> str:
        """Return the failures as text for an operator, one line each."""
        return "\n".join(f"{f.handler}: {_one_line(f.error)}" for f in self.failures)


def _one_line(error: Exception) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a broken __str__ must not break the report of it
        text = "(its text cannot be made)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@dataclass(slots=True, eq=False)
class Progress:
    """How far an attempt has come, for those who look on while it runs.

    Attributes:
        expected: how many handlers there are to run.
        finished: the handlers that have succeeded so far.
        changed: called after each of them but the last, which is followed by the end.
        threads: the sync handlers that have been given to a thread, by their names; each says in
            the end whether it has succeeded.

    """

    expected: int = 1
    finished: set[str] = field(default_factory=set)
    changed: Callable[[], None] = lambda: None
    threads: dict[str, Future[bool]] = field(default_factory=dict)

    @property
    def thread_goes_on(self) -> bool:
        """Whether a sync handler is still running, which no cancellation or time limit can end."""
        return any(not future.done() for future in self.threads.values())

    def all_finished(self) -> frozenset[str]:
        """Return what has succeeded, threads among them that nobody has waited for."""
        ended = (name for name, future in self.threads.items() if _has_succeeded(future))
        return frozenset(self.finished).union(ended)


def _has_succeeded(future: Future[bool]) -> bool:
    return future.done() and not future.cancelled() and future.result()


def _is_only_begun(result: object) -> bool:
    """Return whether this stands for work that has still to be done."""
    return inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)


class Attempted(Protocol):
    """An attempt, as far as handlers and those who watch them are told of it."""

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


class Dispatcher:
    """Runs handlers, sync ones in its own threads.

    Args:
        threads: how many sync handlers run at once.
        handler_timeout: seconds after which an async handler is cancelled and counts as failed. A
            thread cannot be cancelled, and an event must not run beside itself: a sync handler
            keeps its claim until it ends, and is only reported as overdue.
        observers: who is told of handlers.

    """

    def __init__(self, *, threads: int, handler_timeout: float, observers: Observers) -> None:
        self._observers = observers
        self._threads = threads
        self._handler_timeout = handler_timeout
        self._pool: ThreadPoolExecutor | None = None
        self._overdue: set[Future[bool]] = set()

    @property
    def overdue(self) -> int:
        """How many sync handlers run longer than the time limit; each occupies a thread."""
        self._overdue = {future for future in self._overdue if not future.done()}
        return len(self._overdue)

    def close(self) -> None:
        """Take on no more sync handlers; those that run are not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    async def run(
        self,
        handlers: Sequence[Handler],
        event: Event[Any],
        attempt: Attempted,
        progress: Progress,
    ) -> Report:
        """Run every handler and return the report.

        Args:
            handlers: what is to run, in the order of registration.
            event: what they get.
            attempt: what it is part of.
            progress: kept up to date while they run.

        """
        progress.expected = len(handlers)
        attempts = [self._attempt(handler, event, attempt, progress) for handler in handlers]
        if len(attempts) == 1:
            failures = [await attempts[0]]
        else:
            failures = await _all_of(attempts)
        return Report(
            finished=frozenset(progress.finished),
            failures=tuple(failure for failure in failures if failure is not None),
        )

    async def tell(
        self,
        hooks: Sequence[ErrorHook],
        error: ExceptionGroup[Exception],
        event: Event[Any],
        context: Context,
    ) -> None:
        """Tell every error hook; what one raises is logged and changes nothing."""
        for hook in hooks:
            arguments = (error, event, context)[: hook.arguments]
            failure = await self._guarded(
                "on_error", hook.function, hook.is_async, arguments, Progress()
            )
            if failure is not None:
                _log.error("an on_error function failed", exc_info=failure)

    async def _attempt(
        self,
        handler: Handler,
        event: Event[Any],
        attempt: Attempted,
        progress: Progress,
    ) -> Failure | None:
        name = handler.name
        arguments = (event, attempt.context(name)) if handler.takes_context else (event,)
        delivery = attempt.delivery
        if self._observers.wants(HandlerStarted, delivery.event_id):
            told = HandlerStarted(delivery, name, attempt.number, attempt.is_replay)
            self._observers.tell(told)
        started = time.perf_counter()  # the time of uvloop's loop has whole milliseconds
        try:
            error = await self._guarded(
                name, handler.function, handler.is_async, arguments, progress
            )
        except asyncio.CancelledError:
            self._tell_end(attempt, name, started, RuntimeError("cancelled at shutdown"))
            raise
        self._tell_end(attempt, name, started, error)
        if error is None:
            progress.finished.add(handler.name)
            if len(progress.finished) < progress.expected:
                progress.changed()
            return None
        note = f"raised by the handler {handler.name!r}"
        if note not in getattr(error, "__notes__", ()):  # the same object may be raised again
            error.add_note(note)
        return Failure(handler.name, error)

    def _tell_end(
        self, attempt: Attempted, handler: str, started: float, error: Exception | None
    ) -> None:
        delivery = attempt.delivery
        if error is None and not self._observers.wants(HandlerFinished, delivery.event_id):
            return
        seconds, number = time.perf_counter() - started, attempt.number
        if error is None:
            self._observers.tell(HandlerFinished(delivery, handler, number, seconds))
        else:
            self._observers.tell(HandlerFailed(delivery, handler, number, seconds, error))

    async def _guarded(
        self,
        name: str,
        function: Callable[..., Any],
        is_async: bool,
        arguments: tuple[Any, ...],
        progress: Progress,
    ) -> Exception | None:
        """Call a user's function, wait for all it began, and return what it raised.

        A cancellation of this very task (shutdown) passes; one that came out of the function, and
        SystemExit, are failures of the function like any other.
        """
        task = asyncio.current_task()
        cancellations = task.cancelling() if task else 0
        try:
            if is_async:
                result = function(*arguments)
            else:
                result, error = await self._in_thread(name, function, arguments, progress)
                if isinstance(error, Exception):
                    return error
                if error is not None:
                    raise error  # noqa: TRY301 - as if it had been raised here
            if result is not None:
                result = await limited(self._handler_timeout, _ended(result))
            if result is not None and _is_only_begun(result):
                return TypeError("it returned a generator, so nothing of it has run")
        except OutOfTimeError:
            return TimeoutError(f"not finished within {self._handler_timeout:g} s")
        except Exception as error:  # noqa: BLE001 - reported as this handler's failure
            return error
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling() > cancellations:
                raise
            return _as_exception(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit must not end the server
            return _as_exception(error)
        return None

    async def _in_thread(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        progress: Progress,
    ) -> _ValueOrError:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=THREAD_NAME_PREFIX)
        loop = asyncio.get_running_loop()

        def begun() -> None:  # in the loop, once a thread has taken it
            if not waiting.done():
                timer = loop.call_later(self._handler_timeout, self._is_overdue, name, future)
                waiting.add_done_callback(lambda _: timer.cancel())

        results: list[_ValueOrError] = []
        begins = partial(loop.call_soon_threadsafe, begun)
        call = partial(_in_this_thread, begins, function, results)
        future = self._pool.submit(contextvars.copy_context().run, call, arguments)
        progress.threads[name] = future
        # Cancelling it takes back what waits for a thread, and leaves alone what runs.
        waiting = asyncio.wrap_future(future)
        await waiting
        return results.pop()

    def _is_overdue(self, name: str, future: Future[bool]) -> None:
        self._overdue.add(future)
        _log.error(
            "%s has been running for more than %g s; a thread cannot be cancelled, so it keeps"
            " its thread and its event until it ends",
            name,
            self._handler_timeout,
        )


def _in_this_thread(
    begun: Callable[[], object],
    function: Callable[..., Any],
    results: list[_ValueOrError],
    arguments: tuple[Any, ...],
) -> bool:
    """Call a function, put down what comes of it, and return whether it has succeeded."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        begun()
    try:
        result = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - it is handed on
        results.append((None, error))
        return False
    results.append((result, None))
    return not _is_only_begun(result)


async def _ended(result: Any) -> Any:
    """Return what a call comes to: a wrapper, or a forgotten `await`, has only begun something."""
    while inspect.isawaitable(result):
        result = await result
    return result


async def _all_of(attempts: Sequence[Any]) -> list[Failure | None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt) for attempt in attempts]
    return [task.result() for task in tasks]


def _as_exception(error: BaseException) -> Exception:
    wrapped = RuntimeError(f"the handler raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped
