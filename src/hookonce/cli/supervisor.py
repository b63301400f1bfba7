"""Several processes that share the work, and the supervisor that starts, replaces and ends them.

uvicorn's own supervisor does not fit: it starts an application that cannot be imported twice a
second for ever, waits for ever for a process that hangs at its end, ignores a second signal, and
leaves its processes at the port when it is killed.

The supervisor imports nothing of the application: each process is a fork of it that imports the
application by itself. Both sides share a pair of sockets. A process writes a line when it is ready,
and reads the end of the stream when the supervisor is gone; then it ends too.
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
from dataclasses import dataclass
from math import inf
from types import FrameType

import click

from hookonce.watching.process import process_name

from .output import Option
from .statuses import ENDED_BY_SIGNAL, CannotBegin, Status

processes_option: Option = click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="How many processes share the work. With more than one, a supervisor replaces those that"
    " die.",
)

_log = logging.getLogger("hookonce")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# How long a signal or the death of a process may stay unnoticed.
_TICK_SECONDS = 0.1

# A process that dies sooner than this after it was ready counts as a failure.
_STABLE_SECONDS = 10.0
_MAX_FAILURES = 5
_PAUSE_STEP_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
# After this time without a failure, the count of failures begins again at zero. A process that
# fails at every start fails more often than this, even with the longest pause between its starts.
_RESET_SECONDS = 60.0

# How long a process may take to end if it was not ready yet: only a ready process reports its own
# limit.
_STARTING_END_SECONDS = 60.0


class Member:
    """The connection of a process to its supervisor; the process ends when the supervisor ends.

    Attributes:
        place: the number of the process, from 0. A process that replaces a dead process gets the
            same number.
    """

    def __init__(self, line: socket.socket, place: int) -> None:
        self._line = line
        self.place = place
        threading.Thread(target=self._end_with_supervisor, daemon=True).start()

    def report_ready(self, end_seconds: float) -> None:
        """Tell the supervisor that this process has started.

        Args:
            end_seconds: how long its shutdown may take before the supervisor kills it.
        """
        # Ignore here that the supervisor has ended: the other thread notices it, and ends this
        # process.
        with suppress(OSError):
            self._line.sendall(f"{os.getpid()} {end_seconds}\n".encode())

    def _end_with_supervisor(self) -> None:
        with suppress(OSError):
            self._line.recv(1)  # the supervisor never writes: recv returns when it has ended
        os.kill(os.getpid(), signal.SIGTERM)


def supervised(count: int, announcement: str, listeners: Sequence[socket.socket] = ()) -> Member:
    """Fork ``count`` processes and return in each of them; the calling process never returns.

    A process that cannot start ends all of them, with its exit status. A process that dies later is
    replaced: after growing pauses if processes keep dying soon after their start. If five processes
    die soon, and no process is stable, the command ends. The first SIGTERM or SIGINT shuts all of
    them down, the second kills them.

    Args:
        announcement: what the log says when the first process is ready.
        listeners: sockets that the processes share; the supervisor closes its copies at the end.
    """
    if not hasattr(os, "fork"):
        raise CannotBegin("--processes needs os.fork, which this system lacks; leave it out")
    return _Supervisor(count, announcement, listeners).run()


@dataclass(slots=True)
class _Process:
    place: int
    ready_since: float = inf
    end_seconds: float = _STARTING_END_SECONDS

    def is_stable(self) -> bool:
        return time.monotonic() - self.ready_since >= _STABLE_SECONDS


class _Supervisor:
    def __init__(self, count: int, announcement: str, listeners: Sequence[socket.socket]) -> None:
        self._count = count
        self._announcement = announcement
        self._listeners = listeners
        self._processes: dict[int, _Process] = {}
        self._ours, self._theirs = socket.socketpair()
        self._received = b""
        self._signals: list[int] = []
        self._has_started = False
        self._failures = 0
        self._last_failure = -inf
        self._next_start = -inf
        self._status = 0
        self._deadline: float | None = None  # the time at which the shutdown must be over

    def run(self) -> Member:
        before = {number: signal.signal(number, self._note_signal) for number in _SIGNALS}
        while True:
            while self._lacks_process():
                # Block signals during the fork: until the new process has its own handlers, it
                # would lose a signal.
                signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
                place = self._free_place()
                is_new = self._fork(place)
                if is_new:
                    for number, handler in before.items():
                        signal.signal(number, handler)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
                if is_new:
                    return Member(self._theirs, place)
            self._read_reports(_TICK_SECONDS)
            # Handle signals before dead processes: a service manager may have signalled every
            # process, and a process that ended for this reason must not count as a failure.
            self._obey_signals()
            self._reap()
            self._kill_late()
            if self._deadline is not None and not self._processes:
                sys.exit(self._status)

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _lacks_process(self) -> bool:
        """Return whether to start a process now; the first must be ready before others start."""
        wanted = self._count if self._has_started else 1
        return (
            self._deadline is None
            and len(self._processes) < wanted
            and time.monotonic() >= self._next_start
        )

    def _free_place(self) -> int:
        taken = {process.place for process in self._processes.values()}
        return min(set(range(self._count)) - taken)

    def _fork(self, place: int) -> bool:
        """Fork a process; return True in the new process, and False in the supervisor."""
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            self._note_failure(f"cannot start a process ({error.strerror})")
            return False
        if pid:
            self._processes[pid] = _Process(place)
            return False
        self._ours.close()
        # A terminal sends Ctrl-C to its process group: only the supervisor stays in that group.
        os.setpgid(0, 0)
        return True

    def _read_reports(self, seconds: float) -> None:
        """Record which processes are ready; wait up to ``seconds`` for a report."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return
        *lines, self._received = (self._received + self._ours.recv(4096)).split(b"\n")
        for line in lines:
            pid, _, end_seconds = line.partition(b" ")
            process = self._processes.get(int(pid))
            if process is None:
                continue
            process.ready_since, process.end_seconds = time.monotonic(), float(end_seconds)
            _log.info("process %s is ready", process_name(int(pid)))
            if not self._has_started:
                self._has_started = True
                _log.info("%s in %d processes", self._announcement, self._count)

    def _reap(self) -> None:
        while self._processes:
            # As PID 1 the supervisor inherits orphans, so wait for any child.
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._read_reports(0)  # read the process's last reports first
            process = self._processes.pop(pid, None)
            if process is not None:
                self._note_end(pid, process, os.waitstatus_to_exitcode(status))

    def _note_end(self, pid: int, process: _Process, status: int) -> None:
        name = process_name(pid)
        how = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
        if self._deadline is not None:
            if status not in {0, -signal.SIGTERM}:
                _log.error("process %s %s", name, how)
                self._status = self._status or 1
        elif not self._has_started:
            # With these statuses the process has printed the reason, so log nothing.
            if status not in {Status.FOUND, Status.CANNOT_BEGIN}:
                _log.error("process %s %s before it was ready", name, how)
            self._shut_down(max(1, status))
        elif process.is_stable():
            _log.warning("process %s %s; starting another", name, how)
        else:
            self._note_failure(f"process {name} {how} soon after its start")

    def _note_failure(self, what: str) -> None:
        """Count a failure; give up, or set the pause before the next start."""
        now = time.monotonic()
        if now - self._last_failure > _RESET_SECONDS:
            self._failures = 0
        self._failures += 1
        self._last_failure = now
        is_any_stable = any(one.is_stable() for one in self._processes.values())
        if self._failures >= _MAX_FAILURES and not is_any_stable:
            _log.error("%s; giving up after %d failures: see the lines above", what, self._failures)
            self._shut_down(1)
            return
        pause = min(_PAUSE_STEP_SECONDS * (self._failures - 1), _LONGEST_PAUSE_SECONDS)
        self._next_start = now + pause
        _log.error("%s; starting another in %.1f s", what, pause)

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._deadline is None:
                _log.info(
                    "shutting down %d processes: running handlers may finish; a second signal kills"
                    " them",
                    len(self._processes),
                )
                self._shut_down(0)
            else:
                self._status = ENDED_BY_SIGNAL + number
                self._send(signal.SIGKILL)

    def _kill_late(self) -> None:
        if self._deadline is not None and self._processes and time.monotonic() > self._deadline:
            names = ", ".join(map(process_name, self._processes))
            _log.error("killing processes that did not end in time: %s", names)
            self._status, self._deadline = 1, inf
            self._send(signal.SIGKILL)

    def _shut_down(self, status: int) -> None:
        self._status = status
        longest = max((one.end_seconds for one in self._processes.values()), default=0.0)
        self._deadline = time.monotonic() + longest
        for listener in self._listeners:  # close the port: no process accepts connections any more
            listener.close()
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._processes:
            os.kill(pid, number)
