"""A receiver in an event loop of its own thread, for servers that call from other threads.

The thread is started by the first delivery, never by an import: a server that forks its workers
after it has loaded the application (``gunicorn --preload``) would leave the thread behind.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from ..delivery.outcome import Outcome, Reason, later
from ..errors import StoreError
from ..receiver import Receiver
from ..verification.headers import RawHeaders
from ..verification.loggers import get_logger

_log = get_logger("hookonce")

T = TypeVar("T")
P = ParamSpec("P")

# The sender waits ten seconds. An answer comes within the budget and two calls to the store, unless
# a handler blocks the loop, and then a thread of the server is not to be held for ever.
_LONGEST_ANSWER_SECONDS = 9.9


class LoopThread:
    """Handles deliveries in a thread with an event loop, from any number of other threads.

    It opens the receiver, embedded workers included, at the first delivery, and closes it at
    ``close`` or when the interpreter exits. A delivery after ``close`` opens it again.

    Args:
        receiver: it belongs to this loop from the first delivery on.

    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def handle(self, body: bytes, headers: RawHeaders, *, waited: float = 0.0) -> Outcome:
        """Return what to answer to a delivery; the calling thread waits for it.

        Args:
            body: the raw request body, exactly as received.
            headers: its headers.
            waited: for how many seconds the request has been here already.

        Raises:
            RuntimeError: the process was forked when the receiver was open.

        """
        try:
            return self._submit(body, headers, waited).result(_LONGEST_ANSWER_SECONDS - waited)
        except TimeoutError:
            return _stuck()
        except CancelledError:  # a close has not waited for it any longer
            return later(Reason.SHUTTING_DOWN)

    async def handle_async(
        self, body: bytes, headers: RawHeaders, *, waited: float = 0.0
    ) -> Outcome:
        """Do the same for a caller in another event loop, which goes on meanwhile."""
        answer = asyncio.wrap_future(self._submit(body, headers, waited))
        done, _ = await asyncio.wait({answer}, timeout=_LONGEST_ANSWER_SECONDS - waited)
        if answer.cancelled():
            return later(Reason.SHUTTING_DOWN)
        return answer.result() if done else _stuck()

    def note_unread(self, outcome: Outcome, *, waited: float) -> Outcome:
        """Tell the receiver's observers of an answer without a delivery, and return it."""
        with self._lock:
            running = self._running
            if running is None or not running.is_ours():
                self._receiver.note_unread(outcome, waited)
            else:
                running.call_soon(self._receiver.note_unread, outcome, waited)
        return outcome

    def idle(self, seconds: float) -> bool:
        """Return whether no handler runs any more, after waiting for that at most so long."""
        running = self._running
        return running is None or running.call(self._receiver.idle(seconds)).result()

    def close(self) -> None:
        """Drain running handlers, release the rest, and end the thread.

        What is delivered meanwhile is answered 503, and opens the receiver again afterwards.
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
                " stayed in the parent: let nothing be delivered before the fork"
            )
        with self._lock:
            if self._running is None:
                self._running = _Running(self._receiver)
                atexit.register(self.close)
            return self._running.call(self._running.answer(body, headers, waited))


class _Running:
    """The thread and its loop; the receiver is only touched in them."""

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
        """Return whether the thread runs in this process, and not in the parent."""
        return self._process == os.getpid()

    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        self._loop.call_soon_threadsafe(partial(function, *args, **kwargs))

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
            _log.error("cannot open the store, so a delivery is left to a retry: %s", error)
            return later(Reason.STORE_UNAVAILABLE)
        return await self._receiver.handle(body, headers, started=started)

    async def _opened(self) -> None:
        """Open the receiver, once for all who ask at the same time; raise if it cannot be."""
        if self._opening is None:
            self._opening = self._loop.create_task(self._receiver.__aenter__())
        opening = self._opening
        if not opening.done():
            await asyncio.wait({opening}, timeout=self._receiver.limits.store_seconds)
        if not opening.done():
            raise TimeoutError("it has not answered yet")
        if opening.exception() is not None and self._opening is opening:
            self._opening = None  # the next delivery tries again
        opening.result()

    async def close(self) -> None:
        if self._opening is not None:
            if not self._opening.done():
                self._opening.cancel()
                await asyncio.wait({self._opening})
            if not self._opening.cancelled() and self._opening.exception() is None:
                await self._receiver.__aexit__(None, None, None)
        if self._answering:  # what was drained is still to be told to those who wait
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
            task.cancel()  # nobody is to wait for an answer from a loop that stands still
        if late:
            await asyncio.wait(late)
        await self._loop.shutdown_asyncgens()


class _Executor(ThreadPoolExecutor):
    """Threads for blocking work of the loop; at exit, when there are no more, the loop does it."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:  # the interpreter exits: its pools are closed before atexit comes
            done: Future[T] = Future()
            try:
                done.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - it belongs to who asked
                done.set_exception(error)
            return done


def _stuck() -> Outcome:
    _log.error("the event loop gave no answer in time; does a handler block it?")
    return later(Reason.STILL_RUNNING)
