"""Waits until a condition holds, with a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable

__all__ = ["PATIENCE_SECONDS", "until", "until_async"]

PATIENCE_SECONDS = 20.0
"""Longer than anything takes on a slow machine; only a broken program waits as long."""

_PAUSE_SECONDS = 0.005


async def until(
    condition: Callable[[], object], *, seconds: float = PATIENCE_SECONDS, what: str = ""
) -> None:
    """Return once the condition holds; fail when the deadline has passed."""

    async def holds() -> object:
        return condition()

    await until_async(holds, seconds=seconds, what=what or repr(condition))


async def until_async(
    condition: Callable[[], Awaitable[object]],
    *,
    seconds: float = PATIENCE_SECONDS,
    what: str = "",
) -> None:
    """Return once an awaited condition holds; fail when the deadline has passed."""
    deadline = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or condition!r}")
        await asyncio.sleep(_PAUSE_SECONDS)
