"""Handlers with a key: one run at a time for each key, and late events are skipped."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET, answer_of, deliver, long_ago, receiver_on, sqlite_url
from support.stores import FaultyStore
from support.waiting import until, until_async

from hookonce import Context, Receiver, Reject, Retry, Router
from hookonce.delivery.calls import Threads
from hookonce.events import (
    ChannelDisconnected,
    ChannelUnhealthy,
    CommentReceived,
    Event,
    UnknownEvent,
)
from hookonce.operations import HandlerFailed, HandlerSkipped, HandlerStarted, Observer
from hookonce.routing.keyed import watermark_of
from hookonce.simulation.virtual_loop import VirtualLoop
from hookonce.simulation.watched_store import WatchedStore, watched
from hookonce.stores import open_store
from hookonce.stores.memory import MemoryStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Acquired, KeyLock, new_token
from hookonce.testing import event_body, make_event, signed_request

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
CHANNEL = "chan_1"


def channel_event(
    minute: float, *, channel: str = CHANNEL, event_id: str | None = None
) -> ChannelUnhealthy:
    """Return an event of a channel, created this many minutes after noon."""
    return make_event(
        ChannelUnhealthy,
        event_id=event_id,
        created_at=NOON + timedelta(minutes=minute),
        data={"id": channel},
    )


def comment_on(
    post: str, event_id: str | None = None, *, created_at: datetime | None = None
) -> CommentReceived:
    return make_event(
        CommentReceived, event_id=event_id, created_at=created_at, data={"postId": post}
    )


class Runs:
    """A handler that notes its events, and does what a test tells it to do."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.error: Exception | None = None
        self.key_lock: asyncio.Event | None = None
        self.at_once = self.most_at_once = 0

    async def __call__(self, event: Event[Any]) -> None:
        self.ids.append(event.id)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.key_lock is not None:
                await self.key_lock.wait()
            await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
        finally:
            self.at_once -= 1


def latest(receiver: Router, name: str = "latest", **options: Any) -> Runs:
    runs = Runs()
    receiver.on("channel.*", name=name, latest_by=lambda event: event.data.id, **options)(runs)
    return runs


def serial(receiver: Router, name: str = "serial") -> Runs:
    runs = Runs()
    receiver.on(CommentReceived, name=name, serial_by=lambda event: event.data.post_id)(runs)
    return runs


# An attempt stops waiting for a key lock a moment before its answer is due, so that it can still
# release the event. Virtual time stands still during a call, so this moment is long enough even on
# a busy machine.
in_virtual_time = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"loop_factory": VirtualLoop})], ids=[""]
)


