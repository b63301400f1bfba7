"""Handlers of one event are independent, run once each, and whatever they raise is a failure."""

import asyncio
import contextvars
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.stores import FaultyStore
from support.waiting import until, until_async

from hookonce import Context, Limits, Receiver, Reject, Retry
from hookonce.events import CommentReceived, Event, PostTargetFailed, WebhookTest
from hookonce.integrations.pytest_plugin import SenderFactory
from hookonce.stores.contract import Store
from hookonce.stores.memory import MemoryStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import DeadReason
from hookonce.testing import SignedRequest, TestSender, make_event, signed_request

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "hooks.db")


@pytest.fixture
def receiver(webhook_secret: str) -> Receiver:
    return Receiver(secrets=webhook_secret, store="memory://")


@pytest.fixture
def durable(webhook_secret: str, tmp_path: Path) -> Receiver:
    """A receiver whose dead letters keep their bytes."""
    return Receiver(secrets=webhook_secret, store=SQLiteStore(tmp_path / "hooks.db"))


class Handlers:
    """Handlers of comments by name, which note their runs and raise what they were told to."""

    def __init__(self, receiver: Receiver, *names: str) -> None:
        self.ran: list[str] = []
        self.raises: dict[str, BaseException | None] = {}
        for name in names:
            receiver.on(CommentReceived, name=name)(partial(self._run, name))

    async def _run(self, name: str, _: CommentReceived) -> None:
        self.ran.append(name)
        error = self.raises.get(name)
        if error is not None:
            raise error

    def runs(self) -> list[str]:
        """Return what ran since the last call, sorted."""
        ran, self.ran = sorted(self.ran), []
        return ran


# independence and checkpoints


