"""A handler that does not end is named in the log, and does not keep a process from ending."""

import asyncio
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from support.deliveries import SECRET, deliver, receiver_on
from support.handlers import on
from support.processes import run_python
from support.waiting import until_async

from hookonce import Receiver
from hookonce.events import CommentReceived
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio


@pytest.mark.full("3 s")
async def test_a_handler_that_swallows_its_cancellation_is_logged_and_does_not_stop_a_shutdown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receiver_on(
        f"sqlite:///{tmp_path}/hooks.db",
        handler_timeout_seconds=0.1,
        answer_seconds=0.1,
        drain_seconds=0.1,
        store_seconds=0.2,
    )
    stop = threading.Event()

    async def stubborn(_: CommentReceived) -> None:
        while not stop.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    on(receiver, "stubborn", stubborn)
    async with receiver:
        await deliver(receiver, make_event(CommentReceived))
        await until_async(partial(_has_problem, receiver, "stubborn"))
        assert "stubborn" in caplog.text
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert "gave up waiting for stubborn" in caplog.text
    stop.set()
    await asyncio.sleep(0.05)


async def _has_problem(receiver: Receiver, text: str) -> bool:
    return any(text in problem for problem in (await receiver.check()).problems)


def test_a_process_with_a_handler_that_never_ends_can_end(tmp_path: Path) -> None:
    result = run_python(
        f"""
        import asyncio
        from hookonce import Limits, Receiver
        from hookonce.events import CommentReceived
        from hookonce.testing import make_event, signed_request
        limits = Limits(
            handler_timeout_seconds=0.1, answer_seconds=0.1, drain_seconds=0.1, store_seconds=0.2
        )
        url = "sqlite:///{tmp_path}/hooks.db"
        receiver = Receiver(secrets={SECRET!r}, store=url, limits=limits)
        @receiver.on(CommentReceived)
        async def stubborn(event):
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
        @receiver.on(CommentReceived)
        async def second(event):
            await asyncio.sleep(0)
        async def main():
            async with receiver:
                request = signed_request(make_event(CommentReceived), {SECRET!r})
                print((await receiver.handle(request.body, request.headers)).reason)
        asyncio.run(main())
        print("ended")
        """
    )
    assert result.split() == ["still_running", "ended"]


def test_a_process_ends_although_a_handler_resists_its_end_in_every_way(tmp_path: Path) -> None:
    result = run_python(
        f"""
        import asyncio
        from contextlib import asynccontextmanager
        from hookonce import Limits, Receiver
        from hookonce.events import CommentReceived
        from hookonce.testing import make_event, signed_request
        limits = Limits(
            handler_timeout_seconds=0.1, answer_seconds=0.1, drain_seconds=0.1, store_seconds=0.2
        )
        url = "sqlite:///{tmp_path}/hooks.db"
        receiver = Receiver(secrets={SECRET!r}, store=url, limits=limits)
        @asynccontextmanager
        async def slow_to_close():
            try:
                yield
            finally:
                await asyncio.sleep(3600)
        @receiver.on(CommentReceived)
        async def stubborn(event):
            async with slow_to_close():
                async with slow_to_close():
                    while True:
                        try:
                            await asyncio.sleep(3600)
                        except asyncio.CancelledError:
                            continue
        async def main():
            async with receiver:
                request = signed_request(make_event(CommentReceived), {SECRET!r})
                print((await receiver.handle(request.body, request.headers)).reason)
        asyncio.run(main())
        print("ended")
        """
    )
    assert result.split() == ["still_running", "ended"]