def virtual(url: str) -> WatchedStore:
    """Return a store for a test in virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return watched(open_store(url, clock=time.time), loop)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else sqlite_url(tmp_path)


class Records(Observer):
    def __init__(self) -> None:
        self.skipped: list[HandlerSkipped] = []
        self.started: list[str] = []
        self.failed: list[HandlerFailed] = []

    def handler_skipped(self, record: HandlerSkipped) -> None:
        self.skipped.append(record)

    def handler_started(self, record: HandlerStarted) -> None:
        self.started.append(record.handler)

    def handler_failed(self, record: HandlerFailed) -> None:
        self.failed.append(record)


class TestLatest:
    async def test_an_older_event_is_answered_stale_and_not_run(
        self, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, logger="hookonce")
        receiver, records = receiver_on(url), Records()
        runs = latest(receiver)
        receiver.observe(records)
        older, newer, newest = (channel_event(minute) for minute in (1, 2, 3))
        async with receiver:
            assert answer_of(await deliver(receiver, newer)) == (200, "handled")
            assert answer_of(await deliver(receiver, older)) == (200, "stale")
            assert answer_of(await deliver(receiver, older, 2)) == (200, "duplicate")
            assert answer_of(await deliver(receiver, newest)) == (200, "handled")
        assert runs.ids == [newer.id, newest.id]
        [skipped] = records.skipped
        assert (skipped.handler, skipped.reason) == ("latest", "stale")
        assert skipped.delivery.event_id == older.id
        assert records.started == ["latest", "latest"]
        assert f"latest is not run for default:{older.id}" in caplog.text

    async def test_other_keys_and_other_handlers_are_not_affected(self, url: str) -> None:
        receiver = receiver_on(url)
        runs, others = latest(receiver), Runs()
        receiver.on("channel.*", name="all")(others)
        newer, older, elsewhere = (
            channel_event(2),
            channel_event(1),
            channel_event(1, channel="chan_2"),
        )
        async with receiver:
            for event in (newer, older, elsewhere):
                assert answer_of(await deliver(receiver, event)) == (200, "handled")
        assert runs.ids == [newer.id, elsewhere.id]
        assert others.ids == [newer.id, older.id, elsewhere.id]

    async def test_a_newer_event_that_fails_makes_no_older_event_stale(self, url: str) -> None:
        receiver = receiver_on(url)
        runs = latest(receiver)
        older, newer = channel_event(1), channel_event(2)
        async with receiver:
            runs.error = ValueError("not yet")
            assert answer_of(await deliver(receiver, newer)) == (500, "handler_failed")
            runs.error = None
            assert answer_of(await deliver(receiver, older)) == (200, "handled")
            assert answer_of(await deliver(receiver, newer, 2)) == (200, "handled")
        assert runs.ids == [newer.id, older.id, newer.id]

    @pytest.mark.parametrize("error", [ValueError("x"), Retry(after=1), Reject("x")])
    async def test_every_failure_releases_the_key_lock(self, url: str, error: Exception) -> None:
        receiver = receiver_on(url)
        runs = latest(receiver)
        async with receiver:
            runs.error = error
            await deliver(receiver, channel_event(1))
            runs.error = None
            assert answer_of(await deliver(receiver, channel_event(2))) == (200, "handled")

    @pytest.mark.parametrize(
        ("ties", "reason"),
        [({}, "handled"), ({"ties": "apply"}, "handled"), ({"ties": "drop"}, "stale")],
    )
    async def test_events_of_the_same_time_are_handled_unless_drop_ties_is_set(
        self, url: str, ties: dict[str, str], reason: str
    ) -> None:
        receiver = receiver_on(url)
        latest(receiver, **ties)
        first, second = channel_event(1, event_id="evt_b"), channel_event(1, event_id="evt_a")
        async with receiver:
            assert answer_of(await deliver(receiver, first)) == (200, "handled")
            assert answer_of(await deliver(receiver, second)) == (200, reason)

    async def test_a_sync_handler_and_another_receiver_on_the_store_respect_the_watermark_too(
        self, tmp_path: Path
    ) -> None:
        ran: list[str] = []
        receivers = [receiver_on(sqlite_url(tmp_path)) for _ in range(2)]
        for receiver in receivers:

            @receiver.on("channel.*", name="sync", latest_by=lambda event: event.data.id)
            def sync(event: Event[Any], context: Context) -> None:
                assert context.handler == "sync"
                ran.append(event.id)

        here, elsewhere = receivers
        older, newer = channel_event(1), channel_event(2)
        async with here, elsewhere:
            assert answer_of(await deliver(here, newer)) == (200, "handled")
            assert answer_of(await deliver(elsewhere, older)) == (200, "stale")
        assert ran == [newer.id]

    async def test_the_watermark_outlives_the_process(self, tmp_path: Path) -> None:
        older, newer = channel_event(1), channel_event(2)
        for event, reason in ((newer, "handled"), (older, "stale")):
            receiver = receiver_on(sqlite_url(tmp_path))
            latest(receiver)
            async with receiver:
                assert answer_of(await deliver(receiver, event)) == (200, reason)

    async def test_after_a_crash_before_its_record_an_event_is_recognised_by_its_own_watermark(
        self,
    ) -> None:
        store, records = MemoryStore(), Records()
        receiver = receiver_on(store)
        runs, event = latest(receiver), channel_event(1)
        receiver.observe(records)
        key_lock, token = KeyLock("default", "latest", CHANNEL), new_token()
        async with receiver:
            # An earlier process has recorded the watermark, and has then died.
            await store.acquire_key_lock(key_lock, token, 30.0)
            await store.release_key_lock(key_lock, token, watermark=watermark_of(event))
            assert answer_of(await deliver(receiver, event, 2)) == (200, "handled")
        assert runs.ids == []
        assert [record.reason for record in records.skipped] == ["done"]


class TestOneAtATime:
    @pytest.mark.sample(1)
    async def test_runs_with_one_key_never_overlap_and_every_event_is_done(self, url: str) -> None:
        receiver = receiver_on(url)
        runs = serial(receiver)
        async with receiver:
            outcomes = await asyncio.gather(
                *(deliver(receiver, comment_on("post_1")) for _ in range(8))
            )
        assert [answer_of(outcome) for outcome in outcomes] == [(200, "handled")] * 8
        assert (len(runs.ids), runs.most_at_once) == (8, 1)

    async def test_handlers_with_different_keys_or_without_a_key_run_side_by_side(self) -> None:
        receiver, runs = receiver_on(), Runs()
        keys: dict[str, str | int | None] = {"evt_1": "a", "evt_2": 7, "evt_3": None, "evt_4": None}
        receiver.on(CommentReceived, name="keys", serial_by=lambda event: keys[event.id])(runs)
        runs.key_lock = asyncio.Event()
        async with receiver:
            events = [comment_on("post_1", event_id) for event_id in keys]
            tasks = [asyncio.create_task(deliver(receiver, event)) for event in events]
            await until(lambda: runs.at_once == 4)
            runs.key_lock.set()
            assert {answer_of(outcome) for outcome in await asyncio.gather(*tasks)} == {
                (200, "handled")
            }

    async def test_two_receivers_on_a_store_share_a_key_lock(self, tmp_path: Path) -> None:
        here, elsewhere = receiver_on(sqlite_url(tmp_path)), receiver_on(sqlite_url(tmp_path))
        ours, theirs = serial(here), serial(elsewhere)
        ours.key_lock = asyncio.Event()
        async with here, elsewhere:
            first = asyncio.create_task(deliver(here, comment_on("post_1")))
            await until(lambda: ours.at_once)
            second = asyncio.create_task(deliver(elsewhere, comment_on("post_1")))
            await asyncio.wait({second}, timeout=0.2)
            assert not theirs.ids
            ours.key_lock.set()
            assert answer_of(await first) == answer_of(await second) == (200, "handled")
        assert len(theirs.ids) == 1

    @in_virtual_time
    async def test_a_wait_beyond_the_answer_budget_is_answered_in_flight_and_is_no_attempt(
        self, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        receiver, errors = receiver_on(virtual(url), answer_seconds=0.3), list[object]()
        receiver.on_error(errors.append)
        contexts: list[int] = []

        @receiver.on(CommentReceived, name="serial", serial_by=lambda event: event.data.post_id)
        async def wait(_: CommentReceived, context: Context) -> None:
            contexts.append(context.attempt)
            await key_lock.wait()

        key_lock = asyncio.Event()
        async with receiver:
            first, second = comment_on("post_1"), comment_on("post_1")
            running = asyncio.create_task(deliver(receiver, first))
            await until(lambda: contexts)
            outcome = await deliver(receiver, second)
            assert answer_of(outcome) == (503, "in_flight")
            assert 1 <= int(outcome.headers["retry-after"]) <= 30
            key_lock.set()
            await running
            assert answer_of(await deliver(receiver, second, 2)) == (200, "handled")
        assert contexts == [1, 1]
        assert errors == []
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    @in_virtual_time
    async def test_each_handler_of_an_event_waits_for_its_own_key_lock(self, url: str) -> None:
        receiver = receiver_on(virtual(url), answer_seconds=0.3)
        runs, free = serial(receiver), Runs()
        receiver.on(CommentReceived, name="free")(free)
        runs.key_lock = asyncio.Event()
        async with receiver:
            first, second = comment_on("post_1"), comment_on("post_1")
            running = asyncio.create_task(deliver(receiver, first))
            await until(lambda: runs.at_once)
            assert answer_of(await deliver(receiver, second)) == (503, "in_flight")
            assert free.ids == [first.id, second.id]
            runs.key_lock.set()
            await running
            assert answer_of(await deliver(receiver, second, 2)) == (200, "handled")
        assert free.ids == [first.id, second.id]
        assert runs.ids == [first.id, second.id]

    async def test_on_the_last_chance_a_handler_waits_for_its_key_lock_beyond_the_answer_budget(
        self, tmp_path: Path
    ) -> None:
        receiver = receiver_on(sqlite_url(tmp_path), answer_seconds=0.2)
        runs = serial(receiver)
        runs.key_lock = asyncio.Event()
        async with receiver:
            first, second = comment_on("post_1"), comment_on("post_1", created_at=long_ago())
            running = asyncio.create_task(deliver(receiver, first))
            await until(lambda: runs.at_once)
            assert answer_of(await deliver(receiver, second, 9)) == (503, "still_running")
            runs.key_lock.set()
            await running
            await until(lambda: second.id in runs.ids)
            await until_async(lambda: _is(receiver, second, "duplicate"))

    async def test_on_the_last_chance_a_wait_beyond_the_handlers_time_limit_is_a_dead_letter(
        self, tmp_path: Path
    ) -> None:
        store = SQLiteStore(tmp_path / "hooks.db")
        receiver, records = receiver_on(store, handler_timeout_seconds=0.3), Records()
        receiver.observe(records)
        runs, key_lock = serial(receiver), KeyLock("default", "serial", "post_1")
        async with receiver:
            assert await store.acquire_key_lock(key_lock, new_token(), 60.0) == Acquired()
            event = comment_on("post_1", created_at=long_ago())
            assert answer_of(await deliver(receiver, event, 9)) == (202, "exhausted")
            letter = await receiver.dead.show(event.id)
            assert letter is not None
            assert "another attempt held its key lock for 0.3 s" in letter.error
            assert letter.outstanding == {"serial"}
        [failed] = records.failed
        assert (failed.handler, failed.seconds) == ("serial", 0.0)
        assert str(failed.error) == "another attempt held its key lock for 0.3 s"
        assert runs.ids == []

    @in_virtual_time
    async def test_a_replay_waits_for_its_key_lock_within_the_answer_budget_and_stays_a_dead_letter(
        self, tmp_path: Path
    ) -> None:
        store = virtual(sqlite_url(tmp_path))
        receiver = receiver_on(store, answer_seconds=0.3)
        runs, key_lock, token = (
            serial(receiver),
            KeyLock("default", "serial", "post_1"),
            new_token(),
        )
        async with receiver:
            event = comment_on("post_1")
            runs.error = Reject("no")
            assert answer_of(await deliver(receiver, event)) == (202, "rejected")
            runs.error = None
            await store.acquire_key_lock(key_lock, token, 60.0)
            assert answer_of(await receiver.dead.replay(event.id)) == (503, "in_flight")
            assert await receiver.dead.show(event.id) is not None
            await store.release_key_lock(key_lock, token)
            assert answer_of(await receiver.dead.replay(event.id)) == (200, "handled")
        assert len(runs.ids) == 2

    async def test_a_replay_of_a_late_event_settles_the_dead_letter(self, tmp_path: Path) -> None:
        receiver = receiver_on(sqlite_url(tmp_path))
        runs, older = latest(receiver), channel_event(1)
        async with receiver:
            runs.error = Reject("no")
            assert answer_of(await deliver(receiver, older)) == (202, "rejected")
            runs.error = None
            await deliver(receiver, channel_event(2))
            assert answer_of(await receiver.dead.replay(older.id)) == (200, "stale")
            assert await receiver.dead.show(older.id) is None


class TestLeases:
    async def test_a_key_lock_is_held_for_as_long_as_the_handler_runs(self, tmp_path: Path) -> None:
        store = SQLiteStore(tmp_path / "hooks.db")
        receiver = receiver_on(store, lease_seconds=0.5)
        runs = serial(receiver)
        runs.key_lock = asyncio.Event()
        key_lock = KeyLock("default", "serial", "post_1")
        async with receiver:
            running = asyncio.create_task(deliver(receiver, comment_on("post_1")))
            await until(lambda: runs.at_once)
            end = asyncio.get_running_loop().time() + 1.2
            while asyncio.get_running_loop().time() < end:
                assert not isinstance(
                    await store.acquire_key_lock(key_lock, new_token(), 0.01), Acquired
                )
                await asyncio.sleep(0.02)
            runs.key_lock.set()
            await running
            assert await store.acquire_key_lock(key_lock, new_token(), 0.01) == Acquired()

    async def test_a_lost_key_lock_is_logged_and_a_success_still_raises_the_watermark(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = MemoryStore()
        receiver = receiver_on(store, lease_seconds=0.3)
        runs = latest(receiver)
        runs.key_lock = asyncio.Event()
        key_lock = KeyLock("default", "latest", CHANNEL)
        async with receiver:
            running = asyncio.create_task(deliver(receiver, channel_event(2)))
            await until(lambda: runs.at_once)
            store._key_locks.clear()  # simulates that the lease has run out in the store
            await store.acquire_key_lock(key_lock, new_token(), 60.0)
            await until(lambda: "was lost; another attempt may have acquired it" in caplog.text)
            runs.key_lock.set()
            assert answer_of(await running) == (200, "handled")
            assert answer_of(await deliver(receiver, channel_event(1))) == (200, "stale")

    async def test_a_process_that_stood_still_after_it_acquired_the_key_lock_asks_again(
        self,
    ) -> None:
        class Late(FaultyStore):
            """Returns the first grant when another process has the lock, as after a SIGSTOP."""

            async def acquire_key_lock(self, *args: Any, **kwargs: Any) -> Any:
                result = await super().acquire_key_lock(*args, **kwargs)
                if self.calls["acquire_key_lock"] == 1:
                    threading.Event().wait(0.4)
                    await self.inner.release_key_lock(args[0], args[1])
                    await self.inner.acquire_key_lock(args[0], other, 0.5)
                return result

        other = new_token()
        store = Late(MemoryStore())
        receiver = receiver_on(store, lease_seconds=0.3, answer_seconds=3)
        serial(receiver)
        async with receiver:
            outcome = await deliver(receiver, comment_on("post_1"))
        assert answer_of(outcome) == (200, "handled")
        assert store.calls["acquire_key_lock"] > 2


class TestTrouble:
    async def test_an_error_of_the_key_function_is_a_failure_of_the_handler(self, url: str) -> None:
        receiver, records, runs = receiver_on(url), Records(), Runs()
        receiver.observe(records)
        errors: list[ExceptionGroup[Exception]] = []

        @receiver.on_error
        async def note(group: ExceptionGroup[Exception]) -> None:  # threads would run in any order
            errors.append(group)

        keys: list[Callable[[], object]] = [lambda: 1 / 0, lambda: 1.5, _exits, lambda: "k"]

        @receiver.on(CommentReceived, name="keyed", serial_by=lambda _: keys.pop(0)())  # type: ignore[arg-type, return-value]
        async def keyed(event: CommentReceived) -> None:
            await runs(event)

        event = comment_on("post_1")
        async with receiver:
            for attempt in (1, 2, 3):
                outcome = await deliver(receiver, event, attempt)
                assert answer_of(outcome) == (500, "handler_failed")
            assert answer_of(await deliver(receiver, event, 4)) == (200, "handled")
        assert runs.ids == [event.id]
        raised = [error for group in errors for error in group.exceptions]
        assert [type(error) for error in raised] == [ZeroDivisionError, TypeError, RuntimeError]
        assert "while its key was computed" in raised[0].__notes__
        assert "str, int or None, not float" in str(raised[1])
        assert [(one.handler, one.attempt, one.seconds) for one in records.failed] == [
            ("keyed", attempt, 0.0) for attempt in (1, 2, 3)
        ]

    async def test_a_store_that_fails_at_a_key_lock_is_no_failure_of_the_handler(
        self,
    ) -> None:
        store = FaultyStore(MemoryStore())
        receiver, errors = receiver_on(store), list[object]()
        receiver.on_error(errors.append)
        runs, event = serial(receiver), comment_on("post_1")
        store.failures["acquire_key_lock"] = 1
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
            assert answer_of(await deliver(receiver, event, 2)) == (200, "handled")
        assert runs.ids == [event.id]
        assert errors == []

    async def test_a_watermark_is_recorded_when_the_store_is_back_before_the_event_is_done(
        self,
    ) -> None:
        store = FaultyStore(MemoryStore())
        receiver = receiver_on(store)
        runs, newer = latest(receiver), channel_event(2)
        store.failures["release_key_lock"] = 2
        async with receiver:
            assert answer_of(await deliver(receiver, newer)) == (200, "handled")
            assert answer_of(await deliver(receiver, channel_event(1))) == (200, "stale")
        assert runs.ids == [newer.id]

    async def test_a_key_lock_that_cannot_be_released_ends_with_its_lease(self) -> None:
        store = FaultyStore(MemoryStore())
        receiver = receiver_on(store, lease_seconds=0.3)
        runs, event = serial(receiver), comment_on("post_1")
        runs.error = ValueError("x")
        store.failures["release_key_lock"] = 1
        async with receiver:
            assert answer_of(await deliver(receiver, event)) == (500, "handler_failed")
            runs.error = None
            assert answer_of(await deliver(receiver, event, 2)) == (200, "handled")

    async def test_a_shutdown_during_a_wait_for_a_key_lock_releases_the_event_without_an_attempt(
        self, tmp_path: Path
    ) -> None:
        store = SQLiteStore(tmp_path / "hooks.db")
        receiver = receiver_on(store)
        runs, key_lock = serial(receiver), KeyLock("default", "serial", "post_1")
        event = comment_on("post_1")
        other = receiver_on(sqlite_url(tmp_path))
        ran = serial(other)
        async with other:
            async with receiver:
                await store.acquire_key_lock(key_lock, new_token(), 3600.0)
                waiting = asyncio.create_task(deliver(receiver, event))
                await until_async(lambda: _in_flight(store))
            assert answer_of(await waiting) == (503, "shutting_down")
            assert runs.ids == ran.ids == []
            assert (await other.stats()).in_flight == 0

    async def test_a_shutdown_during_an_attempt_releases_its_key_lock(self, tmp_path: Path) -> None:
        store = SQLiteStore(tmp_path / "hooks.db")
        receiver = receiver_on(store, drain_seconds=0.1)
        runs = serial(receiver)
        runs.key_lock = asyncio.Event()
        async with receiver:
            running = asyncio.create_task(deliver(receiver, comment_on("post_1")))
            await until(lambda: runs.at_once)
        assert answer_of(await running) == (503, "shutting_down")
        key_lock = KeyLock("default", "serial", "post_1")
        assert (
            await SQLiteStore(tmp_path / "hooks.db").acquire_key_lock(key_lock, new_token(), 1.0)
            == Acquired()
        )

    async def test_a_thread_that_goes_on_after_the_shutdown_keeps_its_key_lock_for_a_lease(
        self, tmp_path: Path
    ) -> None:
        receiver = receiver_on(sqlite_url(tmp_path), drain_seconds=0.1, store_seconds=0.5)
        began, may_end = threading.Event(), threading.Event()

        @receiver.on(CommentReceived, name="serial", serial_by=lambda event: event.data.post_id)
        def wait(_: CommentReceived) -> None:
            began.set()
            may_end.wait(20)

        store = SQLiteStore(tmp_path / "hooks.db")
        try:
            async with receiver:
                running = asyncio.create_task(deliver(receiver, comment_on("post_1")))
                await until(began.is_set)
            await running
            key_lock = KeyLock("default", "serial", "post_1")
            assert not isinstance(
                await store.acquire_key_lock(key_lock, new_token(), 1.0), Acquired
            )
        finally:
            may_end.set()
            await store.aclose()

    async def test_a_thread_that_succeeds_while_it_is_cancelled_raises_the_watermark(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise an older event could run in the next process, after the newer event."""
        await self.succeed_in_a_cancelled_thread(
            tmp_path, monkeypatch, name="latest", latest_by=lambda event: event.data.id
        )
        following = receiver_on(sqlite_url(tmp_path))
        runs = latest(following)
        async with following:
            assert answer_of(await deliver(following, channel_event(1))) == (200, "stale")
        assert runs.ids == []

    async def test_a_thread_that_succeeds_while_it_is_cancelled_releases_its_key_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await self.succeed_in_a_cancelled_thread(
            tmp_path, monkeypatch, name="serial", serial_by=lambda event: event.data.id
        )
        key_lock = KeyLock("default", "serial", CHANNEL)
        store = SQLiteStore(tmp_path / "hooks.db")
        assert await store.acquire_key_lock(key_lock, new_token(), 1.0) == Acquired()
        await store.aclose()

    async def succeed_in_a_cancelled_thread(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
    ) -> None:
        receiver = receiver_on(sqlite_url(tmp_path), drain_seconds=0.1)
        began, may_end = threading.Event(), threading.Event()
        threads: list[Future[bool]] = []
        submit = Threads.submit

        def noted(self: Threads, work: Callable[[], bool]) -> Future[bool]:
            threads.append(submit(self, work))
            return threads[-1]

        monkeypatch.setattr(Threads, "submit", noted)

        # This handler is cancelled first. It blocks the loop until the thread has ended.
        @receiver.on(ChannelUnhealthy, name="cancelled")
        async def hold_up(_: ChannelUnhealthy) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                may_end.set()
                threads[0].result(20)

        @receiver.on(ChannelUnhealthy, **options)
        def succeed(_: ChannelUnhealthy) -> None:
            began.set()
            assert may_end.wait(20)

        async with receiver:
            running = asyncio.create_task(deliver(receiver, channel_event(2)))
            await until(began.is_set)
        assert answer_of(await running) == (503, "shutting_down")


