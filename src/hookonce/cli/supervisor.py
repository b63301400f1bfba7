"""Several processes that do the same work, and the supervisor that starts, watches and ends them.

The supervisor loads nothing of the application: every process is a fork of it that imports the
application by itself, and so is the one that takes the place of a process that has died. The two
sides share a pair of sockets. A process writes a line once it is at work, and hears there that its
supervisor is gone, so that it ends too and keeps neither the port nor the work.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from types import FrameType

import click

from .statuses import CannotBegin, Status

processes_option = click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="How many processes share the work. With more than one, a supervisor replaces those that"
    " die.",
)

_log = logging.getLogger("hookonce")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# How late a death or a signal may be noticed.
_TICK_SECONDS = 0.1

# A process that has worked so long was well; whatever ended it, another is started at once.
_WELL_SECONDS = 10.0
_MOST_SHORT_LIVES = 5
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
# After that, an end has nothing to do with those before: longer than a pause and a short life.
_FORGOTTEN_SECONDS = 60.0

# For one that has not said how long its end may take: it was still starting.
_END_SECONDS = 60.0

# What a shell reports for a process that a signal has ended.
_ENDED_BY_SIGNAL = 128


class Member:
    """One of the processes, to itself: it tells the supervisor of its start, and ends with it."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        threading.Thread(target=self._end_with_supervisor, daemon=True).start()

    def is_at_work(self, end_seconds: float) -> None:
        """Tell the supervisor that the start has succeeded.

        Args:
            end_seconds: how long an end in order may take; after that the supervisor kills it.

        """
        with suppress(OSError):  # it is gone, and the thread knows
            self._line.sendall(f"{os.getpid()} {end_seconds}\n".encode())

    def _end_with_supervisor(self) -> None:
        with suppress(OSError):
            self._line.recv(1)  # nobody writes: it returns when the other end is closed
        os.kill(os.getpid(), signal.SIGTERM)


def supervised(count: int, announcement: str, listeners: Sequence[socket.socket] = ()) -> Member:
    """Return in each of so many processes; the one that calls it supervises them, and ends in here.

    A process that cannot start ends them all, with its status and what it has printed. One that
    dies later is replaced, after growing pauses if that happens again and again, and five that die
    soon after their start, while none is well, end them all. SIGTERM and SIGINT end them in order,
    the second signal at once.

    Args:
        count: how many processes.
        announcement: what the log says when the first of them is at work.
        listeners: sockets that they share, to be closed here when they end.

    """
    if not hasattr(os, "fork"):
        raise CannotBegin("this system has no fork; start one process, or several by hand")
    return _Supervisor(count, announcement, listeners).run()


@dataclass(slots=True)
class _Process:
    """A process, to the supervisor."""

    started: float = field(default_factory=time.monotonic)
    at_work_since: float = inf
    end_seconds: float = _END_SECONDS

    def is_well(self) -> bool:
        """Return whether it has worked for so long that its end would be no failed start."""
        return time.monotonic() - self.at_work_since >= _WELL_SECONDS


