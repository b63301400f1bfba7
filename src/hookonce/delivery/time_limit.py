"""Time limits that cost little, since every delivery has several and hardly any runs out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

__all__ = ["OutOfTimeError", "done_within", "limited"]

T = TypeVar("T")


class OutOfTimeError(TimeoutError):
    """A time limit of ours has run out; a plain TimeoutError came from what was called."""


async def limited(seconds: float, call: Awaitable[T]) -> T:
    """Return what an awaitable returns; raise OutOfTimeError if it takes longer than that.

    Like ``asyncio.timeout`` around an ``await``, but the timer is set when the call first waits for
    something. Most bodies have arrived, many handlers wait for nothing, and a store in memory never
    does; a timer that is set and cancelled costs a twentieth of a delivery.
    """
    steps = call.__await__()
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


async def done_within(seconds: float, future: asyncio.Future[Any]) -> bool:
    """Return whether a future is done, which is waited for no longer than that.

    It is never cancelled. ``asyncio.wait`` does the same for many, at twice the price for one.
    """
    if not future.done():
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def wake(_: object = None) -> None:
            if not waiter.done():
                waiter.set_result(None)

        timer = loop.call_later(seconds, wake)
        future.add_done_callback(wake)
        try:
            await waiter
        finally:
            timer.cancel()
            future.remove_done_callback(wake)
    return future.done()


class _Rest(Generic[T]):
    """What is left of a call that was run to its first wait."""

    def __init__(self, steps: Generator[Any, Any, T], awaited: object) -> None:
        self._steps = steps
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        awaited = self._awaited
        try:
            while True:
                try:
                    sent = yield awaited
                except BaseException as error:  # noqa: BLE001 - what ends a wait goes to who waits
                    awaited = self._steps.throw(error)
                else:
                    awaited = self._steps.send(sent)
        except StopIteration as ended:
            result: T = ended.value
            return result
