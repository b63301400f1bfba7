"""Once no inspector is open, a receiver stops publishing its activity, which then costs nothing."""

import asyncio
from pathlib import Path

import pytest
from support.deliveries import SECRET, sqlite_url
from support.handlers import counting
from support.waiting import until

from hookonce import Receiver
from hookonce.stores.activity import ActivityStore

pytestmark = pytest.mark.anyio


async def test_a_receiver_listens_to_itself_only_while_somebody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookonce.watching.activity._ASK_SECONDS", 0.01)
    monkeypatch.setattr("hookonce.watching.activity._PUBLISH_SECONDS", 0.01)
    ahead = 0.0
    clock = asyncio.get_running_loop().time
    receiver = Receiver(
        secrets=SECRET, store=sqlite_url(tmp_path), clock=lambda: 1_800_000_000 + clock() + ahead
    )
    counting(receiver)
    observers = receiver._wiring.observers
    assert isinstance(receiver.store, ActivityStore)
    async with receiver:
        before = observers.look_closely
        await receiver.store.follow("default", None)
        await until(lambda: observers.look_closely, what="it listens")
        ahead = 3600.0
        await until(lambda: not observers.look_closely, what="it listens no more")
    assert not before


async def test_a_stop_that_is_cancelled_leaves_nothing_that_opens_the_store_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    asked, gate = asyncio.Event(), asyncio.Event()

    async def publish(*_: object) -> bool:
        asked.set()
        await gate.wait()
        return True

    monkeypatch.setattr(receiver.store, "publish", publish)
    reporter = receiver._wiring.lifetime.reporter
    assert reporter is not None

    async def serve() -> None:
        async with receiver:
            await asked.wait()
            tasks.append(reporter._task)

    tasks: list[asyncio.Task[None] | None] = []
    serving = asyncio.create_task(serve())
    await until(lambda: tasks and reporter._task is None, what="the stop waits for the store")
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    [task] = tasks
    assert task is not None
    await asyncio.wait({task}, timeout=1)  # much shorter than the time limit of a call to the store
    assert task.done()
