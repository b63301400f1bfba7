"""The virtual loop skips idle time, and no other time."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hookonce.simulation import virtual_loop
from hookonce.simulation.virtual_loop import VirtualLoop, run_virtually

# Far longer than the tests compute, and far shorter than the times to be skipped.
SOON_SECONDS = 60.0
REAL_SECONDS = 0.2


def seconds_for(main: Callable[[VirtualLoop], Coroutine[Any, Any, object]]) -> float:
    begun = time.monotonic()
    run_virtually(main)
    return time.monotonic() - begun


def test_an_hour_of_sleep_takes_no_real_time_and_passes_on_both_clocks() -> None:
    async def main(loop: VirtualLoop) -> None:
        loop_time, unix_time = loop.time(), loop.unix_clock()
        assert abs(unix_time - time.time()) < SOON_SECONDS
        await asyncio.sleep(3600)
        assert 3600 <= loop.time() - loop_time < 3600 + SOON_SECONDS
        assert 3600 <= loop.unix_clock() - unix_time < 3600 + SOON_SECONDS

    assert seconds_for(main) < SOON_SECONDS


def test_a_sleep_longer_than_the_longest_wait_of_asyncio_is_skipped_too() -> None:
    async def main(loop: VirtualLoop) -> None:
        begun = loop.time()
        await asyncio.sleep(14 * 86400)
        assert loop.time() - begun >= 14 * 86400

    assert seconds_for(main) < SOON_SECONDS


def test_timers_fire_in_the_order_of_their_times() -> None:
    fired: list[int] = []

    async def note_after(hours: int) -> None:
        await asyncio.sleep(hours * 3600)
        fired.append(hours)

    async def main(_: VirtualLoop) -> None:
        await asyncio.gather(*(note_after(hours) for hours in (5, 1, 4, 2, 3)))

    run_virtually(main)
    assert fired == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("how", ["outside", "real_time"])
def test_no_time_limit_ends_early_while_the_loop_waits_for_work_outside(how: str) -> None:
    async def main(loop: VirtualLoop) -> str:
        ended = threading.Event()
        with getattr(loop, how)():
            async with asyncio.timeout(3):
                # Without the block the three seconds would be skipped at once.
                await asyncio.to_thread(ended.wait, REAL_SECONDS)
        return "in time"

    begun = time.monotonic()
    assert run_virtually(main) == "in time"
    assert time.monotonic() - begun >= REAL_SECONDS


def test_virtual_time_stands_still_while_the_loop_waits_for_work_outside() -> None:
    async def main(loop: VirtualLoop) -> float:
        begun = loop.time()
        with loop.outside():
            await asyncio.to_thread(threading.Event().wait, REAL_SECONDS)
        return loop.time() - begun

    assert run_virtually(main) == 0


@pytest.mark.parametrize("is_in_thread", [True, False])
def test_a_long_block_takes_its_real_duration(
    is_in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_loop, "_PATIENCE_SECONDS", REAL_SECONDS / 2)
    monkeypatch.setattr(virtual_loop, "_BLOCKING_SECONDS", REAL_SECONDS / 4)

    async def main(loop: VirtualLoop) -> tuple[float, float]:
        begun, really_begun = loop.time(), time.monotonic()
        with loop.real_time():
            time.sleep(REAL_SECONDS)  # noqa: ASYNC251 - a handler that blocks the loop
        with loop.real_time(is_in_thread=is_in_thread), pytest.raises(TimeoutError):
            async with asyncio.timeout(REAL_SECONDS):
                await asyncio.to_thread(threading.Event().wait, 2 * REAL_SECONDS)
        return loop.time() - begun, time.monotonic() - really_begun

    passed, took = run_virtually(main)
    assert 2 * REAL_SECONDS <= passed <= took


@pytest.mark.parametrize("is_in_thread", [True, False])
def test_many_short_blocks_take_no_virtual_time(is_in_thread: bool) -> None:
    async def main(loop: VirtualLoop) -> float:
        begun = loop.time()
        for _ in range(10):
            with loop.real_time(is_in_thread=is_in_thread):
                await asyncio.to_thread(threading.Event().wait, REAL_SECONDS / 10)
        return loop.time() - begun

    assert run_virtually(main) == 0


def test_no_time_limit_ends_a_short_block_in_a_thread() -> None:
    async def main(loop: VirtualLoop) -> float:
        begun = loop.time()
        with loop.real_time(is_in_thread=True):
            async with asyncio.timeout(REAL_SECONDS / 10):
                await asyncio.to_thread(threading.Event().wait, REAL_SECONDS)
        return loop.time() - begun

    assert run_virtually(main) == 0


def test_a_short_block_waits_for_its_timer_in_real_time() -> None:
    async def main(loop: VirtualLoop) -> float:
        begun = loop.time()
        with loop.real_time():
            await asyncio.sleep(REAL_SECONDS)
        return loop.time() - begun

    begun = time.monotonic()
    assert run_virtually(main) >= REAL_SECONDS
    assert time.monotonic() - begun >= REAL_SECONDS


def test_computing_takes_no_virtual_time_but_blocking_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> tuple[float, float]:
        begun = loop.time()
        time.sleep(REAL_SECONDS)  # noqa: ASYNC251 - stands for computing
        await asyncio.sleep(0)
        computed = loop.time() - begun
        monkeypatch.setattr(virtual_loop, "_BLOCKING_SECONDS", REAL_SECONDS / 2)
        time.sleep(REAL_SECONDS)  # noqa: ASYNC251 - stands for a call that blocks the loop
        await asyncio.sleep(0)
        return computed, loop.time() - begun

    computed, blocked = run_virtually(main)
    assert computed == 0
    assert blocked >= REAL_SECONDS


def test_the_loop_does_not_wait_for_work_outside_of_any_block() -> None:
    ended = threading.Event()

    async def main(_: VirtualLoop) -> None:
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3600):
                    await asyncio.to_thread(ended.wait, 60)
        finally:
            ended.set()

    assert seconds_for(main) < SOON_SECONDS


def test_a_time_limit_ends_a_wait_that_lasts_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(virtual_loop, "_PATIENCE_SECONDS", REAL_SECONDS)

    async def main(loop: VirtualLoop) -> None:
        ended = threading.Event()
        with loop.outside():
            try:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(3600):
                        await asyncio.to_thread(ended.wait, 60)
            finally:
                ended.set()

    assert REAL_SECONDS <= seconds_for(main) < SOON_SECONDS


def test_the_loop_skips_time_again_after_the_last_of_several_blocks_has_ended() -> None:
    async def main(loop: VirtualLoop) -> None:
        hour_over = asyncio.ensure_future(asyncio.sleep(3600))
        first, second = threading.Event(), threading.Event()

        async def outside(event: threading.Event) -> None:
            with loop.real_time():
                await asyncio.to_thread(event.wait, 60)

        works = [asyncio.ensure_future(outside(event)) for event in (first, second)]
        first.set()
        await works[0]
        begun = loop.time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(hour_over), REAL_SECONDS)
        assert loop.time() - begun < SOON_SECONDS
        second.set()
        await works[1]
        await hour_over

    assert seconds_for(main) < SOON_SECONDS


def test_a_call_from_a_thread_wakes_a_loop_that_has_nothing_to_do() -> None:
    async def main(loop: VirtualLoop) -> str:
        woken: asyncio.Future[str] = loop.create_future()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set_result, "woken")

        thread = threading.Timer(REAL_SECONDS, wake)
        thread.start()
        try:
            return await woken
        finally:
            thread.join()

    assert run_virtually(main) == "woken"


def test_a_socket_is_read_before_any_time_is_skipped() -> None:
    async def main(_: VirtualLoop) -> bytes:
        mine, other = socket.socketpair()
        with other:
            reader, writer = await asyncio.open_connection(sock=mine)
            waiting = asyncio.ensure_future(reader.readexactly(4))
            await asyncio.sleep(0)
            other.sendall(b"here")
            try:
                return await asyncio.wait_for(waiting, 1)
            finally:
                writer.close()
                await writer.wait_closed()

    assert run_virtually(main) == b"here"


def test_ctrl_c_ends_a_wait_for_something_outside() -> None:
    cleaned: list[float] = []

    async def main(loop: VirtualLoop) -> None:
        timer = threading.Timer(REAL_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            with loop.outside():
                await asyncio.sleep(60)
        finally:
            timer.join()
            begun = loop.time()
            await asyncio.sleep(600)  # a shutdown still sleeps in virtual time
            cleaned.append(loop.time() - begun)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_virtually(main)
    assert time.monotonic() - begun < SOON_SECONDS
    assert cleaned[0] >= 600


def test_ctrl_c_ends_a_loop_that_skips_from_timer_to_timer() -> None:
    async def main(_: VirtualLoop) -> None:
        timer = threading.Timer(REAL_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            for _hour in itertools.count():
                await asyncio.sleep(3600)
        finally:
            timer.join()

    with pytest.raises(KeyboardInterrupt):
        run_virtually(main)


def test_the_loop_waits_for_a_running_thread_at_its_end() -> None:
    ended: list[str] = []

    def work(begun: threading.Event) -> None:
        begun.set()
        time.sleep(REAL_SECONDS)
        ended.append("thread")

    async def main(loop: VirtualLoop) -> None:
        begun = threading.Event()
        loop.run_in_executor(None, work, begun)
        begun.wait(SOON_SECONDS)

    run_virtually(main)
    assert ended == ["thread"]


def test_an_error_of_main_is_raised_and_the_loop_is_closed() -> None:
    loops: list[VirtualLoop] = []

    async def main(loop: VirtualLoop) -> None:
        loops.append(loop)
        raise LookupError("raised by main")

    with pytest.raises(LookupError, match="raised by main"):
        run_virtually(main)
    assert loops[0].is_closed()
