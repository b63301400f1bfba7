"""A receiver with an inbox: its answers, and how its workers handle the stored events."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from starlette.applications import Starlette
from support.deliveries import SECRET, deliver, empty_inbox, shuts_down
from support.handlers import Handler
from support.servers import delivering
from support.sqlite_files import sqlite_connection
from support.stores import FaultyInboxStore
from support.waiting import until, until_async

from hookonce import Backoff, Context, Inbox, Limits, Receiver, Reject, Retry
from hookonce.events import ChannelUnhealthy, CommentReceived, Event
from hookonce.stores.memory import MemoryStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    INTERRUPTED,
    Claimed,
    DeadLetter,
    DeadReason,
    Delivery,
    delivery_key,
    new_token,
)
from hookonce.testing import TestSender, event_body, make_event, new_event_id, signed_request

pytestmark = pytest.mark.anyio

T = TypeVar("T")

SOON = Backoff(first_seconds=0.01, factor=1, jitter=0)
LATER = Backoff(first_seconds=3600, jitter=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hooks.db"


@pytest.fixture
def make_receiver(path: Path) -> Callable[..., Receiver]:
    """Return a function that makes receivers on one store."""

    def make(*, limits: Limits | None = None, **inbox: Any) -> Receiver:
        inbox = {"backoff": SOON} | inbox
        return Receiver(
            secrets=SECRET, store=f"sqlite:///{path}", inbox=Inbox(**inbox), limits=limits
        )

    return make


@pytest.fixture
def receiver(make_receiver: Callable[..., Receiver]) -> Receiver:
    return make_receiver()


def comment() -> CommentReceived:
    return make_event(CommentReceived)


async def buried(receiver: Receiver, event: Event[Any]) -> DeadLetter:
    """Wait until an event is a dead letter, and return the dead letter."""
    letters: list[DeadLetter] = []

    async def is_dead() -> bool:
        letter = await receiver.dead.show(event.id)
        letters.extend([letter] if letter else [])
        return letter is not None

    await until_async(is_dead, what="a dead letter")
    return letters[0]


class TestAnswers:
    async def test_a_delivery_is_stored_answered_202_and_handled_once(
        self, receiver: Receiver
    ) -> None:
        handler = Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            (await sender.send(event)).expect(202, "stored")
            await handler.has_run(1)
            await empty_inbox(receiver)
            (await sender.send(event, attempt=2)).expect(200, "duplicate")
        [context] = handler.contexts
        assert (context.attempt, context.last_chance, context.is_replay) == (1, False, False)
        assert context.event_id == event.id

    async def test_the_answer_does_not_wait_for_the_handler_and_copies_are_duplicates(
        self, receiver: Receiver
    ) -> None:
        handler = Handler(receiver)
        key_lock = handler.waits()
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            (await sender.send(event)).expect(202, "stored")
            await handler.has_run(1)
            (await sender.send(event, attempt=2)).expect(200, "duplicate")
            key_lock.set()
            await empty_inbox(receiver)
            (await sender.send(event, attempt=3)).expect(200, "duplicate")
        assert handler.attempts == [1]

    async def test_only_one_of_50_concurrent_copies_is_stored(self, receiver: Receiver) -> None:
        handler = Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            answers = await asyncio.gather(*(sender.send(event) for _ in range(50)))
            reasons = [answer.reason for answer in answers]
            assert (reasons.count("stored"), reasons.count("duplicate")) == (1, 49)
            await empty_inbox(receiver)
        assert handler.attempts == [1]

    async def test_an_event_without_a_handler_is_not_stored(self, receiver: Receiver) -> None:
        Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            (await sender.send(make_event(ChannelUnhealthy))).expect(200, "no_handler")
            unknown = event_body("post.target.boosted", event_id=new_event_id())
            (await sender.send(unknown)).expect(200, "unknown_type")
            assert (await receiver.waiting.stats()).depth == 0

    async def test_an_unreadable_delivery_is_a_dead_letter_at_once(
        self, receiver: Receiver
    ) -> None:
        Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            answer = await sender.send(b'{"id": "evt_cut', message_id="evt_cut")
            answer.expect(202, "quarantined")
            [letter] = await receiver.dead.list()
            assert letter.reason is DeadReason.UNREADABLE

    async def test_a_forged_delivery_is_not_stored(self, receiver: Receiver) -> None:
        Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            (await sender.send(comment(), tamper=True)).expect(401)
            assert (await receiver.waiting.stats()).depth == 0

    async def test_a_dead_event_is_answered_202_and_not_run_again(self, receiver: Receiver) -> None:
        handler = Handler(receiver)
        handler.raises(Reject("no"))
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            await sender.send(event)
            await buried(receiver, event)
            (await sender.send(event, attempt=2)).expect(202, "already_dead")
        assert handler.attempts == [1]

    @pytest.mark.parametrize("limit", [{"max_depth": 2}, {"max_bytes": 1_000}])
    async def test_a_full_inbox_is_answered_503_until_there_is_room(
        self, make_receiver: Callable[..., Receiver], limit: dict[str, int]
    ) -> None:
        receiver = make_receiver(embedded=False, **limit)
        handler = Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            first, second, third = (
                make_event(CommentReceived, data={"text": "x" * 200}) for _ in range(3)
            )
            (await sender.send(first)).expect(202, "stored")
            await sender.send(second)
            answer = (await sender.send(third)).expect(503, "inbox_full")
            assert int(answer.headers["retry-after"]) >= 1
            (await sender.send(first, attempt=2)).expect(200, "duplicate")
            async with worker_beside(make_receiver) as beside:
                await empty_inbox(receiver)
                assert len(beside.contexts) >= 1
            (await sender.send(third, attempt=2)).expect(202, "stored")
        assert handler.contexts == []

    async def test_a_store_that_fails_is_answered_503_and_nothing_is_lost(self, path: Path) -> None:
        store = FaultyInboxStore(SQLiteStore(path))
        receiver = Receiver(secrets=SECRET, store=store, inbox=Inbox())
        handler = Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            store.failures["enqueue"] = 1
            (await sender.send(event)).expect(503, "store_unavailable")
            (await sender.send(event, attempt=2)).expect(202, "stored")
            await handler.has_run(1)

    async def test_a_store_that_hangs_is_answered_503_in_time(self, path: Path) -> None:
        store = FaultyInboxStore(SQLiteStore(path))
        receiver = Receiver(
            secrets=SECRET, store=store, inbox=Inbox(), limits=Limits(store_seconds=0.2)
        )
        Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            key_lock = store.hang("enqueue")
            (await sender.send(comment())).expect(503, "store_unavailable")
            key_lock.set()


class TestWorking:
    async def test_after_the_backoff_only_the_failed_handlers_run_again(
        self, receiver: Receiver
    ) -> None:
        good, bad = Handler(receiver, "good"), Handler(receiver, "bad")
        bad.raises(ValueError("not yet"), ValueError("still not"), None)
        told: list[tuple[int, int]] = []

        @receiver.on_error
        def note(error: ExceptionGroup[Exception], event: Event[Any], context: Context) -> None:  # noqa: ARG001
            told.append((context.attempt, len(error.exceptions)))

        async with delivering(receiver, SECRET) as sender:
            (await sender.send(comment())).expect(202, "stored")
            await empty_inbox(receiver)
        assert good.attempts == [1]
        assert bad.attempts == [1, 2, 3]
        assert told == [(1, 1), (2, 1)]

    async def test_an_event_that_fails_its_last_attempt_is_a_dead_letter_with_its_history(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(max_attempts=3)
        handler = Handler(receiver)
        handler.raises(ValueError("one"), KeyError("two"), ValueError("three"))
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            await sender.send(event)
            letter = await buried(receiver, event)
        assert [context.last_chance for context in handler.contexts] == [False, False, True]
        assert (letter.reason, letter.attempts) == (DeadReason.EXHAUSTED, 3)
        assert letter.delivery.body == handler.contexts[0].body
        assert [(failure.number, failure.error) for failure in letter.history] == [
            (1, "handler: ValueError: one"),
            (2, "handler: KeyError: 'two'"),
            (3, "handler: ValueError: three"),
        ]

    async def test_a_rejected_event_is_a_dead_letter_at_once(self, receiver: Receiver) -> None:
        handler = Handler(receiver)
        handler.raises(Reject("not for us"))
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            await sender.send(event)
            letter = await buried(receiver, event)
        assert (letter.reason, letter.error) == (DeadReason.REJECTED, "handler: Reject: not for us")
        assert handler.attempts == [1]

    async def test_a_requested_retry_comes_at_the_requested_time_whatever_the_backoff(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(backoff=LATER)
        handler = Handler(receiver)
        handler.raises(Retry(after=0.01), None)
        async with delivering(receiver, SECRET) as sender:
            await sender.send(comment())
            await empty_inbox(receiver)
        assert handler.attempts == [1, 2]

    async def test_a_retry_that_was_asked_for_in_an_hour_waits_an_hour(
        self, receiver: Receiver
    ) -> None:
        handler = Handler(receiver)
        handler.raises(Retry(after=3600))
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            await sender.send(event)

            async def waits() -> bool:
                entry = await receiver.waiting.show(event.id)
                return entry is not None and entry.attempts == 1 and not entry.in_flight

            await until_async(waits)
            entry = await receiver.waiting.show(event.id)
            assert entry is not None
            assert entry.due_unix - entry.history[0].ended_unix == pytest.approx(3600, abs=1)
            assert await receiver.waiting.retry(event.id)
            await handler.has_run(2)

    async def test_a_retry_beside_a_failure_waits_for_the_longer_of_both(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(backoff=LATER)
        asks, fails = Handler(receiver, "asks"), Handler(receiver, "fails")
        asks.raises(Retry(after=0.01))
        fails.raises(ValueError("broken"))
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            await sender.send(event)

            async def waits() -> bool:
                entry = await receiver.waiting.show(event.id)
                return entry is not None and bool(entry.history)

            await until_async(waits)
            entry = await receiver.waiting.show(event.id)
            assert entry is not None
            assert entry.due_unix - entry.history[0].ended_unix == pytest.approx(3600, abs=1)

    async def test_at_most_the_allowed_number_of_events_run_at_once_and_all_are_handled(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(concurrency=3)
        handler = Handler(receiver)
        key_lock = handler.waits()
        async with delivering(receiver, SECRET) as sender:
            await asyncio.gather(*(sender.send(comment()) for _ in range(10)))
            await until(lambda: len(handler.contexts) == 3)
            stats = await receiver.waiting.stats()
            assert (stats.depth, stats.in_flight, stats.workers) == (10, 3, 1)
            key_lock.set()
            await empty_inbox(receiver)
        assert len(handler.contexts) == 10
        assert handler.most_at_once == 3

    async def test_an_idle_worker_begins_a_retry_when_it_is_due(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(backoff=Backoff(first_seconds=0.1, factor=1, jitter=0))
        handler = Handler(receiver)
        handler.raises(*[ValueError("not yet")] * 9, None)
        loop = asyncio.get_running_loop()
        async with delivering(receiver, SECRET) as sender:
            started_at = loop.time()
            await sender.send(comment())
            await empty_inbox(receiver)
        assert handler.attempts == list(range(1, 11))
        # Ten polls of an idle worker would take much longer, so no attempt waited for a poll.
        assert 0.9 < loop.time() - started_at < 15

    async def test_sync_handlers_run_in_threads(self, receiver: Receiver) -> None:
        seen: list[str] = []
        receiver.on(CommentReceived, name="sync")(lambda event: seen.append(event.id))
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            await sender.send(event)
            await empty_inbox(receiver)
        assert seen == [event.id]

    async def test_a_dead_letter_is_replayed_with_its_id_and_knows_it(
        self, receiver: Receiver
    ) -> None:
        handler = Handler(receiver)
        handler.raises(Reject("not yet"), None)
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            await sender.send(event)
            await buried(receiver, event)
            assert (await receiver.dead.replay(event.id)).reason == "handled"
            assert await receiver.dead.list() == []
            (await sender.send(event, attempt=2)).expect(200, "duplicate")
        assert [context.is_replay for context in handler.contexts] == [False, True]

    async def test_two_endpoints_on_one_store_each_work_on_their_own(self, path: Path) -> None:
        async with AsyncExitStack() as stack:
            handlers = {}
            senders = {}
            for endpoint in ("bakery", "cafe"):
                receiver = Receiver(
                    secrets=SECRET,
                    store=f"sqlite:///{path}",
                    endpoint=endpoint,
                    inbox=Inbox(backoff=SOON),
                )
                handlers[endpoint] = Handler(receiver)
                senders[endpoint] = await stack.enter_async_context(delivering(receiver, SECRET))
            event = comment()
            for sender in senders.values():
                (await sender.send(event)).expect(202, "stored")
            for endpoint, handler in handlers.items():
                await handler.has_run(1)
                assert handler.contexts[0].endpoint == endpoint


@asynccontextmanager
async def worker_beside(make_receiver: Callable[..., Receiver]) -> AsyncIterator[Handler]:
    """Run a worker of a second receiver on the same store, like a separate worker process."""
    receiver = make_receiver(embedded=False)
    handler = Handler(receiver)
    async with receiver.working():
        yield handler


class TestWorkersOfTheirOwn:
    async def test_separate_workers_handle_events_that_another_receiver_stored(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(embedded=False)
        handler = Handler(receiver)
        async with (
            delivering(receiver, SECRET) as sender,
            worker_beside(make_receiver) as first,
            worker_beside(make_receiver) as second,
        ):
            for _ in range(20):
                (await sender.send(comment())).expect(202, "stored")
            await empty_inbox(receiver)
            assert len(first.contexts) + len(second.contexts) == 20
        assert handler.contexts == []

    async def test_an_inbox_without_separate_workers_is_an_error_and_a_warning_and_still_ready(
        self,
        make_receiver: Callable[..., Receiver],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        receiver = make_receiver(embedded=False)
        Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            assert (await receiver.check()).ready
            (await sender.send(comment())).expect(202, "stored")
            await until(lambda: "the inbox of default has no worker" in caplog.text)
            [record] = [r for r in caplog.records if "has no worker" in r.getMessage()]
            assert record.levelno == logging.ERROR
            readiness = await receiver.check()
            assert readiness.problems == ()
            [warning] = readiness.warnings
            assert "`hookonce worker`" in warning
            required = readiness.requiring_workers()
            assert (required.ready, required.problems, required.warnings) == (False, (warning,), ())
            await sender.send(comment())
            assert (
                caplog.text.count("has no worker") == 1
            )  # the warning is not repeated at every delivery
            async with worker_beside(make_receiver):
                await empty_inbox(receiver)
                assert (await receiver.check()).requiring_workers().ready
            assert not (await receiver.check()).requiring_workers().ready

    async def test_a_worker_whose_task_was_cancelled_by_others_works_no_more(
        self, receiver: Receiver
    ) -> None:
        async with receiver:
            assert (await receiver.check()).ready
            [task] = [t for t in asyncio.all_tasks() if "Worker._run" in repr(t.get_coro())]
            task.cancel()
            await asyncio.wait({task})
            assert isinstance(receiver.store, SQLiteStore)
            connection = sqlite_connection(receiver.store.path)
            connection.execute("DELETE FROM workers")  # as if the worker's row had expired
            connection.close()
            assert not (await receiver.check()).ready

    async def test_a_mounted_receiver_without_a_lifespan_reports_that_no_worker_runs(
        self, receiver: Receiver, caplog: pytest.LogCaptureFixture
    ) -> None:
        Handler(receiver)
        app = Starlette()
        app.mount("/hooks", receiver)
        async with delivering(app, SECRET, path="/hooks/") as sender:
            (await sender.send(comment())).expect(202, "stored")
            await until(lambda: "the inbox of default has no worker" in caplog.text)
            [problem] = (await receiver.check()).problems
            assert "lifespan" in problem

    async def test_a_receiver_without_an_inbox_has_nothing_to_work_on(self, path: Path) -> None:
        receiver = Receiver(secrets=SECRET, store=f"sqlite:///{path}")
        with pytest.raises(LookupError, match="no inbox"):
            async with receiver.working():
                pass
        with pytest.raises(AttributeError, match="no inbox"):
            _ = receiver.waiting
        assert not hasattr(receiver, "waiting")
        assert receiver.inbox is None

    def test_a_memory_store_has_no_inbox(self) -> None:
        for store in ("memory://", MemoryStore()):
            with pytest.raises(ValueError, match="no inbox, because its events do not outlive"):
                Receiver(secrets=SECRET, store=store, inbox=Inbox())


async def opened_by_the_shutdown(key_lock: asyncio.Event, receiver: Receiver) -> None:
    await shuts_down(receiver)
    key_lock.set()


class TestStopping:
    async def test_a_stopped_worker_finishes_its_handlers_and_leaves_other_events_to_the_next(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(concurrency=1)
        handler = Handler(receiver)
        key_lock = handler.waits()
        async with delivering(receiver, SECRET) as sender:
            for _ in range(3):
                await sender.send(comment())
            await handler.has_run(1)
            opening = asyncio.create_task(opened_by_the_shutdown(key_lock, receiver))
        await opening
        assert handler.attempts == [1]
        async with worker_beside(make_receiver) as heir:
            await heir.has_run(2)
        assert heir.attempts == [1, 1]

    async def test_an_event_whose_handler_does_not_end_in_time_is_released_for_the_next_worker(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(limits=Limits(drain_seconds=0.1))
        handler = Handler(receiver)
        handler.waits()
        async with delivering(receiver, SECRET) as sender:
            await sender.send(comment())
            await handler.has_run(1)
        async with worker_beside(make_receiver) as heir:
            await heir.has_run(1)
        assert heir.attempts == [2]

    async def test_a_worker_without_free_places_stops_without_waiting_for_its_next_poll(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(concurrency=1, limits=Limits(drain_seconds=0.1))
        handler = Handler(receiver)
        handler.waits()
        loop = asyncio.get_running_loop()
        async with delivering(receiver, SECRET) as sender:
            await sender.send(comment())
            await handler.has_run(1)
            stopped_at = loop.time()
        assert loop.time() - stopped_at < 8

    async def test_a_receiver_that_is_closed_at_once_ends(self, receiver: Receiver) -> None:
        async with receiver:
            pass

    async def test_a_receiver_does_not_work_twice_at_the_same_time(
        self, receiver: Receiver
    ) -> None:
        async with receiver:
            with pytest.raises(RuntimeError, match="works on its inbox already"):
                async with receiver.working():
                    pass
            with pytest.raises(RuntimeError, match="works on its inbox already"):
                async with receiver:
                    pass
            assert (await receiver.check()).ready
        assert not receiver.is_open

    async def test_an_operators_block_closes_nothing_of_a_serving_receiver(
        self, receiver: Receiver
    ) -> None:
        handler = Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            async with receiver.opened():
                await receiver.dead.list()
            (await sender.send(comment())).expect(202, "stored")
            await handler.has_run(1)

    async def test_an_operators_earlier_block_leaves_a_mounted_receiver_usable(
        self, receiver: Receiver
    ) -> None:
        Handler(receiver)
        async with receiver.opened():
            await receiver.dead.list()
        app = Starlette()
        app.mount("/hooks", receiver)
        async with delivering(app, SECRET, path="/hooks/") as sender:
            (await sender.send(comment())).expect(202, "stored")

    async def test_a_receiver_works_again_after_a_stop(self, receiver: Receiver) -> None:
        handler = Handler(receiver)
        for number in range(1, 4):
            async with delivering(receiver, SECRET) as sender:
                await sender.send(comment())
                await handler.has_run(number)
                await empty_inbox(receiver)


class TestTrouble:
    @pytest.mark.parametrize("call", ["fetch", "wait"])
    async def test_a_worker_continues_when_the_store_is_back(self, path: Path, call: str) -> None:
        store = FaultyInboxStore(SQLiteStore(path))
        store.failures[call] = 2
        receiver = Receiver(secrets=SECRET, store=store, inbox=Inbox(backoff=SOON))
        handler = Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            await until(lambda: store.calls[call] >= 2)
            await sender.send(comment())
            await handler.has_run(1)
            await empty_inbox(receiver)

    async def test_a_worker_continues_after_an_unexpected_error(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = SQLiteStore(path)
        receiver = Receiver(secrets=SECRET, store=store, inbox=Inbox(backoff=SOON))
        handler = Handler(receiver)
        faults = [RuntimeError("a fault in the library"), None]
        take = store.fetch

        async def faulty(*arguments: Any, **options: Any) -> Any:
            fault = faults.pop() if faults else None
            if fault is not None:
                raise fault
            return await take(*arguments, **options)

        monkeypatch.setattr(store, "fetch", faulty)
        async with delivering(receiver, SECRET) as sender:
            await sender.send(comment())
            await handler.has_run(1)
            await until(lambda: not faults)

    async def test_an_event_that_cannot_be_begun_delays_no_other_event_and_repeats_none(
        self, make_receiver: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        receiver = make_receiver(embedded=False)
        handler = Handler(receiver)
        key_lock = handler.waits()
        find = receiver._table.find
        async with delivering(receiver, SECRET) as sender:
            events = [comment() for _ in range(5)]
            for event in events:
                (await sender.send(event)).expect(202, "stored")

        def faulty(event: Event[Any]) -> Any:
            if event.id == events[2].id:
                raise RuntimeError("a fault in the library")
            return find(event)

        monkeypatch.setattr(receiver._table, "find", faulty)
        async with receiver.working():
            await until(lambda: len(handler.contexts) == 4)
            key_lock.set()
            await until_async(lambda: has_depth(receiver, 1))
        assert [context.event_id for context in handler.contexts] == [
            event.id for event in events if event is not events[2]
        ]

    async def test_an_event_whose_last_attempt_broke_off_is_a_dead_letter_without_another(
        self, make_receiver: Callable[..., Receiver], path: Path
    ) -> None:
        event = comment()
        body = event.model_dump_json(by_alias=True).encode()
        async with aclosing(SQLiteStore(path)) as store:
            await store.enqueue(Delivery("default", event.id, event.type, 1.0, body), new_token())
            for _ in range(2):  # as if two processes had died during an attempt
                batch = await store.fetch(
                    1, 0.001, endpoint="default", worker="killed", token=new_token()
                )
                assert len(batch.fetched) == 1
                await asyncio.sleep(0.002)
        receiver = make_receiver(max_attempts=2)
        handler = Handler(receiver)
        async with receiver:
            letter = await buried(receiver, event)
        assert handler.contexts == []
        assert (letter.reason, letter.error) == (DeadReason.INTERRUPTED, INTERRUPTED)
        assert letter.delivery.body == body
        assert [failure.error for failure in letter.history] == [INTERRUPTED] * 3

    async def test_an_event_that_a_shutdown_released_still_has_its_last_attempt(
        self, make_receiver: Callable[..., Receiver], path: Path
    ) -> None:
        event = comment()
        body = event.model_dump_json(by_alias=True).encode()
        async with aclosing(SQLiteStore(path)) as store:
            # A receiver without an inbox made these attempts before this receiver was deployed.
            for _ in range(5):
                claim = await store.claim(delivery_key("default", event.id), new_token(), 30)
                assert isinstance(claim, Claimed)
                await store.release(claim, frozenset(), "it failed")
            await store.enqueue(Delivery("default", event.id, event.type, 1.0, body), new_token())
        receiver = make_receiver(max_attempts=3)
        handler = Handler(receiver)
        async with receiver:
            await handler.has_run(1)
            await empty_inbox(receiver)
        [context] = handler.contexts
        assert (context.attempt, context.last_chance) == (6, True)

    async def test_a_success_is_recorded_when_the_store_is_back_however_long_it_was_away(
        self, path: Path
    ) -> None:
        store = FaultyInboxStore(SQLiteStore(path))
        receiver = Receiver(
            secrets=SECRET,
            store=store,
            inbox=Inbox(backoff=SOON),
            limits=Limits(lease_seconds=0.3),
        )
        handler = Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            for call in ("fetch", "extend", "complete"):
                store.hang(call)
            store.gates.pop("fetch").set()
            await sender.send(comment())
            await handler.has_run(1)
            store.failures |= {"fetch": -1, "extend": -1, "complete": -1}
            for call in ("extend", "complete"):
                store.gates.pop(call).set()
            begun = store.calls["complete"]
            await until(
                lambda: store.calls["complete"] >= begun + 3
            )  # the handler runs for longer than the lease
            store.failures.clear()
            await empty_inbox(receiver)
        assert handler.attempts == [1]

    async def test_slow_error_hooks_keep_no_retry_from_its_attempt(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(backoff=Backoff(first_seconds=0, jitter=0))
        handler = Handler(receiver)
        handler.raises(ValueError("one"), ValueError("two"), None)
        key_lock = asyncio.Event()

        @receiver.on_error
        async def tell(error: ExceptionGroup[Exception]) -> None:  # noqa: ARG001 - error hooks get this argument
            await key_lock.wait()

        async with delivering(receiver, SECRET) as sender:
            await sender.send(comment())
            await handler.has_run(3)
            key_lock.set()
            await empty_inbox(receiver)
        assert handler.attempts == [1, 2, 3]

    async def test_a_lease_that_was_lost_is_taken_up_again_by_the_attempt_that_goes_on(
        self, path: Path
    ) -> None:
        store = FaultyInboxStore(SQLiteStore(path))
        receiver = Receiver(
            secrets=SECRET,
            store=store,
            inbox=Inbox(backoff=LATER),
            limits=Limits(lease_seconds=0.5),
        )
        handler = Handler(receiver)
        key_lock = handler.waits()
        async with delivering(receiver, SECRET) as sender:
            event = comment()
            store.failures["extend"] = 10
            await sender.send(event)
            await handler.has_run(1)
            await until_async(lambda: has_lost_its_lease(receiver, event))
            await until_async(lambda: keeps_its_lease(receiver, event, store))
            key_lock.set()
            await empty_inbox(receiver)
        assert handler.attempts == [1]

    async def test_a_lease_is_extended_at_a_third_of_it(self, path: Path) -> None:
        store, limits = FaultyInboxStore(SQLiteStore(path)), Limits(lease_seconds=3.0)
        receiver = Receiver(secrets=SECRET, store=store, inbox=Inbox(), limits=limits)
        key_lock = Handler(receiver).waits()
        async with receiver:
            begun = time.monotonic()
            await deliver(receiver, comment())
            await until(lambda: store.calls["extend"])
            assert time.monotonic() - begun > 0.7
            key_lock.set()

    async def test_a_lease_counts_from_before_the_store_was_asked(self, path: Path) -> None:
        """The store may start a lease before it answers, so the worker counts from its own call."""
        store, limits = FaultyInboxStore(SQLiteStore(path)), Limits(lease_seconds=3.0)
        receiver = Receiver(secrets=SECRET, store=store, inbox=Inbox(), limits=limits)
        handler = Handler(receiver)
        key_lock, take = handler.waits(), store.hang("fetch")
        async with receiver:
            asyncio.get_running_loop().call_later(0.9, take.set)
            await deliver(receiver, comment())
            await handler.has_run(1)
            begun = time.monotonic()
            assert store.calls["extend"] == 0
            await until(lambda: store.calls["extend"])
            assert time.monotonic() - begun < 0.8  # extended 1 s after the fetch began
            key_lock.set()

    async def test_a_finished_handler_is_remembered_although_the_first_release_failed(
        self, path: Path
    ) -> None:
        store = FaultyInboxStore(SQLiteStore(path))
        receiver = Receiver(secrets=SECRET, store=store, inbox=Inbox(backoff=SOON))
        good, bad = Handler(receiver, "good"), Handler(receiver, "bad")
        bad.raises(ValueError("not yet"), None)
        store.failures["retry"] = 2
        async with delivering(receiver, SECRET) as sender:
            await sender.send(comment())
            await empty_inbox(receiver)
        assert good.attempts == [1]
        assert bad.attempts == [1, 2]

    async def test_events_in_an_inbox_that_the_receiver_no_longer_has_cause_a_warning(
        self, make_receiver: Callable[..., Receiver], path: Path
    ) -> None:
        before = make_receiver(embedded=False)
        Handler(before)
        async with delivering(before, SECRET) as sender:
            await sender.send(comment())
        after = Receiver(secrets=SECRET, store=f"sqlite:///{path}")
        async with after:
            [warning] = (await after.check()).warnings
            assert warning.startswith("the inbox of default has no worker (1 waiting)")

    async def test_an_event_a_worker_has_no_handler_for_waits_for_one_that_has(
        self, make_receiver: Callable[..., Receiver], caplog: pytest.LogCaptureFixture
    ) -> None:
        receiver = make_receiver(embedded=False)
        Handler(receiver)
        event = comment()
        async with delivering(receiver, SECRET) as sender:
            await sender.send(event)
        older = make_receiver(backoff=LATER)
        async with older:
            await until(lambda: "no handler for comment.received" in caplog.text)

            async def waits() -> bool:
                entry = await older.waiting.show(event.id)
                return entry is not None and not entry.in_flight and entry.attempts == 1

            await until_async(waits)
            await older.waiting.retry(event.id)
            await until_async(lambda: has_attempts(older, event, 2))
        # Start the newer worker only now: before, the older worker could fetch the event again.
        await older.waiting.retry(event.id)
        async with worker_beside(make_receiver) as newer:
            await newer.has_run(1)

    async def test_an_event_no_worker_ever_has_a_handler_for_is_a_dead_letter(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(embedded=False)
        Handler(receiver)
        event = comment()
        async with delivering(receiver, SECRET) as sender:
            await sender.send(event)
        other = make_receiver(max_attempts=2)
        async with other:
            letter = await buried(other, event)
        assert letter.reason is DeadReason.EXHAUSTED
        assert letter.error == "this worker has no handler for comment.received"

    async def test_an_event_a_worker_cannot_read_is_a_dead_letter(
        self, receiver: Receiver, path: Path
    ) -> None:
        Handler(receiver)
        event = comment()
        async with aclosing(SQLiteStore(path)) as store:
            await store.enqueue(Delivery("default", event.id, event.type, 1.0, b"{"), new_token())
        async with receiver:
            letter = await buried(receiver, event)
        assert letter.reason is DeadReason.UNREADABLE


async def has_attempts(receiver: Receiver, event: Event[Any], number: int) -> bool:
    entry = await receiver.waiting.show(event.id)
    return entry is not None and not entry.in_flight and entry.attempts == number


async def attempts(receiver: Receiver, event: Event[Any]) -> int:
    entry = await receiver.waiting.show(event.id)
    return entry.attempts if entry else 0


async def has_lost_its_lease(receiver: Receiver, event: Event[Any]) -> bool:
    """Return whether a worker has fetched the event again while its first attempt goes on."""
    return await attempts(receiver, event) > 1


async def keeps_its_lease(receiver: Receiver, event: Event[Any], store: FaultyInboxStore) -> bool:
    """Return whether no worker fetches the event again during at least two lease times.

    On a busy machine an extension may come too late, so a lease that is lost now proves nothing.
    """
    before, extensions = await attempts(receiver, event), store.calls["extend"]
    await until(lambda: store.calls["extend"] >= extensions + 12)
    return await attempts(receiver, event) == before


async def has_depth(receiver: Receiver, depth: int) -> bool:
    return (await receiver.waiting.stats()).depth == depth


class TestLooking:
    async def test_waiting_events_can_be_listed_shown_and_counted(
        self, make_receiver: Callable[..., Receiver]
    ) -> None:
        receiver = make_receiver(embedded=False)
        Handler(receiver)
        receiver.on(ChannelUnhealthy, name="other")(lambda _: None)
        async with delivering(receiver, SECRET) as sender:
            first, second = comment(), make_event(ChannelUnhealthy)
            await sender.send(first)
            await sender.send(second)
            listed = await receiver.waiting.list()
            assert [entry.delivery.event_id for entry in listed] == [first.id, second.id]
            [entry] = await receiver.waiting.list(event_type="channel.unhealthy")
            assert entry.delivery.event_id == second.id
            since = listed[1].delivery.received_at
            [entry] = await receiver.waiting.list(since=since)
            assert entry.delivery == listed[1].delivery
            assert await receiver.waiting.list(since=since + timedelta(seconds=1)) == []
            assert listed[0].state(listed[0].due_at + timedelta(seconds=1)) == "ready"
            assert listed[0].state(listed[0].due_at - timedelta(seconds=1)) == "waiting"
            shown = await receiver.waiting.show(first.id)
            assert shown is not None
            assert first.id.encode() in shown.delivery.body
            assert await receiver.waiting.show("evt_other") is None
            assert (await receiver.waiting.stats()).depth == 2
            assert not await receiver.waiting.retry("evt_other")
            assert await receiver.waiting.prune() == 0


class TestConfiguration:
    def test_a_backoff_grows_to_its_longest_wait(self) -> None:
        backoff = Backoff(first_seconds=10, factor=3, longest_seconds=100, jitter=0)
        assert [backoff.seconds(attempt, "evt_1") for attempt in (1, 2, 3, 4, 5_000)] == [
            10,
            30,
            90,
            100,
            100,
        ]

    def test_jitter_keeps_a_backoff_within_its_bounds(self) -> None:
        backoff = Backoff(first_seconds=100, jitter=0.1)
        waits = {backoff.seconds(1, f"evt_{number}") for number in range(500)}
        assert len(waits) > 100
        assert 90 <= min(waits) < 95
        assert 105 < max(waits) <= 110

    def test_jitter_differs_by_attempt_and_is_the_same_in_a_repeated_simulation(self) -> None:
        backoff = Backoff(first_seconds=100, factor=1, jitter=0.1)
        waits = [backoff.seconds(attempt, "evt_1") for attempt in range(1, 100)]
        assert len(set(waits)) > 90
        assert waits == [backoff.seconds(attempt, "evt_1") for attempt in range(1, 100)]

    def test_by_default_an_event_is_tried_for_about_a_day(self) -> None:
        inbox = Inbox(backoff=Backoff(jitter=0))
        waits = [
            inbox.backoff_seconds(attempt, "evt_1") for attempt in range(1, inbox.max_attempts)
        ]
        assert 24 * 3600 < sum(waits) < 30 * 3600

    def test_the_first_wait_of_a_backoff_is_a_number_or_a_timedelta(self) -> None:
        for first in (5, timedelta(seconds=5)):
            assert 4.5 <= Inbox(backoff=first).backoff_seconds(1, "evt_1") <= 5.5

    @pytest.mark.parametrize(
        "options",
        [
            {"concurrency": 0},
            {"max_attempts": 0},
            {"max_depth": 0},
            {"max_bytes": -1},
            {"concurrency": 1.5},
            {"max_attempts": True},
            {"backoff": -1},
            {"backoff": float("nan")},
        ],
    )
    def test_settings_of_an_inbox_that_make_no_sense_are_refused(
        self, options: dict[str, Any]
    ) -> None:
        with pytest.raises(ValueError, match=r"must be|backoff takes a finite number"):
            Inbox(**options)

    @pytest.mark.parametrize("backoff", ["5", None, True])
    def test_a_back_off_is_a_number_or_a_backoff(self, backoff: Any) -> None:
        with pytest.raises(TypeError, match="backoff takes"):
            Inbox(backoff=backoff)

    @pytest.mark.parametrize(
        "options",
        [
            {"first_seconds": -1},
            {"factor": 0.5},
            {"longest_seconds": float("inf")},
            {"jitter": 1.5},
        ],
    )
    def test_a_back_off_that_makes_no_sense_is_refused(self, options: dict[str, float]) -> None:
        with pytest.raises(ValueError, match=r"must be|_seconds takes a finite number"):
            Backoff(**options)


async def test_each_attempt_of_a_worker_is_a_line_of_the_log(
    make_receiver: Callable[..., Receiver], caplog: pytest.LogCaptureFixture
) -> None:
    """The log line of each attempt has the same ``extra`` fields as the line of a delivery."""
    receiver = make_receiver(backoff=SOON)

    @receiver.on(CommentReceived)
    async def fail_then_reject(event: CommentReceived, context: Context) -> None:  # noqa: ARG001 - a handler has these parameters
        raise ConnectionError("away") if context.attempt == 1 else Reject("no")

    @receiver.on(ChannelUnhealthy)
    async def handle(event: ChannelUnhealthy) -> None: ...

    caplog.set_level(logging.INFO, logger="hookonce")
    spam, fine = comment(), make_event(ChannelUnhealthy)
    async with TestSender(receiver, secrets=SECRET) as sender:
        await sender.send(spam)
        await sender.send(fine)
        await buried(receiver, spam)
        await empty_inbox(receiver)
    lines = [one for one in caplog.records if "reason" in vars(one) and "status" not in vars(one)]
    told = {
        (one.event_id, one.attempt, one.levelname, one.reason): one.getMessage()  # type: ignore[attr-defined]  # a field from `extra`
        for one in lines
    }
    assert {
        key: re.sub(r"\d\S*Z", "WHEN", re.sub(r"\(\d+\.\d ms\)", "(MS)", text))
        for key, text in told.items()
    } == {
        (spam.id, 1, "WARNING", "retried"): f"comment.received {spam.id} at default: attempt 1"
        " failed; next attempt in 0 s, at WHEN (MS)",
        (spam.id, 2, "ERROR", "rejected"): f"comment.received {spam.id} at default: attempt 2"
        " buried as rejected (MS)",
        (fine.id, 1, "INFO", "handled"): f"channel.unhealthy {fine.id} at default: attempt 1"
        " handled (MS)",
    }
    answered = next(one for one in caplog.records if "status" in vars(one))
    own = vars(logging.makeLogRecord({})).keys()
    parts = vars(lines[0]).keys() - own
    assert parts == vars(answered).keys() - own - {"status"}
    [failed] = [one for one in caplog.records if one.exc_info]
    handler = failed.handler  # type: ignore[attr-defined]  # a field from `extra`
    assert failed.getMessage() == (
        f"comment.received {spam.id} at default: attempt 1 failed: {handler}: ConnectionError:"
        " away; next attempt in 0 s"
    )


@pytest.mark.parametrize("cancelled", ["fetch", "wait"])
async def test_a_worker_continues_if_its_store_cancels_a_call(
    tmp_path: Path, cancelled: str
) -> None:
    class Cancelling(FaultyInboxStore):
        async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
            if name == cancelled and not self.calls[name]:
                self.calls[name] += 1
                raise asyncio.CancelledError
            return await super().call(name, call)

    store = Cancelling(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, inbox=Inbox())
    ran = list[str]()
    receiver.on(CommentReceived, name="note")(lambda event: ran.append(event.id))
    async with receiver:
        await until(lambda: store.calls[cancelled])
        request = signed_request(make_event(CommentReceived), SECRET)
        await receiver.handle(request.body, request.headers)
        await until(lambda: ran)
