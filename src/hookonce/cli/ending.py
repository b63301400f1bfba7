"""How a command that runs handlers ends: at a signal, and with threads that cannot be stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import click

from hookonce import Limits
from hookonce.delivery.calls import THREAD_NAME_PREFIX

from .statuses import Status

_IDLE_THREAD_SECONDS = 0.2

# What a shell reports for a process that a signal has ended.
_ENDED_BY_SIGNAL = 128

# How many calls one after the other may find the store hanging: those of handlers that end, of
# those that are released, and of the workers.
_LAST_CALLS = 10


def end_seconds_of(limits: Limits) -> float:
    """Return how long a receiver with these limits needs at most to end in order."""
    return limits.drain_seconds + _LAST_CALLS * limits.store_seconds


@contextmanager
def ended_by_signals(end: Callable[[], object], *, at_once: bool = True) -> Iterator[None]:
    """Call ``end`` at the first SIGTERM or SIGINT; end the process at once at the second.

    The default disposition would not do for the second: a container's first process ignores it.

    Args:
        end: what to call.
        at_once: take note of a second signal. A supervisor ends its processes itself, and the first
            may reach them twice: from it, and from what has sent it to all of them.

    """
    asked = False

    def take(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked and not at_once:
            return
        if asked:
            _end_now(_ENDED_BY_SIGNAL + number)
        asked = True
        end()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, take) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def ended_after_this(what: str) -> Iterator[None]:
    """Hold SIGTERM, SIGHUP and Ctrl-C back while the block lasts; end at its end if one came.

    Args:
        what: what the operator is told that the command waits for.

    """
    asked: list[int] = []

    def take(number: int, _: FrameType | None) -> None:
        if not asked:
            os.write(2, f"ending after this: {what}\n".encode())
        asked.append(number)

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if is_main else ()
    # What a shell has told a command in the background to ignore stays so.
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, take)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        raise SystemExit(_ENDED_BY_SIGNAL + asked[0])


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that what was begun is ended in order."""
    is_terminated = False

    def take(_: int, __: FrameType | None) -> None:
        nonlocal is_terminated
        is_terminated = True
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, take)
    try:
        yield
    except KeyboardInterrupt:
        if is_terminated:
            raise SystemExit(Status.TERMINATED) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_its_threads(what_follows: str = "their events will be retried") -> None:
    """End now, though sync handlers still run: each holds its event only for a lease.

    The interpreter would wait for their threads, and as a container's first process not even
    the signal that ended the server ends it.

    Args:
        what_follows: what the operator is told that becomes of their events.

    """
    handlers = [t for t in threading.enumerate() if t.name.startswith(THREAD_NAME_PREFIX)]
    for thread in handlers:
        thread.join(_IDLE_THREAD_SECONDS)
    if any(thread.is_alive() for thread in handlers):
        click.echo(f"ended while sync handlers were running; {what_follows}", err=True)
        _end_now(Status.FOUND)


def _end_now(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
