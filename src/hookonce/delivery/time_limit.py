"""Time limits for calls that are made now and then; runs are watched by their watchman."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

from ..errors import StoreError

__all__ = ["OutOfTimeError", "limited", "within"]

T = TypeVar("T")


class OutOfTimeError(TimeoutError):
    """A time limit of ours has run out; a plain TimeoutError came from what was called."""


async def within(seconds: float, call: Awaitable[T]) -> T:
    """Return what a store's call returns; one that takes longer is an unreachable store."""
    try:
        return await limited(seconds, call)
    except TimeoutError as error:
        raise StoreError(f"the store did not answer within {seconds:g} s") from error


async def limited(seconds: float, call: Awaitable[T]) -> T:
    """Return what an awaitable returns; raise OutOfTimeError if it takes longer than that.

    Like ``asyncio.timeout`` around an ``await``, but the timer is set when the call first waits for
    something: most bodies have arrived, and a store in memory never waits.
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
