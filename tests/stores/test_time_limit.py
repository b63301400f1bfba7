"""A time limit ends a call that takes too long, and changes nothing else about it."""

import asyncio
from typing import Any

import pytest
from support.servers import PlainAwaitable

from hookonce.stores.time_limit import OutOfTimeError, limited

pytestmark = pytest.mark.anyio

SOON, NEVER = 0.02, 60.0


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list of every timer that the loop sets."""
    noted: list[float] = []
    call_at = asyncio.BaseEventLoop.call_at

    def noting(loop: asyncio.BaseEventLoop, when: float, *arguments: Any, **more: Any) -> Any:
        noted.append(when)
        return call_at(loop, when, *arguments, **more)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_at", noting)
    return noted


async def test_a_call_that_does_not_wait_sets_no_timer(timers: list[float]) -> None:
    async def at_once() -> str:
        return "result"

    assert await limited(NEVER, at_once()) == "result"
    assert timers == []


async def test_a_call_that_waits_has_a_timer_and_returns_its_result(timers: list[float]) -> None:
    async def in_steps() -> list[int]:
        got = []
        for number in range(3):
            await asyncio.sleep(0)
            got.append(number)
        return got

    assert await limited(NEVER, in_steps()) == [0, 1, 2]
    assert len(timers) == 1


async def test_futures_and_tasks_can_be_limited() -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_result, 1)
    assert await limited(NEVER, future) == 1
    assert await limited(NEVER, asyncio.create_task(asyncio.sleep(0, 2))) == 2
    done = loop.create_future()
    done.set_result(3)
    assert await limited(NEVER, done) == 3


async def test_an_awaitable_that_can_do_no_more_than_be_awaited_is_limited_too() -> None:
    loop = asyncio.get_running_loop()
    good, bad, never = (loop.create_future() for _ in range(3))
    loop.call_soon(good.set_result, "result")
    loop.call_soon(bad.set_exception, KeyError("its own"))
    assert await limited(NEVER, PlainAwaitable(good)) == "result"
    with pytest.raises(KeyError, match="its own"):
        await limited(NEVER, PlainAwaitable(bad))
    with pytest.raises(OutOfTimeError):
        await limited(SOON, PlainAwaitable(never))
    assert never.cancelled()


async def test_a_call_that_waits_too_long_is_cancelled_and_may_clean_up() -> None:
    steps: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            steps.append("cancelled")
            await asyncio.sleep(0)  # a second wait, after the time limit has cancelled the first
            steps.append("cleaned up")
            raise

    with pytest.raises(OutOfTimeError):
        await limited(SOON, slow())
    assert steps == ["cancelled", "cleaned up"]


@pytest.mark.parametrize("waits", [False, True])
async def test_its_own_errors_come_out_as_they_are(*, waits: bool) -> None:
    async def failing() -> None:
        if waits:
            await asyncio.sleep(0)
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own") as raised:
        await limited(NEVER, failing())
    assert not isinstance(raised.value, OutOfTimeError)


async def test_an_error_thrown_into_a_wait_can_be_caught_there() -> None:
    async def patient() -> str:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, KeyError("it"))
        try:
            await future
        except KeyError:
            await asyncio.sleep(0)
            return "went on"
        return "never"

    assert await limited(NEVER, patient()) == "went on"


async def test_a_cancellation_from_outside_stays_a_cancellation() -> None:
    ended: list[str] = []

    async def waiting() -> None:
        try:
            await asyncio.sleep(NEVER)
        finally:
            ended.append("ended")

    task = asyncio.create_task(limited(NEVER, waiting()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]


async def test_limits_can_be_nested() -> None:
    async def inner() -> None:
        with pytest.raises(OutOfTimeError):
            await limited(SOON, asyncio.sleep(NEVER))
        await asyncio.sleep(0)

    await limited(NEVER, inner())
