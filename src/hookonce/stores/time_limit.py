"""Time limits for single calls; each call has its own timer.

An attempt's own calls to the store have no timer: ``Lease.ask`` limits them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Generator
from types import CoroutineType
from typing import Any, Generic, TypeVar

from ..errors import StoreError
from ..logs import get_logger

_log = get_logger("hookonce")

T = TypeVar("T")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
"""The first and the longest pause between repetitions of a failed call; each pause doubles."""


class BrokenStoreError(StoreError):
    """A custom store raised an error other than StoreError."""


class OutOfTimeError(TimeoutError):
    """A time limit of this module ended a call; a plain TimeoutError comes from the call itself."""


async def within(seconds: float, call: Awaitable[T]) -> T:
    """Return the result of a store's call; raise StoreError if it fails or exceeds ``seconds``."""
    try:
        return await limited(seconds, call)
    except StoreError:
        raise
    except TimeoutError as error:
        raise StoreError(f"the store did not answer within {seconds:g} s") from error
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise store_error(error) from error
    except Exception as error:
        raise store_error(error) from error


async def set_within(seconds: float | None, event: asyncio.Event) -> bool:
    """Wait at most this many seconds for an event; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def store_error(error: BaseException) -> StoreError:
    """Log an error other than StoreError, and return the StoreError to raise instead."""
    _log.error("the store raised an error that is no StoreError", exc_info=error)
    return BrokenStoreError(f"the store raised {type(error).__name__}")


async def limited(seconds: float, call: Awaitable[T]) -> T:
    """Return the result of an awaitable; raise OutOfTimeError if it takes too long.

    Like ``asyncio.timeout`` around an ``await``, but it sets a timer only when the call first
    waits: most bodies have already arrived, and a store in memory never waits.
    """
    # The iterator of another awaitable, such as Granian's, may have no `send` and no `throw`.
    steps = (call if isinstance(call, CoroutineType) else _awaited(call)).__await__()
    try:
        awaited = next(steps)
    except StopIteration as ended:
        result: T = ended.value
        return result
    try:
        async with asyncio.timeout(seconds) as limit:
            return await _Rest(steps, awaited)
    except TimeoutError as error:
        if limit.expired():
            raise OutOfTimeError from error
        raise


async def _awaited(call: Awaitable[T]) -> T:
    return await call


class _Rest(Generic[T]):
    """Awaits the rest of a call that is suspended at its first wait."""

    def __init__(self, steps: Generator[Any, Any, T], awaited: object) -> None:
        self._steps = steps
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        awaited = self._awaited
        try:
            while True:
                try:
                    sent = yield awaited
                except BaseException as error:  # noqa: BLE001 - the waiting call gets the error, and may catch it
                    awaited = self._steps.throw(error)
                else:
                    awaited = self._steps.send(sent)
        except StopIteration as ended:
            result: T = ended.value
            return result
