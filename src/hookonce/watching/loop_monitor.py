"""Notices a handler that blocks the event loop: an async one that waits without ``await``.

The loop cannot say so itself, since nothing of it runs meanwhile. A thread looks now and then
whether the watchman of the runs still goes round. Where it does not, the loop's current task shows
which handler it is in. The frames of another thread are never read: that may crash the process. No
clock is asked: a test may have stopped it, and so may a laptop's lid. The thread lives only while
there are runs, and some seconds longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .records import LoopBlocked

BLOCKED_SECONDS = 1.0
"""From here on it is told of: as long as a sender's tenth of patience, and more than a hiccup."""

_LOOK_SECONDS = 0.25
_IDLE_LOOKS = 40


class Pulse:
    """Of one watchman: how often he has gone round, and in whom he was found to be stuck.

    Args:
        endpoint: whose events he watches.
        current: returns the handler that the loop is in; called in another thread.

    """

    __slots__ = ("_beats", "_current", "_endpoint", "_handler", "_looks", "_seen")

    def __init__(self, endpoint: str, current: Callable[[], str | None]) -> None:
        self._beats = self._seen = self._looks = 0
        self._endpoint = endpoint
        self._current = current
        self._handler: str | None = None

    def start(self) -> None:
        """Have it felt from now on."""
        _felt.add(self)

    def stop(self) -> None:
        """Have it felt no more: there is no run under way."""
        _felt.discard(self)

    def beat(self) -> LoopBlocked | None:
        """Note that the loop turns; return what has kept it from that, if it was for long."""
        self._beats += 1
        if self._handler is None:
            return None
        handler, self._handler = self._handler, None
        seconds = self._looks * _LOOK_SECONDS
        return LoopBlocked(self._endpoint, handler, seconds) if seconds >= BLOCKED_SECONDS else None

    def feel(self) -> None:
        """Look whether it has beaten since the last look, and if not, in whom the loop is."""
        if self._beats != self._seen:
            self._seen, self._looks = self._beats, 0
            return
        handler = self._current()
        if handler is None or handler != (self._handler or handler):
            self._looks = 0
            return
        self._looks += 1
        self._handler = handler


class _Felt:
    """The pulses of this process that are felt, and the thread that does."""

    def __init__(self) -> None:
        self._pulses: set[Pulse] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, pulse: Pulse) -> None:
        with self._lock:
            self._pulses.add(pulse)
            if self._thread is None or not self._thread.is_alive():  # it ends with a fork
                self._thread = threading.Thread(
                    target=self._feel, name="hookonce-pulse", daemon=True
                )
                self._thread.start()

    def discard(self, pulse: Pulse) -> None:
        with self._lock:
            self._pulses.discard(pulse)

    def _feel(self) -> None:
        pause = threading.Event()
        idle = 0
        while idle < _IDLE_LOOKS:
            pause.wait(_LOOK_SECONDS)
            idle = self._look(idle)

    def _look(self, idle: int) -> int:
        """Feel the pulses, and return how many looks in a row have found none.

        Apart from the thread's loop, whose variables would keep a receiver that has ended.
        """
        with self._lock:
            pulses = list(self._pulses)
            idle = 0 if pulses else idle + 1
            if idle == _IDLE_LOOKS:
                self._thread = None
        for pulse in pulses:
            pulse.feel()
        return idle


_felt = _Felt()
