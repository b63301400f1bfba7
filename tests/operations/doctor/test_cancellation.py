"""Handlers that outlive their cancellation are found by their source."""

import asyncio
import contextlib
from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

import pytest

from hookonce import Receiver
from hookonce.operations.doctor import Level
from hookonce.operations.doctor.cancellation import cancellation_findings
from hookonce.verification.secrets import new_secret

from .findings import only

NOTED: list[object] = []


async def bare(_: object) -> None:
    try:
        await asyncio.sleep(1)
    except:  # noqa: E722 - what is looked for
        return


async def by_name(_: object) -> None:
    while True:
        try:
            async with asyncio.Lock():
                await asyncio.sleep(1)
        except (ValueError, asyncio.CancelledError):
            continue


async def everything(_: object) -> None:
    try:
        await asyncio.sleep(1)
    except BaseException as error:  # noqa: BLE001 - what is looked for
        NOTED.append(error)


async def suppressed(_: object) -> None:
    with contextlib.suppress(CancelledError):
        await asyncio.sleep(1)


class Waiter:
    async def __call__(self, _: object) -> None:
        try:
            await asyncio.sleep(1)
        except CancelledError:
            return


async def raises_again(_: object) -> None:
    try:
        await asyncio.sleep(1)
    except BaseException:
        NOTED.append("interrupted")
        raise


async def catches_exceptions(_: object) -> None:
    try:
        await asyncio.sleep(1)
    except Exception:  # noqa: BLE001 - as handlers do
        return


async def waits_for_nothing(_: object) -> None:
    try:
        NOTED.append(_)
    except BaseException:  # noqa: BLE001 - nothing can be cancelled here
        return
    await asyncio.sleep(1)


async def ends_its_task(_: object) -> None:
    task = asyncio.create_task(asyncio.sleep(10))
    task.cancel()
    with contextlib.suppress(CancelledError):
        await task


def in_a_thread(_: object) -> None:
    try:
        NOTED.append(_)
    except:  # noqa: E722 - a thread is not cancelled
        return


def judged(handler: Callable[..., Any]) -> Receiver:
    receiver = Receiver(secrets=new_secret(), store="memory://")
    receiver.on("*", name="shop.greet")(handler)
    return receiver


@pytest.mark.parametrize(
    "handler", [bare, by_name, everything, suppressed, Waiter(), Waiter().__call__]
)
def test_one_that_swallows_it_is_a_warning_with_the_line(handler: Callable[..., Any]) -> None:
    found = only(cancellation_findings(judged(handler).handlers), "handlers.cancellation")
    assert found.level is Level.WARNING
    assert "shop.greet" in found.found
    code = getattr(handler, "__code__", None) or type(handler).__call__.__code__
    lines = range(code.co_firstlineno, code.co_firstlineno + 8)
    assert any(f"(line {line})" in found.found for line in lines)


@pytest.mark.parametrize(
    "handler",
    [
        *(raises_again, catches_exceptions, waits_for_nothing, ends_its_task, in_a_thread),
        asyncio.sleep,
    ],
)
def test_one_that_does_not_is_nothing_to_speak_of(handler: Callable[..., Any]) -> None:
    assert cancellation_findings(judged(handler).handlers) == []
