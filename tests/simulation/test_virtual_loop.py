"""The virtual loop skips idle time, and no other time."""

from __future__ import annotations

import asyncio
import contextlib
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

# A limit far above the computing time of the tests, and far below the times that the loop skips.
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


def test_no_time_limit_ends_early_while_the_loop_waits_for_work_outside() -> None:
    async def main(loop: VirtualLoop) -> str:
        ended = threading.Event()
        async with loop.outside(), asyncio.timeout(3):
            # Without `outside`, the loop would skip the three seconds at once.
            await asyncio.to_thread(ended.wait, REAL_SECONDS)
        return "in time"

    begun = time.monotonic()
    assert run_virtually(main) == "in time"
    assert time.monotonic() - begun >= REAL_SECONDS


def test_virtual_time_stands_still_while_the_loop_waits_for_work_outside() -> None:
    async def main(loop: VirtualLoop) -> float:
        begun = loop.time()
        async with loop.outside():
            await asyncio.to_thread(threading.Event().wait, REAL_SECONDS)
        return loop.time() - begun

    assert run_virtually(main) == 0


def test_a_long_block_takes_its_real_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_loop, "_PATIENCE_SECONDS", REAL_SECONDS / 2)
    monkeypatch.setattr(virtual_loop, "_BLOCKING_SECONDS", REAL_SECONDS / 4)

    async def main(loop: VirtualLoop) -> tuple[float, float]:
        begun, really_begun = loop.time(), time.monotonic()
        async with loop.outside():
            time.sleep(REAL_SECONDS)  # noqa: ASYNC251 - simulates a handler that blocks the loop
        with pytest.raises(TimeoutError):
            async with loop.outside(), asyncio.timeout(REAL_SECONDS):
                await asyncio.to_thread(threading.Event().wait, 2 * REAL_SECONDS)
        return loop.time() - begun, time.monotonic() - really_begun

    passed, took = run_virtually(main)
    assert 2 * REAL_SECONDS <= passed <= took


def test_many_short_blocks_take_no_virtual_time() -> None:
    async def main(loop: VirtualLoop) -> float:
        begun = loop.time()
        for _ in range(10):
            async with loop.outside():
                await asyncio.to_thread(threading.Event().wait, REAL_SECONDS / 10)
        return loop.time() - begun

    assert run_virtually(main) == 0


def test_an_idle_connection_does_not_stop_time() -> None:
    async def main(loop: VirtualLoop) -> float:
        mine, other = socket.socketpair()
        with other:
            _, writer = await asyncio.open_connection(sock=mine)
            begun = loop.time()
            await asyncio.sleep(3600)
            writer.close()
            await writer.wait_closed()
        return loop.time() - begun

    begun = time.monotonic()
    assert run_virtually(main) >= 3600
    assert time.monotonic() - begun < virtual_loop._PATIENCE_SECONDS


@pytest.mark.parametrize("is_in_task", [True, False])
def test_a_block_that_sleeps_lets_time_pass(is_in_task: bool) -> None:
    async def main(loop: VirtualLoop) -> float:
        begun = loop.time()
        async with loop.outside(runs_handler=True):
            # The loop skips sleeps, but must not skip a time limit while the thread runs.
            async with asyncio.timeout(60):
                await asyncio.to_thread(threading.Event().wait, REAL_SECONDS)
            if is_in_task:
                await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
            else:
                await asyncio.sleep(3600)
        return loop.time() - begun

    begun = time.monotonic()
    assert run_virtually(main) == 3600
    assert REAL_SECONDS <= time.monotonic() - begun < virtual_loop._PATIENCE_SECONDS


def test_the_real_time_of_others_does_not_count_as_that_of_a_handler_that_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(virtual_loop, "_PATIENCE_SECONDS", 5 * REAL_SECONDS)

    async def main(loop: VirtualLoop) -> float:
        async def sleep() -> None:
            async with loop.outside(runs_handler=True):
                await asyncio.sleep(1)

        begun, sleeping = loop.time(), loop.create_task(sleep())
        for _ in range(6):
            async with loop.outside():
                await asyncio.to_thread(threading.Event().wait, REAL_SECONDS)
        await sleeping
        return loop.time() - begun

    assert run_virtually(main) == 1