class _Supervisor:
    def __init__(self, count: int, announcement: str, listeners: Sequence[socket.socket]) -> None:
        self._count = count
        self._announcement = announcement
        self._listeners = listeners
        self._processes: dict[int, _Process] = {}
        self._ours, self._theirs = socket.socketpair()
        self._heard = b""
        self._asked: list[int] = []
        self._has_worked = False
        self._short_lives = 0
        self._next_start = -inf
        self._status = 0
        self._deadline: float | None = None

    def run(self) -> Member:
        before = [signal.signal(number, self._note_signal) for number in _SIGNALS]
        while True:
            while self._needs_one():
                # A signal to the new process would be lost while it has the supervisor's handlers.
                signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
                is_new = self._fork()
                if is_new:
                    for number, handler in zip(_SIGNALS, before, strict=True):
                        signal.signal(number, handler)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
                if is_new:
                    return Member(self._theirs)
            self._hear(_TICK_SECONDS)
            self._reap()
            self._obey()
            if self._deadline is not None and not self._processes:
                sys.exit(self._status)

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        self._asked.append(number)

    def _needs_one(self) -> bool:
        """Return whether a process is to be started: at first one alone, which shows if it can."""
        wanted = self._count if self._has_worked else 1
        return (
            self._deadline is None
            and len(self._processes) < wanted
            and time.monotonic() >= self._next_start
        )

    def _fork(self) -> bool:
        """Start a process and return whether this is it."""
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            _log.error("no process can be started: %s", error.strerror)
            self._note_short_life()
            return False
        if pid:
            self._processes[pid] = _Process()
            return False
        self._ours.close()
        os.setpgid(0, 0)  # Ctrl-C on a terminal is the supervisor's to pass on, once
        return True

    def _hear(self, seconds: float) -> None:
        """Take note of who is at work, waiting so long for a line."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return
        *lines, self._heard = (self._heard + self._ours.recv(4096)).split(b"\n")
        for line in lines:
            pid, _, end_seconds = line.partition(b" ")
            process = self._processes.get(int(pid))
            if process is None:
                continue
            process.at_work_since, process.end_seconds = time.monotonic(), float(end_seconds)
            _log.info("process %d is at work", int(pid))
            if not self._has_worked:
                self._has_worked = True
                _log.info("%s in %d processes", self._announcement, self._count)

    def _reap(self) -> None:
        while self._processes:
            # Of any child: as a container's first process it is given those nobody waits for.
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._hear(0)  # what it said before
            process = self._processes.pop(pid, None)
            if process is not None:
                self._note_end(pid, process, os.waitstatus_to_exitcode(status))

    def _note_end(self, pid: int, process: _Process, status: int) -> None:
        how = f"ended with {status}" if status >= 0 else f"was ended by {_signal_name(-status)}"
        if self._deadline is not None:
            if status not in {0, -signal.SIGTERM}:
                _log.error("process %d %s", pid, how)
                self._status = self._status or 1
            return
        if not self._has_worked:
            if status not in {Status.FOUND, Status.CANNOT_BEGIN}:  # with these it has said why
                _log.error("process %d %s before it was at work", pid, how)
            self._end(max(1, status))
            return
        if process.is_well():
            _log.warning("process %d %s; another takes its place", pid, how)
            return
        how += f" {time.monotonic() - process.started:.1f} s after its start"
        pause = self._note_short_life()
        is_anyone_well = any(one.is_well() for one in self._processes.values())
        if is_anyone_well or self._short_lives < _MOST_SHORT_LIVES:
            _log.error("process %d %s; another is started in %.1f s", pid, how, pause)
            return
        _log.error(
            "process %d %s, the last of %d that did not live long, and none is well; giving up, and"
            " the lines above say why",
            *(pid, how, self._short_lives),
        )
        self._end(1)

    def _note_short_life(self) -> float:
        """Count a start in vain, and return the pause before the next: none after a single one."""
        if time.monotonic() - self._next_start > _FORGOTTEN_SECONDS:
            self._short_lives = 0
        self._short_lives += 1
        doubled = _FIRST_PAUSE_SECONDS * 2 ** min(self._short_lives - 2, 10)
        pause = 0.0 if self._short_lives == 1 else min(doubled, _LONGEST_PAUSE_SECONDS)
        self._next_start = time.monotonic() + pause
        return pause

    def _obey(self) -> None:
        """Do what signals ask for, and kill what does not end in time."""
        while self._asked:
            number = self._asked.pop(0)
            if self._deadline is None:
                _log.info(
                    "ending: running handlers may finish in %d processes; a second signal ends at"
                    " once",
                    len(self._processes),
                )
                self._end(0)
            else:
                self._status = _ENDED_BY_SIGNAL + number
                self._send(signal.SIGKILL)
        if self._deadline is not None and self._processes and time.monotonic() > self._deadline:
            _log.error("killing what has not ended in time: %s", [*self._processes])
            self._status, self._deadline = 1, inf
            self._send(signal.SIGKILL)

    def _end(self, status: int) -> None:
        self._status = status
        patience = max((one.end_seconds for one in self._processes.values()), default=0.0)
        self._deadline = time.monotonic() + patience
        for listener in self._listeners:  # or who connects would wait for an answer
            listener.close()
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._processes:
            os.kill(pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