class TestRegistration:
    def test_contradicting_options_of_keys_are_refused(self) -> None:
        receiver = Router()

        def key(_: object) -> str:
            return "k"

        async def async_key(_: object) -> str:
            return "k"

        contradictions: list[tuple[Any, str]] = [
            ({"latest_by": key, "serial_by": key}, "latest_by or serial_by"),
            ({"ties": "drop"}, "ties needs latest_by"),
            ({"ties": "drop", "serial_by": key}, "ties needs latest_by"),
            ({"ties": "first", "latest_by": key}, "'apply' or 'drop', not 'first'"),
        ]
        for options, message in contradictions:
            with pytest.raises(ValueError, match=message):
                receiver.on(CommentReceived, **options)
        functions: list[Any] = ["data.id", async_key, 3]
        for function in functions:
            with pytest.raises(TypeError, match="plain function of the event"):
                receiver.on(CommentReceived, latest_by=function)
        with pytest.raises(TypeError, match="no option 'latest_of'"):
            receiver.on(CommentReceived, latest_of=key)  # type: ignore[call-overload]

    async def test_copies_and_included_routers_keep_the_key_functions(self) -> None:
        router = Router()
        runs = latest(router)
        receiver = receiver_on()
        receiver.include(router)
        copied = receiver.copy(store="memory://", endpoint="copy")
        older, newer = channel_event(1), channel_event(2)
        for one in (receiver, copied):
            async with one:
                assert answer_of(await deliver(one, newer)) == (200, "handled")
                assert answer_of(await deliver(one, older)) == (200, "stale")
        assert runs.ids == [newer.id, newer.id]

    async def test_handlers_of_unknown_types_may_have_key_functions(self) -> None:
        receiver, runs = receiver_on(), Runs()

        @receiver.on_unknown(name="unknown", latest_by=lambda event: event.type)
        async def note(event: UnknownEvent) -> None:
            await runs(event)

        async with receiver:
            for minute, reason in ((2, "handled"), (1, "stale")):
                body = event_body("post.boosted", created_at=NOON + timedelta(minutes=minute))
                request = signed_request(body, SECRET)
                outcome = await receiver.handle(request.body, request.headers)
                assert answer_of(outcome) == (200, reason)

    @pytest.mark.parametrize(
        "key", ["k" * 201, "half \ud83d of a pair", "a\0b", "a\nb ", "", "k" * 200, -7, 10**30]
    )
    async def test_any_key_becomes_a_text_that_every_store_can_hold(
        self, tmp_path: Path, key: str | int
    ) -> None:
        receiver, runs = receiver_on(sqlite_url(tmp_path)), Runs()
        receiver.on("channel.*", name="keyed", latest_by=lambda _: key)(runs)
        async with receiver:
            assert answer_of(await deliver(receiver, channel_event(2))) == (200, "handled")
            assert answer_of(await deliver(receiver, channel_event(1))) == (200, "stale")

    @pytest.mark.parametrize("victim", ["k" * 201, "a\nb", "k "])
    async def test_no_key_that_looks_like_a_digest_can_equal_the_digest_of_another_key(
        self, url: str, victim: str
    ) -> None:
        digest = sha256(victim.encode()).hexdigest()
        prefixed = f"sha256:{digest}"
        twice = f"sha256:{sha256(prefixed.encode()).hexdigest()}"
        keys = [victim, digest, prefixed, twice, prefixed.upper()]
        receiver, runs, waiting = receiver_on(url, drain_seconds=0.1), Runs(), Runs()
        waiting.key_lock = asyncio.Event()
        events = [channel_event(9 - n) for n in range(len(keys))]
        key_of = {event.id: key for event, key in zip(events, keys, strict=True)}.__getitem__
        receiver.on("channel.*", name="latest", latest_by=lambda event: key_of(event.id))(runs)
        receiver.on("channel.*", name="serial", serial_by=lambda event: key_of(event.id))(waiting)
        async with receiver:
            answers = []
            for number, event in enumerate(events, 1):
                answers.append(asyncio.create_task(deliver(receiver, event)))
                await until(lambda number=number: waiting.at_once == number)  # type: ignore[misc]
            waiting.key_lock.set()
            outcomes = await asyncio.gather(*answers)
        assert [answer_of(outcome) for outcome in outcomes] == [(200, "handled")] * len(keys)
        assert runs.ids == [event.id for event in events]

    async def test_events_of_several_classes_share_a_key_in_one_handler(self) -> None:
        receiver = receiver_on()
        runs = latest(receiver)
        gone = make_event(
            ChannelDisconnected, created_at=NOON + timedelta(minutes=5), data={"id": CHANNEL}
        )
        async with receiver:
            assert answer_of(await deliver(receiver, gone)) == (200, "handled")
            assert answer_of(await deliver(receiver, channel_event(4))) == (200, "stale")
        assert runs.ids == [gone.id]


def _exits() -> str:
    raise SystemExit(1)


async def _is(receiver: Receiver, event: Event[Any], reason: str) -> bool:
    return answer_of(await deliver(receiver, event, 9))[1] == reason


async def _in_flight(store: SQLiteStore) -> int:
    return (await store.stats()).in_flight
