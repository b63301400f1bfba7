"""Reports a handler that blocks the event loop: an async handler that waits without ``await``.

A blocked loop runs nothing and so cannot report itself. Each receiver's timer in the loop counts
its ticks, and a thread checks that the count grows. If it does not grow, the loop's current task
shows which handler is running. The thread does not read the frames of the loop's thread, because
that may crash the process. It measures by counting checks, not by a clock: a test may freeze a
clock, and a laptop may sleep. The thread runs while attempts are in flight and ten seconds longer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from ..logs import event_fields, get_logger
from .observers import Observers
from .records import LoopBlocked

_log = get_logger("hookonce")

BLOCKED_SECONDS = 1.0
"""Shorter blocks are not reported: this is a tenth of the sender's time-out."""

_LOOK_SECONDS = 0.25
_IDLE_LOOKS = 40

# How long the warning stays: a handler that blocks once will block again.
_WARNING_SECONDS = 600.0


class LoopMonitor:
    """Counts the loop's iterations; remembers which handler was running when the loop blocked.

    Args:
        endpoint: the name of the receiver's endpoint.
        observers: notified when a handler has blocked the loop.
        current: returns the handler that the loop is running; called in another thread.
    """

    __slots__ = (
        "_current",
        "_endpoint",
        "_handler",
        "_looks",
        "_observers",
        "_seen",
        "_ticks",
        "_warning",
        "_warning_until",
    )

    def __init__(
        self, endpoint: str, observers: Observers, current: Callable[[], str | None]
    ) -> None:
        self._ticks = self._seen = self._looks = 0
        self._endpoint = endpoint
        self._observers = observers
        self._current = current
        self._handler: str | None = None
        self._warning, self._warning_until = "", 0.0

    def warnings(self) -> tuple[str, ...]:
        """Return a warning if a handler has blocked the event loop in the last ten minutes."""
        if not self._warning or asyncio.get_running_loop().time() > self._warning_until:
            return ()
        return (self._warning,)

    def start(self) -> None:
        """Start monitoring."""
        _monitor_thread.add(self)

    def stop(self) -> None:
        """Stop monitoring, because no attempt is in flight."""
        _monitor_thread.discard(self)

    def tick(self, now: float) -> None:
        """Count an iteration of the loop; report a handler that has just blocked it.

        Args:
            now: the event loop's time.
        """
        self._ticks += 1
        if self._handler is None:
            return
        handler, self._handler = self._handler, None
        seconds = self._looks * _LOOK_SECONDS
        if seconds < BLOCKED_SECONDS:
            return
        self._warning_until = now + _WARNING_SECONDS
        self._warning = (
            f"the handler {handler} has blocked the event loop for {seconds:.2f} s, and so every"
            " other delivery and all leases; let it await, or make it a plain function, which runs"
            " in a thread"
        )
        fields = event_fields(self._endpoint, None, None, handler=handler)
        _log.error("%s", self._warning, extra=fields)
        self._observers.notify(LoopBlocked(self._endpoint, handler, seconds))

    def check(self) -> None:
        """If the loop has not ticked since the last check, remember the running handler."""
        if self._ticks != self._seen:
            self._seen, self._looks = self._ticks, 0
            return
        handler = self._current()
        if handler is None or handler != (self._handler or handler):
            self._looks = 0
            return
        self._looks += 1
        self._handler = handler


class _MonitorThread:
    """The active monitors of this process, and the thread that checks them."""

    def __init__(self) -> None:
        self._monitors: set[LoopMonitor] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, monitor: LoopMonitor) -> None:
        with self._lock:
            self._monitors.add(monitor)
            if self._thread is None or not self._thread.is_alive():  # a fork does not copy a thread
                self._thread = threading.Thread(
                    target=self._run, name="hookonce-loop-monitor", daemon=True
                )
                self._thread.start()

    def discard(self, monitor: LoopMonitor) -> None:
        with self._lock:
            self._monitors.discard(monitor)

    def _run(self) -> None:
        pause = threading.Event()
        idle = 0
        while idle < _IDLE_LOOKS:
            pause.wait(_LOOK_SECONDS)
            idle = self._look(idle)

    def _look(self, idle: int) -> int:
        """Check all monitors; return the number of consecutive checks that have found no monitor.

        This is a method of its own so that no local variable of the thread's loop keeps a
        receiver alive after its end.
        """
        with self._lock:
            monitors = list(self._monitors)
            idle = 0 if monitors else idle + 1
            if idle == _IDLE_LOOKS:
                self._thread = None
        for monitor in monitors:
            monitor.check()
        return idle


_monitor_thread = _MonitorThread()
