"""Ends a command that runs handlers: after a signal, or while handlers still run in threads."""

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

from .statuses import ENDED_BY_SIGNAL, Status

_IDLE_THREAD_SECONDS = 0.2

# A shutdown makes at most this many calls to the store one after the other: to record the end of
# handlers, to release events, and to stop workers. Each call may time out.
_LAST_CALLS = 10


def end_seconds_of(limits: Limits) -> float:
    """Return the longest time in which a receiver with these limits shuts down."""
    return limits.drain_seconds + _LAST_CALLS * limits.store_seconds


@contextmanager
def ended_by_signals(end: Callable[[], object], *, kills_at_second: bool = True) -> Iterator[None]:
    """Call ``end`` at the first SIGTERM or SIGINT; kill this process at the second.

    Args:
        kills_at_second: False under a supervisor, which kills its processes itself. They may
            receive the first signal twice: from the supervisor, and from a service manager.
    """
    is_ending = False

    def receive(number: int, _: FrameType | None) -> None:
        nonlocal is_ending
        if is_ending and kills_at_second:
            # Do not rely on the signal's default action, because the kernel does not apply it to
            # PID 1.
            _end_now(ENDED_BY_SIGNAL + number)
        if not is_ending:
            is_ending = True
            end()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_after_this(what: str) -> Iterator[None]:
    """Delay SIGTERM, SIGHUP and Ctrl-C until the end of the block.

    Args:
        what: the work that must finish first, for the message to the operator.
    """
    received: list[int] = []

    def receive(number: int, _: FrameType | None) -> None:
        if not received:
            os.write(2, f"ending after this: {what}\n".encode())
        received.append(number)

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if is_main else ()
    # Leave ignored signals ignored: a shell makes background commands ignore SIGINT.
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise SystemExit(ENDED_BY_SIGNAL + received[0])


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C during the block, so that the block cleans up.

    The block also handles SIGINT if a shell made this background command ignore it. Otherwise
    asyncio would install no handler of its own, and a signal could interrupt any line of code.
    """
    is_terminated = False

    def receive(_: int, __: FrameType | None) -> None:
        nonlocal is_terminated
        is_terminated = True
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, receive)
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if is_ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        if is_terminated:
            raise SystemExit(Status.TERMINATED) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        if is_ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with_its_threads(what_follows: str = "their events will be retried") -> None:
    """Exit now if sync handlers still run in threads; otherwise return.

    The interpreter would wait for these threads at its exit. Each handler's event is free again
    when its lease ends.

    Args:
        what_follows: what happens to the events of these handlers, for the message.
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
