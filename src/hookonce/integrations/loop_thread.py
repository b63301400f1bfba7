"""Runs a receiver in a thread with an event loop, for servers that have no event loop.

The first delivery starts the thread, never an import: a server that forks its workers after it has
loaded the application (``gunicorn --preload``) would leave the thread behind in the parent.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from ..errors import StoreError
from ..http.body import RequestRefusedError
from ..logs import get_logger
from ..outcome import BROKEN, Outcome, Reason, later
from ..receiver import Receiver
from ..receiver.receiver import note_unread
from ..verification.headers import RawHeaders

_log = get_logger("hookonce")

T = TypeVar("T")
P = ParamSpec("P")

# The server's thread waits for this share of the sender's time limit. It waits so long only if a
# handler blocks the loop; otherwise the receiver answers earlier.
_LONGEST_SHARE = 0.99


class LoopThread:
    """Passes deliveries from any number of threads to a receiver in one event loop.

    The first delivery opens the receiver and starts its embedded workers. ``close``, or the exit of
    the interpreter, closes it. A delivery after ``close`` opens it again.

    Args:
        receiver: handles the deliveries; from the first one on, use it in no other loop.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._longest_seconds = _LONGEST_SHARE * receiver.sender.rules.patience_seconds
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def handle(self, body: bytes, headers: RawHeaders, *, waited: float = 0.0) -> Outcome:
        """Return the answer to a delivery; the calling thread waits for it.

        Args:
            body: the raw request body, exactly as received.
            waited: the seconds since the request arrived.

        Raises:
            RuntimeError: the process was forked after the receiver had been opened.
        """
        try:
            return self._submit(body, headers, waited).result(self._longest_seconds - waited)
        except TimeoutError:
            return _stuck()
        except CancelledError:  # `close` has cancelled the delivery
            return later(Reason.SHUTTING_DOWN)

    async def handle_async(
        self, body: bytes, headers: RawHeaders, *, waited: float = 0.0
    ) -> Outcome:
        """Return the answer to a delivery without blocking the caller's event loop."""
        answer = asyncio.wrap_future(self._submit(body, headers, waited))
        done, _ = await asyncio.wait({answer}, timeout=self._longest_seconds - waited)
        if answer.cancelled():
            return later(Reason.SHUTTING_DOWN)
        return answer.result() if done else _stuck()

    def refuse(self, error: Exception, *, waited: float) -> Outcome:
        """Return the answer to a request that failed before the receiver got it; notify observers.

        The adapter sends it instead of raising: the server's own answer might be a page.
        """
        if isinstance(error, RequestRefusedError):
            outcome = error.outcome
        else:
            _log.error("cannot hand a delivery to the receiver; answered 500", exc_info=error)
            outcome = BROKEN
        with self._lock:
            running = self._running
            if running is None or not running.is_ours():
                note_unread(self._receiver, outcome, waited)
            else:
                running.call_soon(note_unread, self._receiver, outcome, waited)
        return outcome

    def idle(self, seconds: float) -> bool:
        """Wait for running handlers, at most ``seconds``; return whether all have ended."""
        running = self._running
        return running is None or running.call(self._receiver.idle(seconds)).result()

    def close(self) -> None:
        """Drain running handlers, release the remaining events, and end the thread.

        A delivery during this time is answered 503; a later one opens the receiver again.
        """
        with self._lock:
            running = self._running
            if running is None or running.is_closing or not running.is_ours():
                return
            running.is_closing = True
        atexit.unregister(self.close)
        try:
            running.call(running.close()).result()
        finally:
            with self._lock:
                self._running = None
            running.stop()

    def _submit(self, body: bytes, headers: RawHeaders, waited: float) -> Future[Outcome]:
        if self._running is not None and not self._running.is_ours():
            raise RuntimeError(
                "this process was forked after its receiver had been opened, and the event loop"
                " stayed in the parent: deliver nothing before the fork"
            )
        with self._lock:
            if self._running is None:
                self._running = _Running(self._receiver)
                atexit.register(self.close)
            return self._running.call(self._running.answer(body, headers, waited))


class _Running:
    """The thread with the event loop, in which all calls of the receiver run."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.is_closing = False
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._executor = _Executor(thread_name_prefix="hookonce-loop")
        self._loop.set_default_executor(self._executor)
        self._opening: asyncio.Task[Receiver] | None = None
        self._answering: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="hookonce-loop", daemon=True)
        self._thread.start()

    def is_ours(self) -> bool:
        """Return whether this process started the thread; False in a child process."""
        return self._process == os.getpid()

    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self._loop.call_soon_threadsafe(function, *args)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def answer(self, body: bytes, headers: RawHeaders, waited: float) -> Outcome:
        started = self._loop.time() - waited
        task = asyncio.current_task()
        if task is not None:
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        try:
            await self._opened()
        except (StoreError, TimeoutError) as error:
            _log.error("cannot open the store; a delivery is answered 503: %s", error)
            return later(Reason.STORE_UNAVAILABLE)
        return await self._receiver.handle(body, headers, started=started)

    async def _opened(self) -> None:
        """Wait until the receiver is open; the first caller opens it. Raise if opening fails."""
        if self._opening is None:
            self._opening = self._loop.create_task(self._receiver.__aenter__())
        opening = self._opening
        if not opening.done():
            await asyncio.wait({opening}, timeout=self._receiver.limits.store_seconds)
        if not opening.done():
            raise TimeoutError("it has not answered in time")
        if opening.exception() is not None and self._opening is opening:
            self._opening = None  # the next delivery tries to open the receiver again
        opening.result()

    async def close(self) -> None:
        if self._opening is not None:
            if not self._opening.done():
                self._opening.cancel()
                await asyncio.wait({self._opening})
            if not self._opening.cancelled() and self._opening.exception() is None:
                await self._receiver.__aexit__(None, None, None)
        if self._answering:  # wait until threads have taken the answers of drained deliveries
            await asyncio.wait(self._answering, timeout=self._receiver.limits.store_seconds)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end())
            self._executor.shutdown()
            self._loop.close()

    async def _end(self) -> None:
        late = asyncio.all_tasks() - {asyncio.current_task()}
        for task in late:
            task.cancel()  # otherwise the caller of this task would wait for ever
        if late:
            await asyncio.wait(late)
        await self._loop.shutdown_asyncgens()


class _Executor(ThreadPoolExecutor):
    """A thread pool for blocking work; when Python exits, the work runs in the loop's thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:  # at exit, Python closes all pools before `close`: run `fn` here
            done: Future[T] = Future()
            try:
                done.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - the future passes the error to the caller
                done.set_exception(error)
            return done


def _stuck() -> Outcome:
    _log.error("the event loop gave no answer in time; does a handler block it?")
    return later(Reason.STILL_RUNNING)