async def test_a_failure_of_one_handler_hides_no_other_and_only_it_runs_again(
    any_store: Store, webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    receiver = Receiver(secrets=webhook_secret, store=any_store)
    handlers = Handlers(receiver, "a", "b", "c")
    handlers.raises = {"a": ValueError("x"), "c": KeyError("y")}
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        assert handlers.runs() == ["a", "b", "c"]
        handlers.raises["a"] = None
        (await sender.send(event)).expect(500, "handler_failed")
        assert handlers.runs() == ["a", "c"]
        (await sender.send(event)).expect(500, "handler_failed")
        assert handlers.runs() == ["c"]
        handlers.raises["c"] = None
        (await sender.send(event)).expect(200, "handled")
        assert handlers.runs() == ["c"]
        (await sender.send(event)).expect(200, "duplicate")
        assert handlers.runs() == []


async def test_handlers_of_one_event_run_at_the_same_time(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    meeting = asyncio.Barrier(3)

    @receiver.on(CommentReceived)
    async def one(_: CommentReceived) -> None:
        await meeting.wait()

    @receiver.on("comment.received")
    async def two(_: CommentReceived) -> None:
        await meeting.wait()

    @receiver.on("comment.*")
    async def three(_: Event[Any]) -> None:
        await meeting.wait()

    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")


async def test_a_failure_does_not_cancel_a_handler_that_still_runs(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    failed, finished = asyncio.Event(), list[str]()

    @receiver.on(CommentReceived)
    async def quick(_: CommentReceived) -> None:
        failed.set()
        raise ValueError("at once")

    @receiver.on(CommentReceived)
    async def slow(event: CommentReceived) -> None:
        await failed.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        finished.append(event.id)

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        assert finished == [event.id]


class Recording(FaultyStore):
    """Notes which handlers were recorded as finished while others still ran."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.checkpoints: list[frozenset[str]] = []

    async def extend(
        self, claim: Any, finished: frozenset[str] = frozenset(), owed: frozenset[str] = frozenset()
    ) -> Any:
        self.checkpoints.append(finished)
        return await super().extend(claim, finished, owed)


async def test_a_success_is_recorded_while_another_handler_still_runs(
    any_store: Store, webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    store = Recording(any_store)
    receiver = Receiver(secrets=webhook_secret, store=store)
    gates = {name: asyncio.Event() for name in ("a", "b", "c")}
    for name, gate in gates.items():
        receiver.on(CommentReceived, name=name)(partial(_wait_for, gate))
    async with webhook_sender(receiver) as sender:
        answer = asyncio.create_task(sender.send(make_event(CommentReceived)))
        gates["b"].set()
        await until(lambda: store.checkpoints == [{"b"}])
        gates["a"].set()
        await until(lambda: store.checkpoints == [{"b"}, {"a", "b"}])
        gates["c"].set()
        (await answer).expect(200, "handled")


async def _wait_for(gate: asyncio.Event, _: CommentReceived) -> None:
    await gate.wait()


async def test_a_checkpoint_that_fails_is_tried_again(
    webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    store = Recording(MemoryStore())
    receiver = Receiver(secrets=webhook_secret, store=store)
    gate, open_gate = asyncio.Event(), asyncio.Event()
    open_gate.set()
    receiver.on(CommentReceived, name="a")(partial(_wait_for, open_gate))
    receiver.on(CommentReceived, name="b")(partial(_wait_for, gate))
    async with webhook_sender(receiver) as sender:
        store.failures["extend"] = 1
        answer = asyncio.create_task(sender.send(make_event(CommentReceived)))
        await until(lambda: store.checkpoints == [{"a"}, {"a"}])
        gate.set()
        (await answer).expect(200, "handled")


async def test_a_handler_that_is_registered_later_runs_at_the_next_attempt(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a", "b")
    handlers.raises["b"] = ValueError("x")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500)
        assert handlers.runs() == ["a", "b"]
        handlers.raises.clear()
        late = Handlers(receiver, "late")
        (await sender.send(event)).expect(200, "handled")
        assert (handlers.runs(), late.runs()) == (["b"], ["late"])


async def test_an_attempt_whose_lease_was_lost_settles_nothing(
    tmp_path: Path,
    webhook_secret: str,
    webhook_sender: SenderFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(lease_seconds=0.3)
    stalled = Receiver(secrets=webhook_secret, store=store, limits=limits)
    healthy = Receiver(secrets=webhook_secret, store=SQLiteStore(tmp_path / "hooks.db"))
    gate, stalled_ran, healthy_ran = asyncio.Event(), list[str](), list[str]()

    @stalled.on(CommentReceived, name="handler")
    async def stall(event: CommentReceived) -> None:
        stalled_ran.append(event.id)
        await gate.wait()
        raise ValueError("fails after its lease was lost")

    @healthy.on(CommentReceived, name="handler")
    async def succeed(event: CommentReceived) -> None:
        healthy_ran.append(event.id)

    async with webhook_sender(stalled) as slow_sender, webhook_sender(healthy) as sender:
        event = make_event(CommentReceived)
        store.failures["extend"] = -1
        slow = asyncio.create_task(slow_sender.send(event))
        await until(lambda: stalled_ran)
        (await sender.send(event)).expect(200, "handled")  # once the lease has run out
        store.failures.clear()
        await until(lambda: "was lost" in caplog.text)
        gate.set()
        (await slow).expect(503, "in_flight")
        (await sender.send(event)).expect(200, "duplicate")
        (await slow_sender.send(event)).expect(200, "duplicate")
    assert (len(stalled_ran), len(healthy_ran)) == (1, 1)


async def test_one_heartbeat_that_fails_does_not_lose_a_short_lease(
    tmp_path: Path, webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(lease_seconds=1.2, answer_seconds=2.5)
    receiver = Receiver(secrets=webhook_secret, store=store, limits=limits)
    other = Receiver(
        secrets=webhook_secret, store=SQLiteStore(tmp_path / "hooks.db"), limits=limits
    )
    gate, ran = asyncio.Event(), list[str]()

    @receiver.on(CommentReceived, name="handler")
    async def wait(_: CommentReceived) -> None:
        ran.append("here")
        await gate.wait()

    @other.on(CommentReceived, name="handler")
    async def note(_: CommentReceived) -> None:
        ran.append("elsewhere")

    async with webhook_sender(receiver) as sender, webhook_sender(other) as other_sender:
        event = make_event(CommentReceived)
        store.failures["extend"] = 1
        first = asyncio.create_task(sender.send(event))
        await until(lambda: ran)
        copy = asyncio.create_task(other_sender.send(event))
        await until(lambda: store.calls["extend"] >= 3 or len(ran) > 1)
        gate.set()
        (await first).expect(200, "handled")
        (await copy).expect(200, "duplicate")
    assert ran == ["here"]


async def test_a_success_counts_even_after_its_lease_was_lost(
    tmp_path: Path, webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(lease_seconds=0.2)
    stalled = Receiver(secrets=webhook_secret, store=store, limits=limits)
    healthy = Receiver(secrets=webhook_secret, store=SQLiteStore(tmp_path / "hooks.db"))
    gate, ran = asyncio.Event(), list[str]()

    @stalled.on(CommentReceived, name="handler")
    async def stall(_: CommentReceived) -> None:
        ran.append("stalled")
        await gate.wait()

    @healthy.on(CommentReceived, name="handler")
    async def fail(_: CommentReceived) -> None:
        ran.append("healthy")
        raise ValueError("x")

    async with webhook_sender(stalled) as slow_sender, webhook_sender(healthy) as sender:
        event = make_event(CommentReceived)
        store.failures["extend"] = -1
        slow = asyncio.create_task(slow_sender.send(event))
        await until(lambda: ran == ["stalled"])
        (await sender.send(event)).expect(500, "handler_failed")
        gate.set()
        (await slow).expect(200, "handled")
        (await sender.send(event)).expect(200, "duplicate")
    assert ran == ["stalled", "healthy"]


# on_error


async def test_all_failures_of_an_attempt_surface_as_one_group_with_notes(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a", "b", "c")
    handlers.raises = {"a": ValueError("x"), "c": KeyError("y")}
    told: list[tuple[ExceptionGroup[Exception], Event[Any], Context]] = []

    @receiver.on_error
    async def note(error: ExceptionGroup[Exception], event: Event[Any], context: Context) -> None:
        told.append((error, event, context))

    async with webhook_sender(receiver) as sender:
        sent = make_event(CommentReceived)
        (await sender.send(sent, attempt=4)).expect(500)
        await until(lambda: told)
    [(group, event, context)] = told
    assert group.exceptions == (handlers.raises["a"], handlers.raises["c"])
    assert [error.__notes__ for error in group.exceptions] == [
        ["raised by the handler 'a'"],
        ["raised by the handler 'c'"],
    ]
    assert "2 handlers of comment.received failed" in str(group)
    assert event == sent
    assert (context.event_id, context.handler) == (sent.id, "a, c")
    assert (context.attempt, context.delivery_attempt) == (1, 4)


async def test_hooks_take_one_two_or_three_arguments_and_may_be_sync(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    Handlers(receiver, "a").raises["a"] = ValueError("x")
    told: dict[str, tuple[object, ...]] = {}

    def noting(name: str) -> Callable[..., None]:
        def note(*arguments: object) -> None:
            told[name] = (*arguments, threading.current_thread().name)

        return note

    @receiver.on_error
    def one(error: BaseException) -> None:
        noting("one")(error)

    @receiver.on_error
    def two(error: BaseException, event: Event[Any]) -> None:
        noting("two")(error, event)

    @receiver.on_error
    def three(error: BaseException, event: Event[Any], context: Context) -> None:
        noting("three")(error, event, context)

    @receiver.on_error
    async def async_one(error: BaseException) -> None:
        noting("async one")(error)

    @receiver.on_error
    async def async_two(error: BaseException, event: Event[Any]) -> None:
        noting("async two")(error, event)

    receiver.on_error(noting("any"))
    async with webhook_sender(receiver) as sender:
        sent = make_event(CommentReceived)
        (await sender.send(sent)).expect(500)
        await until(lambda: len(told) == 6)
    kinds = {name: [type(value) for value in values[:-1]] for name, values in told.items()}
    assert kinds["one"] == kinds["async one"] == [ExceptionGroup]
    assert kinds["two"] == kinds["async two"] == [ExceptionGroup, CommentReceived]
    assert kinds["three"] == kinds["any"] == [ExceptionGroup, CommentReceived, Context]
    in_threads = {n for n, values in told.items() if "hookonce-handler" in str(values[-1])}
    assert in_threads == {"one", "two", "three", "any"}


async def test_a_hook_that_raises_is_logged_and_changes_nothing(
    receiver: Receiver, webhook_sender: SenderFactory, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = ValueError("x")
    told: list[BaseException] = []
    bug, exit_attempt = RuntimeError("a bug in the hook"), SystemExit(1)

    @receiver.on_error
    async def broken(_: BaseException) -> None:
        raise bug

    @receiver.on_error
    def worse(_: BaseException) -> None:
        raise exit_attempt

    receiver.on_error(told.append)
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        await until(lambda: told)
        handlers.raises.clear()
        (await sender.send(event)).expect(200, "handled")
    failed = [r for r in caplog.records if r.getMessage() == "an on_error function failed"]
    causes = [r.exc_info[1] for r in failed if r.exc_info]
    assert causes[0] is bug
    assert causes[1] is not None
    assert causes[1].__cause__ is exit_attempt


async def test_the_answer_does_not_wait_for_a_hook(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = ValueError("x")
    gate, called = asyncio.Event(), list[str]()

    @receiver.on_error
    async def slow(_: BaseException) -> None:
        called.append("slow")
        await gate.wait()

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        await until(lambda: called)
        handlers.raises.clear()
        (await sender.send(event)).expect(200, "handled")
        gate.set()


async def test_a_failure_is_logged_with_its_traceback_and_without_hooks_too(
    receiver: Receiver, webhook_sender: SenderFactory, caplog: pytest.LogCaptureFixture
) -> None:
    error = Handlers(receiver, "a").raises["a"] = ValueError("the reason why")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500)
        await until(lambda: event.id in caplog.text)
    assert any(
        r.exc_info
        and isinstance(r.exc_info[1], ExceptionGroup)
        and error in r.exc_info[1].exceptions
        for r in caplog.records
    )


# Retry and Reject


async def test_a_retry_is_no_error_unless_it_was_asked_for_in_vain(
    durable: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(durable, "a", "b")
    told: list[ExceptionGroup[Exception]] = []
    durable.on_error(told.append)
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived)
        retry = handlers.raises["a"] = Retry(after=5)
        (await sender.send(event)).expect(503, "retry_requested")
        error = handlers.raises["b"] = ValueError("x")
        other = make_event(CommentReceived)
        (await sender.send(other)).expect(500, "handler_failed")
        await until(lambda: told)
        assert [group.exceptions for group in told] == [(error,)]
        (await sender.send(event, attempt=9)).expect(202, "exhausted")
        await until(lambda: len(told) == 2)
        assert told[1].exceptions == (retry,)


@pytest.mark.parametrize(
    ("first", "second", "status", "reason", "wait"),
    [
        (Retry(after=5), None, 503, "retry_requested", "5"),
        (Retry(after=5), Retry(after=90), 503, "retry_requested", "90"),
        (Retry(after=timedelta(minutes=2)), Retry(), 503, "retry_requested", "120"),
        (Retry(after=0.2), None, 503, "retry_requested", "1"),
        (Retry(), None, 503, "retry_requested", "30"),
        (Retry(after=5), ValueError("x"), 500, "handler_failed", None),
        (Reject("x"), None, 202, "rejected", None),
        (Reject("x"), Reject("y"), 202, "rejected", None),
        (Reject("x"), Retry(after=5), 500, "handler_failed", None),
        (Reject("x"), ValueError("y"), 500, "handler_failed", None),
    ],
)
async def test_what_two_handlers_ask_for_is_weighed(
    durable: Receiver,
    webhook_sender: SenderFactory,
    first: Exception,
    second: Exception | None,
    status: int,
    reason: str,
    wait: str | None,
) -> None:
    handlers = Handlers(durable, "a", "b")
    handlers.raises = {"a": first, "b": second}
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived)
        answer = (await sender.send(event)).expect(status, reason)
        assert answer.headers.get("retry-after") == wait
        letter = await durable.dead.show(event.id)
        assert (letter is not None) == (status == 202)


async def test_a_rejection_beside_a_failure_is_a_dead_letter_once_only_it_is_left(
    durable: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(durable, "a", "b", "c")
    handlers.raises = {"a": Reject("never"), "b": ValueError("not now")}
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        assert handlers.runs() == ["a", "b", "c"]
        handlers.raises["b"] = None
        (await sender.send(event)).expect(202, "rejected")
        assert handlers.runs() == ["a", "b"]
        letter = await durable.dead.show(event.id)
        assert letter is not None
        assert letter.reason is DeadReason.REJECTED
        assert letter.finished == {"b", "c"}
        assert letter.error == "a: Reject: never"
        assert letter.attempts == 2


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), timedelta(seconds=-1)])
async def test_a_retry_refuses_a_wait_that_is_none(after: float | timedelta) -> None:
    with pytest.raises(ValueError, match="finite number of seconds"):
        Retry(after=after)


# sync handlers


async def test_sync_handlers_run_in_threads_and_do_not_block_the_loop(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    gate, threads = threading.Event(), list[threading.Thread]()

    @receiver.on(CommentReceived)
    def blocking(_: CommentReceived) -> None:
        threads.append(threading.current_thread())
        assert gate.wait(20)

    @receiver.on(PostTargetFailed)
    async def quick(_: PostTargetFailed) -> None:
        threads.append(threading.current_thread())

    async with webhook_sender(receiver) as sender:
        slow = asyncio.create_task(sender.send(make_event(CommentReceived)))
        await until(lambda: threads)
        (await sender.send(make_event(PostTargetFailed))).expect(200, "handled")
        assert not slow.done()
        gate.set()
        (await slow).expect(200, "handled")
    assert threads[0].name.startswith("hookonce-handler")
    assert threads[1] is threading.main_thread()


async def test_no_more_sync_handlers_run_at_once_than_the_limit_allows(
    webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    receiver = Receiver(secrets=webhook_secret, store="memory://", limits=Limits(threads=2))
    gate, lock, running, most = threading.Event(), threading.Lock(), list[str](), list[int]()

    @receiver.on(CommentReceived)
    def blocking(event: CommentReceived) -> None:
        with lock:
            running.append(event.id)
            most.append(len(running))
        assert gate.wait(20)
        with lock:
            running.remove(event.id)

    async with webhook_sender(receiver) as sender:
        answers = [asyncio.create_task(sender.send(make_event(CommentReceived))) for _ in range(5)]
        await until(lambda: len(running) == 2)
        gate.set()
        for answer in answers:
            (await answer).expect(200, "handled")
    assert len(most) == 5
    assert max(most) == 2


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


async def test_context_variables_reach_sync_and_async_handlers(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    seen: list[str] = []

    @receiver.on(CommentReceived)
    def in_thread(_: CommentReceived) -> None:
        seen.append(f"sync {VARIABLE.get()}")
        VARIABLE.set("changed")

    @receiver.on(CommentReceived)
    async def on_loop(_: CommentReceived) -> None:
        seen.append(f"async {VARIABLE.get()}")

    async with webhook_sender(receiver) as sender:
        VARIABLE.set("request 1")
        (await sender.send(make_event(CommentReceived))).expect(200)
        assert VARIABLE.get() == "request 1"
    assert sorted(seen) == ["async request 1", "sync request 1"]


async def test_a_failure_of_a_sync_handler_is_the_exception_itself(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    error, told = ValueError("in a thread"), list[ExceptionGroup[Exception]]()
    receiver.on_error(told.append)

    @receiver.on(CommentReceived)
    def fail(_: CommentReceived) -> None:
        raise error

    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "handler_failed")
        await until(lambda: told)
    assert told[0].exceptions == (error,)


async def test_the_threads_of_sync_handlers_end_with_the_lifespan(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    threads: list[threading.Thread] = []

    @receiver.on(CommentReceived)
    def note(_: CommentReceived) -> None:
        threads.append(threading.current_thread())

    for _ in range(2):  # and a second lifespan begins anew
        async with webhook_sender(receiver) as sender:
            (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        await until(lambda: not threads[-1].is_alive())
    assert threads[0] is not threads[1]


async def _handle(ran: list[str], event: CommentReceived) -> None:
    ran.append(event.id)


class _Object:
    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    async def __call__(self, event: CommentReceived) -> None:
        self.ran.append(event.id)

    async def method(self, event: CommentReceived) -> None:
        self.ran.append(event.id)


@pytest.mark.parametrize(
    "made",
    [
        lambda ran: partial(_handle, ran),
        lambda ran: lambda event: _handle(ran, event),
        _Object,
        lambda ran: _Object(ran).method,
        lambda ran: partial(_Object(ran)),
        lambda ran: partial(_Object(ran).method),
    ],
    ids=["partial", "lambda", "object", "method", "partial object", "partial method"],
)
async def test_async_handlers_in_any_wrapping_are_awaited(
    receiver: Receiver, webhook_sender: SenderFactory, made: Callable[[list[str]], Any]
) -> None:
    ran: list[str] = []
    receiver.on(CommentReceived, name="handler")(made(ran))
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(200, "handled")
    assert ran == [event.id]


# time limits


async def test_an_async_handler_beyond_its_time_limit_is_cancelled_and_failed(
    webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    limits = Limits(handler_timeout_seconds=0.05)
    receiver = Receiver(secrets=webhook_secret, store="memory://", limits=limits)
    ends: list[str] = []
    told: list[ExceptionGroup[Exception]] = []
    receiver.on_error(told.append)

    @receiver.on(CommentReceived)
    async def endless(_: CommentReceived) -> None:
        if ends:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        assert ends == ["cancelled"]
        await until(lambda: told)
        [error] = told[0].exceptions
        assert isinstance(error, TimeoutError)
        assert "0.05 s" in str(error)
        (await sender.send(event)).expect(200, "handled")


async def test_a_sync_handler_beyond_its_time_limit_keeps_its_event_and_is_reported(
    tmp_path: Path,
    webhook_secret: str,
    webhook_sender: SenderFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(handler_timeout_seconds=0.05, lease_seconds=0.4, answer_seconds=0.2)
    store = SQLiteStore(tmp_path / "hooks.db")
    receiver = Receiver(secrets=webhook_secret, store=store, limits=limits)
    gate, ran = threading.Event(), list[str]()

    @receiver.on(CommentReceived)
    def endless(event: CommentReceived) -> None:
        ran.append(event.id)
        assert gate.wait(20)

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        try:
            (await sender.send(event)).expect(503, "still_running")
            await until(lambda: "more than 0.05 s" in caplog.text)
            [problem] = (await receiver.check()).problems
            assert "beyond their time limit: 1" in problem
            # Well past the lease, it still has its event for itself.
            for _ in range(4):
                (await sender.send(event)).expect(503, "in_flight")
        finally:
            gate.set()
        await until_async(lambda: is_done(sender, event))
        assert ran == [event.id]
        assert (await receiver.check()).ready


async def is_done(sender: TestSender, event: CommentReceived) -> bool:
    return (await sender.send(event)).reason == "duplicate"


async def test_a_sync_handler_that_waits_for_a_thread_does_not_run_out_of_time(
    webhook_secret: str, webhook_sender: SenderFactory, tmp_path: Path
) -> None:
    limits = Limits(handler_timeout_seconds=0.05, threads=1, answer_seconds=5)
    store = SQLiteStore(tmp_path / "hooks.db")
    receiver = Receiver(secrets=webhook_secret, store=store, limits=limits)
    gate, ran = threading.Event(), list[str]()

    @receiver.on(CommentReceived)
    def slow(event: CommentReceived) -> None:
        ran.append(event.id)
        assert gate.wait(20)

    async with webhook_sender(receiver) as sender:
        events = [make_event(CommentReceived) for _ in range(3)]
        sending = [asyncio.create_task(sender.send(event, attempt=9)) for event in events]
        await until_async(lambda: is_unready(receiver))
        gate.set()
        for answer in await asyncio.gather(*sending):
            answer.expect(200, "handled")
        assert sorted(ran) == sorted(event.id for event in events)


async def is_unready(receiver: Receiver) -> bool:
    return not (await receiver.check()).ready


class OnlyAwaitable:
    """Awaitable, but neither a coroutine nor a future."""

    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    def __await__(self) -> Iterator[None]:
        self.ran.append("awaited")
        yield


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_what_a_handler_returns_is_awaited_before_its_event_counts_as_handled(
    receiver: Receiver, webhook_sender: SenderFactory, *, is_async: bool
) -> None:
    ran = list[str]()

    async def forgot_to_await(_: CommentReceived) -> OnlyAwaitable:
        return OnlyAwaitable(ran)

    receiver.on(CommentReceived, name="handler")(
        forgot_to_await if is_async else lambda _: OnlyAwaitable(ran)
    )
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert ran == ["awaited"]


async def test_a_future_that_fails_is_a_failure_of_the_handler_that_returned_it(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    loop = asyncio.get_running_loop()

    def fail() -> None:
        raise ValueError("in the executor")

    receiver.on(CommentReceived, name="handler")(lambda _: loop.run_in_executor(None, fail))
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "handler_failed")


async def test_a_handler_that_returns_a_generator_has_run_nothing_and_fails(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    receiver.on(CommentReceived, name="handler")(lambda event: (part for part in [event]))
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "handler_failed")


async def test_a_plain_wrapper_around_an_async_handler_runs_it_once(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    ran = list[str]()

    async def handle(_: CommentReceived) -> None:
        ran.append("handler")

    @functools.wraps(handle)
    def wrapper(event: CommentReceived) -> Any:
        ran.append("wrapper")
        return handle(event)

    receiver.on(CommentReceived, name="handler")(wrapper)
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert ran == ["wrapper", "handler"]


async def test_what_a_plain_wrapper_has_only_begun_is_not_finished_by_a_shutdown(
    webhook_secret: str, webhook_sender: SenderFactory, tmp_path: Path
) -> None:
    receiver = Receiver(
        secrets=webhook_secret,
        store=SQLiteStore(tmp_path / "hooks.db"),
        limits=Limits(drain_seconds=0.05),
    )
    gate, ran = asyncio.Event(), list[str]()

    async def handle(_: CommentReceived) -> None:
        ran.append("begun")
        await gate.wait()
        ran.append("finished")

    def plain(event: CommentReceived) -> Any:
        return handle(event)

    receiver.on(CommentReceived, name="handler")(plain)
    event = make_event(CommentReceived)
    async with webhook_sender(receiver) as sender:
        first = asyncio.create_task(sender.send(event))
        await until(lambda: ran)
    (await first).expect(503, "shutting_down")
    gate.set()
    async with webhook_sender(receiver) as sender:
        (await sender.send(event)).expect(200, "handled")
    assert ran == ["begun", "begun", "finished"]


async def test_a_sync_handler_is_overdue_from_its_start_and_not_from_its_waiting(
    webhook_secret: str, webhook_sender: SenderFactory, tmp_path: Path
) -> None:
    limits = Limits(handler_timeout_seconds=0.3, threads=1, answer_seconds=0.1)
    store = SQLiteStore(tmp_path / "hooks.db")
    receiver = Receiver(secrets=webhook_secret, store=store, limits=limits)
    gates = {name: threading.Event() for name in ("first", "second")}
    ran = list[str]()

    @receiver.on(CommentReceived)
    def slow(event: CommentReceived) -> None:
        ran.append(event.data.text)
        assert gates[event.data.text].wait(20)

    async with webhook_sender(receiver) as sender:
        for text in gates:
            event = make_event(CommentReceived, data={"text": text})
            (await sender.send(event)).expect(503, "still_running")
        await until_async(lambda: is_unready(receiver))
        assert ran == ["first"]
        gates["first"].set()
        await until(lambda: ran == ["first", "second"])
        assert (await receiver.check()).ready
        await until_async(lambda: is_unready(receiver))
        gates["second"].set()


async def test_a_retry_without_delay_is_told_so(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    Handlers(receiver, "a").raises["a"] = Retry(after=0)
    async with webhook_sender(receiver) as sender:
        answer = (await sender.send(make_event(CommentReceived))).expect(503, "retry_requested")
    assert answer.headers["retry-after"] == "1"


async def test_a_timeout_inside_a_handler_is_its_own_error(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    own, told = TimeoutError("the bank did not answer"), list[ExceptionGroup[Exception]]()
    receiver.on_error(told.append)
    Handlers(receiver, "a").raises["a"] = own
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "handler_failed")
        await until(lambda: told)
    assert told[0].exceptions == (own,)


# what is raised is a failure, whatever it is


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even its text is broken")


RAISED = [
    SystemExit(3),
    asyncio.CancelledError(),
    StopIteration(7),
    StopAsyncIteration(),
    BaseException("bare"),
    ExceptionGroup("several", [ValueError("x"), Reject("y")]),
    UnprintableError(),
    ValueError("half an emoji: \ud83d"),
    ValueError("x" * 1_000_000),
    ValueError("nul \0 byte"),
]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "beside another"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_whatever_a_handler_raises_is_a_failure_that_is_retried(
    durable: Receiver,
    webhook_sender: SenderFactory,
    error: BaseException,
    beside: int,
    is_async: bool,
) -> None:
    others = Handlers(durable, *["other"][:beside])
    told: list[ExceptionGroup[Exception]] = []
    durable.on_error(told.append)
    errors = [error]

    def fail(_: CommentReceived) -> None:
        if errors:
            raise errors.pop()

    async def fail_async(_: CommentReceived) -> None:
        if errors:
            raise errors.pop()

    durable.on(CommentReceived, name="fail")(fail_async if is_async else fail)
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        await until(lambda: told, seconds=2, what="the hook was told")
        (await sender.send(event)).expect(200, "handled")
        assert others.runs() == ["other"][:beside]
    [group] = told
    [reported] = group.exceptions
    chain = (reported, reported.__cause__)
    assert any(type(link) is type(error) for link in chain if link is not None)


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_whatever_a_handler_raises_at_the_last_chance_makes_a_dead_letter(
    durable: Receiver, webhook_sender: SenderFactory, error: BaseException
) -> None:
    handlers = Handlers(durable, "a", "b")
    handlers.raises["a"] = error
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event, attempt=9)).expect(202, "exhausted")
        letter = await durable.dead.show(event.id)
        assert letter is not None
        assert letter.reason is DeadReason.EXHAUSTED
        assert letter.error.startswith("a: ")
        assert len(letter.error) < 10_000
        assert letter.finished == {"b"}


async def test_one_exception_raised_twice_carries_one_note_of_each_handler(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    error, told = ValueError("always the same object"), list[ExceptionGroup[Exception]]()
    receiver.on_error(told.append)
    Handlers(receiver, "a").raises["a"] = error
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        for _ in range(3):
            (await sender.send(event)).expect(500, "handler_failed")
        await until(lambda: len(told) == 3)
    assert error.__notes__ == ["raised by the handler 'a'"]


# test events


async def test_a_test_event_reaches_only_handlers_that_named_it(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    ran: list[str] = []

    def note(name: str, _: Event[Any]) -> None:
        ran.append(name)

    def add(name: str) -> Callable[..., Any]:
        return partial(note, name)

    receiver.on("*", name="every")(add("every"))
    receiver.on("*.*", name="two")(add("two"))
    receiver.on_unknown(name="unknown")(add("unknown"))
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(WebhookTest))).expect(200, "no_handler")
        assert ran == []
        receiver.on(WebhookTest, name="by class")(add("by class"))
        receiver.on("webhook.test", name="by name")(add("by name"))
        receiver.on("*", "webhook.test", name="both")(add("both"))
        (await sender.send(make_event(WebhookTest))).expect(200, "handled")
        assert sorted(ran) == ["both", "by class", "by name"]
        ran.clear()
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        assert sorted(ran) == ["both", "every", "two"]


# the context


async def test_a_handler_is_told_about_its_attempt(webhook_secret: str, tmp_path: Path) -> None:
    now = 1_800_000_000.0
    receiver = Receiver(
        secrets=webhook_secret,
        store=SQLiteStore(tmp_path / "hooks.db"),
        endpoint="bakery",
        clock=lambda: now,
        tolerance=10**10,
    )
    contexts: list[Context] = []

    @receiver.on(CommentReceived, name="note")
    async def note(_: CommentReceived, context: Context) -> None:
        contexts.append(context)
        raise ValueError("again")

    async with TestSender(receiver, secrets=webhook_secret) as sender:
        event = make_event(CommentReceived)
        await sender.send(event, attempt=1)
        await sender.send(event, attempt=4)
        await sender.send(event, attempt=9)
    assert [c.attempt for c in contexts] == [1, 2, 3]
    assert [c.delivery_attempt for c in contexts] == [1, 4, 9]
    assert [c.last_chance for c in contexts] == [False, False, True]
    assert {c.is_replay for c in contexts} == {False}
    first = contexts[0]
    assert (first.key, first.endpoint) == (f"bakery:{event.id}", "bakery")
    assert (first.event_id, first.event_type) == (event.id, "comment.received")
    assert (first.handler, first.received_at) == ("note", now)
    assert first.body == event.model_dump_json(exclude_unset=True).encode()
    assert repr(first.body) not in repr(first)


async def test_the_last_chance_comes_with_the_eighth_own_attempt_too(
    durable: Receiver, webhook_sender: SenderFactory
) -> None:
    chances: list[tuple[int, bool]] = []

    @durable.on(CommentReceived)
    async def note(_: CommentReceived, context: Context) -> None:
        chances.append((context.attempt, context.last_chance))
        raise ValueError("again")

    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived)
        for _ in range(8):
            await sender.send(event)
    assert chances == [(n, n == 8) for n in range(1, 9)]


async def test_idempotency_keys_are_the_same_at_every_attempt_and_differ_by_handler_and_event(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    keys: list[str] = []

    def add(name: str) -> None:
        @receiver.on(CommentReceived, name=name)
        async def note(_: CommentReceived, context: Context) -> None:
            keys.append(context.idempotency_key)
            raise ValueError("again")

    add("a")
    add("b")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        await sender.send(event)
        await sender.send(event)
        assert len(keys) == 4
        assert len(set(keys)) == 2
        await sender.send(make_event(CommentReceived))
        assert len(set(keys)) == 4


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "12345", "٩", "9 9"])
async def test_an_unreadable_attempt_hint_is_none(
    receiver: Receiver, webhook_secret: str, webhook_sender: SenderFactory, value: str
) -> None:
    hints: list[int | None] = []

    @receiver.on(CommentReceived)
    async def note(_: CommentReceived, context: Context) -> None:
        hints.append(context.delivery_attempt)

    async with webhook_sender(receiver) as sender:
        request = signed_request(make_event(CommentReceived), webhook_secret)
        headers = {**request.headers, "example-delivery-attempt": value}
        (await sender.post(SignedRequest(request.body, headers))).expect(200, "handled")
    assert hints == [None]


async def test_only_the_named_service_gives_hints_where_it_is_named(
    webhook_secret: str, tmp_path: Path
) -> None:
    receiver = Receiver(
        secrets=webhook_secret, store=SQLiteStore(tmp_path / "hooks.db"), service="Postline"
    )
    hints: list[int | None] = []

    @receiver.on(CommentReceived)
    async def note(_: CommentReceived, context: Context) -> None:
        hints.append(context.delivery_attempt)

    for service in ("postline", "somebody-else"):
        async with TestSender(receiver, secrets=webhook_secret, service=service) as sender:
            (await sender.send(make_event(CommentReceived), attempt=3)).expect(200)
    assert hints == [3, None]


async def test_handlers_get_the_event_in_its_own_class(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    got: list[Event[Any]] = []

    @receiver.on("*")
    async def note(event: Event[Any]) -> None:
        got.append(event)

    async with webhook_sender(receiver) as sender:
        events: list[Event[Any]] = [
            make_event(CommentReceived),
            make_event(PostTargetFailed),
            make_event("new.type"),
        ]
        for event in events:
            (await sender.send(event)).expect(200, "handled")
    assert got == events
    assert [type(event) for event in got] == [type(event) for event in events]


async def test_what_a_handler_returns_is_ignored(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    @receiver.on(CommentReceived)
    async def one(_: CommentReceived) -> int:
        return 410

    @receiver.on(CommentReceived)
    def two(_: CommentReceived) -> bool:
        return False

    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")


async def test_a_successful_event_is_logged_with_what_became_of_it(
    receiver: Receiver, webhook_sender: SenderFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hookonce")
    Handlers(receiver, "a")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event, attempt=2)).expect(200)
    [record] = [r for r in caplog.records if r.name == "hookonce"]
    assert record.getMessage() == f"comment.received {event.id} at default: 200 handled"
    fields = vars(record)
    assert (fields["event_id"], fields["event_type"]) == (event.id, "comment.received")
    assert (fields["status"], fields["reason"]) == (200, "handled")
    assert fields["delivery_attempt"] == 2
    assert fields["milliseconds"] >= 0
