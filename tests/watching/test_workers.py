"""A worker reports the handlers that it runs, and its attempts of the last minutes."""

import asyncio
from pathlib import Path

import pytest
from support.deliveries import SECRET, sqlite_url
from support.handlers import Waiting
from support.waiting import until, until_async

from hookonce import Inbox, Receiver
from hookonce.events import CommentReceived
from hookonce.stores.activity import ActivityStore, ReportedWorker
from hookonce.testing import TestSender, make_event
from hookonce.watching.process import process_name
from hookonce.watching.workers import (
    AttemptCounts,
    RunningHandler,
    Tally,
    WorkerReport,
    read_report,
)

pytestmark = pytest.mark.anyio


def test_attempts_are_counted_for_five_minutes() -> None:
    tally = Tally()
    tally.handled, tally.failed = 1, 1
    tally.sample(1000.0)
    tally.handled = 2
    tally.sample(1050.0)
    tally.sample(1059.0)
    assert tally.last_minute(1051.0) == AttemptCounts(2, 1)
    assert tally.last_minute(1075.0) == AttemptCounts(1, 0)
    assert tally.last_five_minutes(1075.0) == AttemptCounts(2, 1)
    assert tally.last_five_minutes(1320.0) == AttemptCounts(1, 0)
    assert tally.last_five_minutes(1360.0) == AttemptCounts(0, 0)
    tally.handled = 3  # the last sample was taken before this attempt
    assert tally.last_minute(1360.0) == AttemptCounts(1, 0)


def test_a_tally_does_not_grow() -> None:
    tally = Tally()
    for second in range(100_000):
        tally.handled += 1
        tally.sample(float(second))
    assert tally.last_five_minutes(99_999.0) == AttemptCounts(300, 0)
    assert len(tally._slots) == 31


def report(**changes: object) -> WorkerReport:
    content: dict[str, object] = {
        "endpoint": "default",
        "process": "web-1:7:0a1b2c",
        "uptime_seconds": 61.5,
        "concurrency": 16,
        "running": (
            RunningHandler("greet", "evt_1", "comment.received", 2, 3.5),
            RunningHandler("sync", "evt_2", None, 1, None),
        ),
        "running_count": 2,
        "last_minute": AttemptCounts(10, 1),
        "last_five_minutes": AttemptCounts(50, 3),
    }
    return WorkerReport(**{**content, **changes})  # type: ignore[arg-type]  # mypy cannot check keywords from a dictionary


def kept(content: bytes) -> ReportedWorker:
    return ReportedWorker("default", "web-1:7:0a1b2c", 0.0, content)


@pytest.mark.parametrize("concurrency", [16, None])
def test_a_report_survives_the_store(concurrency: int | None) -> None:
    sent = report(concurrency=concurrency)
    assert read_report(kept(sent.dump())) == sent


def test_long_names_are_cut() -> None:
    running = (RunningHandler("h" * 9000, "e" * 9000, "t" * 9000, 1, 0.0),) * 20
    assert len(report(running=running).dump()) < 40_000


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"uptime": "x"}', b"null"])
def test_the_report_of_an_unknown_version_is_left_out(content: bytes) -> None:
    assert read_report(kept(content)) is None


def test_a_worker_is_silent_if_a_report_is_missing() -> None:
    assert not report(age_seconds=10.5).is_silent
    assert report(age_seconds=16.0).is_silent


async def test_a_receiver_in_memory_shows_its_own_process() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handler = Waiting(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        sending = asyncio.create_task(sender.send(event))
        await until(lambda: handler.began, what="the handler runs")
        [busy] = await receiver.workers()
        handler.gate.set()
        (await sending).expect(200)
        [idle] = await receiver.workers()
    assert (busy.endpoint, busy.process, busy.concurrency) == ("default", process_name(), None)
    [running] = busy.running
    assert running.handler == "waiting"
    assert (running.event_id, running.event_type) == (event.id, "comment.received")
    assert (running.attempt, busy.running_count) == (1, 1)
    assert running.seconds is not None
    assert running.seconds >= 0
    assert busy.last_minute == AttemptCounts(0, 0)
    assert (idle.running, idle.last_minute) == ((), AttemptCounts(1, 0))
    assert await receiver.workers() == []


async def test_workers_report_through_the_store_until_they_end(tmp_path: Path) -> None:
    inbox = Inbox(embedded=False, concurrency=3)
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path), inbox=inbox)
    receiver.on(CommentReceived)(fail)
    elsewhere = receiver.copy()

    async def count() -> int:
        return len(await receiver.workers())

    async def has_failed() -> bool:
        [seen] = await receiver.workers()
        return seen.last_five_minutes == AttemptCounts(0, 1)

    async with TestSender(receiver, secrets=SECRET) as sender:
        assert await count() == 0, "a process that only stores is no worker"
        async with elsewhere.working():

            async def is_listed() -> bool:
                return await count() == 1

            await until_async(is_listed, what="the worker has reported")
            [seen] = await receiver.workers()
            assert (seen.process, seen.concurrency) == (process_name(), 3)
            (await sender.send(make_event(CommentReceived))).expect(202, "stored")
            assert isinstance(receiver.store, ActivityStore)
            await receiver.store.follow("default", None)  # the worker then reports more often
            await until_async(has_failed, what="the attempt is counted")
        assert await count() == 0, "it removes its report"


async def fail(_: CommentReceived) -> None:
    raise RuntimeError("the shop is closed")


async def test_a_worker_writes_seldom_while_nobody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each report costs an fsync."""
    monkeypatch.setattr("hookonce.watching.activity._ASK_SECONDS", 0.001)
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    written: list[bytes | None] = []
    asked = 0
    assert isinstance(receiver.store, ActivityStore)
    publish = receiver.store.publish

    async def count_asking(endpoint: str, lines: list[bytes]) -> bool:
        nonlocal asked
        asked += 1
        return await publish(endpoint, lines)

    async def keep(_: str, __: str, content: bytes | None) -> None:
        written.append(content)

    monkeypatch.setattr(receiver.store, "publish", count_asking)
    monkeypatch.setattr(receiver.store, "report_worker", keep)
    async with receiver:
        await until(lambda: asked > 20, what="it has asked often")
        assert len(written) == 1
    assert written[1:] == [None], "it removes the report at the end"