@pytest.mark.parametrize("runs_handler", [True, False])
def test_while_a_handler_sleeps_other_handlers_take_real_time_and_a_store_takes_none(
    runs_handler: bool,
) -> None:
    async def main(loop: VirtualLoop) -> float:
        async def sleep() -> None:
            async with loop.outside(runs_handler=True):
                await asyncio.sleep(3600)

        async def tick() -> None:
            for _ in range(1000):
                await asyncio.sleep(REAL_SECONDS / 40)

        sleeping, ticking = loop.create_task(sleep()), loop.create_task(tick())
        await asyncio.sleep(0)
        begun = loop.time()
        async with loop.outside(runs_handler=runs_handler):
            await asyncio.to_thread(threading.Event().wait, REAL_SECONDS)
            took = loop.time() - begun
        ticking.cancel()
        await sleeping
        return took

    took = run_virtually(main)
    assert (0 < took <= 2 * REAL_SECONDS) if runs_handler else took == 0


@pytest.mark.parametrize("fails", [True, False])
def test_blocks_go_on_in_the_order_in_which_they_began_and_not_in_the_order_of_answers(
    fails: bool,
) -> None:
    went_on: list[int] = []

    def answer(seconds: float) -> None:
        time.sleep(seconds)
        if fails:
            raise LookupError

    async def ask(loop: VirtualLoop, number: int) -> None:
        with contextlib.suppress(LookupError):
            async with loop.outside():
                await asyncio.to_thread(answer, REAL_SECONDS / number)
        went_on.append(number)

    async def main(loop: VirtualLoop) -> float:
        begun = loop.time()
        await asyncio.gather(*(ask(loop, number) for number in (1, 2, 3, 4)))
        return loop.time() - begun

    assert run_virtually(main) == 0
    assert went_on == [1, 2, 3, 4]


def test_a_cancelled_block_does_not_wait_for_other_blocks() -> None:
    async def main(loop: VirtualLoop) -> None:
        async def work(seconds: float) -> None:
            async with loop.outside():
                await asyncio.to_thread(threading.Event().wait, seconds)

        other, cancelled = (loop.create_task(work(REAL_SECONDS)) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        assert not other.done()
        await other

    run_virtually(main)


def test_a_block_that_is_cancelled_while_it_waits_for_others_holds_up_nobody() -> None:
    async def main(loop: VirtualLoop) -> None:
        async def work(seconds: float) -> None:
            async with loop.outside():
                await asyncio.to_thread(threading.Event().wait, seconds)

        short, long = (loop.create_task(work(seconds)) for seconds in (0, REAL_SECONDS))
        async with loop.outside():
            await asyncio.to_thread(threading.Event().wait, REAL_SECONDS / 2)
            short.cancel()
        await long
        assert short.cancelled()

    run_virtually(main)


def test_computing_takes_no_virtual_time_but_blocking_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> tuple[float, float]:
        begun = loop.time()
        time.sleep(REAL_SECONDS)  # noqa: ASYNC251 - simulates computing
        await asyncio.sleep(0)
        computed = loop.time() - begun
        monkeypatch.setattr(virtual_loop, "_BLOCKING_SECONDS", REAL_SECONDS / 2)
        time.sleep(REAL_SECONDS)  # noqa: ASYNC251 - simulates a call that blocks the loop
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
        async with loop.outside():
            try:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(2 * REAL_SECONDS):
                        await asyncio.to_thread(ended.wait, 60)
            finally:
                ended.set()

    assert 2 * REAL_SECONDS <= seconds_for(main) < SOON_SECONDS


def test_the_loop_skips_time_only_after_the_last_of_several_blocks_has_ended() -> None:
    async def main(loop: VirtualLoop) -> None:
        hour_over = asyncio.ensure_future(asyncio.sleep(3600))
        first, second = threading.Event(), threading.Event()

        async def outside(event: threading.Event) -> None:
            async with loop.outside():
                await asyncio.to_thread(event.wait, 60)

        works = [asyncio.ensure_future(outside(event)) for event in (first, second)]
        first.set()
        threading.Timer(REAL_SECONDS, second.set).start()
        await asyncio.gather(*works)
        assert not hour_over.done()
        await hour_over

    assert REAL_SECONDS <= seconds_for(main) < SOON_SECONDS


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
            async with loop.outside():
                await loop.create_future()
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
