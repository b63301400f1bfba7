"""Instrumented handlers log every call, and fail as the plan says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hookonce import Context, Inbox, Limits, Receiver, Reject, Retry
from hookonce.events import CommentReceived, Event
from hookonce.simulation import virtual_loop
from hookonce.simulation.calls import CallLog, CallOutcome, HandlerCall
from hookonce.simulation.faults import Fault, FaultPlan, Injection
from hookonce.simulation.handlers import instrumented
from hookonce.simulation.virtual_loop import VirtualLoop, run_virtually
from hookonce.simulation.watched_store import watched
from hookonce.stores import open_store

from .delivering import SECRET, Delivering, comment, delivering

NAME = "handler"
HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted(FaultPlan):
    """Injects the faults of the script, one per call, and then none."""

    script: tuple[Injection | None, ...] = ()
    seed: int = 0

    def injection(self, event_id: str, handler: str, number: int) -> Injection | None:  # noqa: ARG002 - the base method has the same parameters
        return self.script[number - 1] if number <= len(self.script) else None


def calls_of(log: CallLog, event_id: str, handler: str) -> list[HandlerCall]:
    """Return the ended calls of a handler for an event."""
    return [call for call in log.calls if (call.event_id, call.handler) == (event_id, handler)]


def has_effect(call: HandlerCall) -> bool:
    """Return whether the handler's own code ran to its end, even if the call failed."""
    if call.failure_injected:
        return call.fault is Fault.FAILS_AFTER
    return call.outcome is CallOutcome.SUCCEEDED


def receiving(**settings: Any) -> Receiver:
    return Receiver(secrets=SECRET, store="memory://", **settings)


def simulate(
    receiver: Receiver,
    main: Callable[[Delivering, VirtualLoop], Coroutine[Any, Any, None]],
    *script: Injection | None,
    plan: FaultPlan | None = None,
    store: str = "memory://",
    inbox: Inbox | None = None,
) -> CallLog:
    """Deliver to a copy of the receiver with instrumented handlers, and return the log."""
    log = CallLog()

    async def simulated(loop: VirtualLoop) -> None:
        chosen = Scripted(script=script) if plan is None else plan
        copied = receiver.copy(
            store=watched(open_store(store, clock=loop.unix_clock), loop),
            inbox=inbox,
            clock=loop.unix_clock,
            router=instrumented(receiver, log=log, plan=chosen, loop=loop),
        )
        async with delivering(copied, loop) as sender:
            await main(sender, loop)

    run_virtually(simulated)
    return log


def only(log: CallLog) -> HandlerCall:
    [call] = log.calls
    return call


async def send_once(sender: Delivering, _: VirtualLoop) -> None:
    await sender.send(comment())


class TestInjection:
    def test_a_slow_handler_gets_503_and_a_later_delivery_gets_200_without_a_second_call(
        self,
    ) -> None:
        ran: list[str] = []
        receiver = receiving()

        @receiver.on(CommentReceived, name=NAME)
        async def handler(event: CommentReceived) -> None:
            ran.append(event.id)

        async def main(sender: Delivering, loop: VirtualLoop) -> None:
            event, begun = comment(), loop.time()
            (await sender.send(event)).expect(503, "still_running")
            assert 8 <= loop.time() - begun < 9
            await asyncio.sleep(30)
            (await sender.send(event)).expect(200, "duplicate")

        call = only(simulate(receiver, main, Injection(Fault.SLOW, 20)))
        assert ran == [call.event_id]
        assert call.outcome is CallOutcome.SUCCEEDED
        assert call.fault is Fault.SLOW
        assert not call.failure_injected
        assert 20 <= call.ended_unix - call.started_unix < 21

    def test_a_handler_slower_than_the_lease_keeps_its_event(self) -> None:
        receiver = receiving()
        receiver.on(CommentReceived, name=NAME)(lambda _: None)

        async def main(sender: Delivering, _: VirtualLoop) -> None:
            event = comment()
            (await sender.send(event)).expect(503, "still_running")
            await asyncio.sleep(25)  # longer than the first lease
            (await sender.send(event)).expect(503, "in_flight")
            await asyncio.sleep(10)
            (await sender.send(event)).expect(200, "duplicate")

        only(simulate(receiver, main, Injection(Fault.SLOW, 44)))

    def test_a_late_failure_has_no_effect_and_a_delivery_in_the_meantime_gets_503(self) -> None:
        ran: list[str] = []
        receiver = receiving()
        receiver.on(CommentReceived, name=NAME)(lambda event: ran.append(event.id))
        event = comment()

        async def main(sender: Delivering, _: VirtualLoop) -> None:
            (await sender.send(event)).expect(503, "still_running")
            (await sender.send(event)).expect(503, "in_flight")
            await asyncio.sleep(10)
            assert not ran
            (await sender.send(event)).expect(200, "handled")

        log = simulate(receiver, main, Injection(Fault.FAILS_LATE, 20))
        failed, succeeded = calls_of(log, event.id, NAME)
        assert (failed.outcome, failed.fault) == (CallOutcome.FAILED, Fault.FAILS_LATE)
        assert not has_effect(failed)
        assert has_effect(succeeded)

    def test_a_failure_before_the_code_has_no_effect_and_a_later_call_succeeds(self) -> None:
        ran: list[str] = []
        receiver = receiving()
        receiver.on(CommentReceived, name=NAME)(lambda event: ran.append(event.id))
        event = comment()

        async def main(sender: Delivering, _: VirtualLoop) -> None:
            (await sender.send(event)).expect(500, "handler_failed")
            assert not ran
            (await sender.send(event)).expect(200, "handled")

        log = simulate(receiver, main, Injection(Fault.FAILS_BEFORE))
        failed, succeeded = calls_of(log, event.id, NAME)
        assert (failed.number, failed.outcome, failed.fault) == (
            1,
            CallOutcome.FAILED,
            Fault.FAILS_BEFORE,
        )
        assert (failed.failure_injected, has_effect(failed)) == (True, False)
        assert (succeeded.number, succeeded.outcome) == (2, CallOutcome.SUCCEEDED)
        assert (succeeded.fault, succeeded.failure_injected) == (None, False)
        assert has_effect(succeeded)
        assert log.successes() == {(event.id, NAME): 1}
        assert ran == [event.id]

    def test_a_failure_after_the_code_has_an_effect_and_the_handler_is_called_again(self) -> None:
        ran: list[str] = []
        receiver = receiving()
        receiver.on(CommentReceived, name=NAME)(lambda event: ran.append(event.id))
        event = comment()

        async def main(sender: Delivering, _: VirtualLoop) -> None:
            (await sender.send(event)).expect(500, "handler_failed")
            (await sender.send(event)).expect(200, "handled")

        log = simulate(receiver, main, Injection(Fault.FAILS_AFTER))
        assert ran == [event.id, event.id]
        failed, succeeded = calls_of(log, event.id, NAME)
        assert (failed.outcome, failed.failure_injected) == (CallOutcome.FAILED, True)
        assert has_effect(failed)
        assert has_effect(succeeded)
        assert log.successes() == {(event.id, NAME): 1}

    def test_an_injected_retry_asks_for_its_wait(self) -> None:
        ran: list[str] = []
        receiver = receiving()
        receiver.on(CommentReceived, name=NAME)(lambda event: ran.append(event.id))

        async def main(sender: Delivering, _: VirtualLoop) -> None:
            answer = (await sender.send(comment())).expect(503, "retry_requested")
            assert answer.headers["retry-after"] == "77"

        call = only(simulate(receiver, main, Injection(Fault.ASKS_RETRY, 77)))
        assert (call.outcome, call.failure_injected) == (CallOutcome.RETRY_REQUESTED, True)
        assert not has_effect(call)
        assert not ran

    def test_a_fault_of_one_handler_does_not_affect_another(self) -> None:
        @dataclass(frozen=True, slots=True, kw_only=True)
        class OnlyFirst(FaultPlan):
            seed: int = 0

            def injection(self, event_id: str, handler: str, number: int) -> Injection | None:  # noqa: ARG002 - the base method has the same parameters
                is_due = handler == "first" and number == 1
                return Injection(Fault.FAILS_BEFORE) if is_due else None

        receiver = receiving()
        receiver.on(CommentReceived, name="first")(lambda _: None)
        receiver.on(CommentReceived, name="second")(lambda _: None)
        event = comment()

        async def main(sender: Delivering, _: VirtualLoop) -> None:
            (await sender.send(event)).expect(500)
            (await sender.send(event)).expect(200)

        log = simulate(receiver, main, plan=OnlyFirst())
        assert len(calls_of(log, event.id, "first")) == 2
        assert len(calls_of(log, event.id, "second")) == 1


class TestOwnCode:
    @pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
    @pytest.mark.parametrize("is_long", [True, False], ids=["long", "short"])
    def test_the_answer_budget_is_not_skipped_while_a_handler_runs(
        self, is_async: bool, is_long: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if is_long:
            monkeypatch.setattr(virtual_loop, "_PATIENCE_SECONDS", 0.05)
        receiver, threads = receiving(), []

        def work(_: Event[Any]) -> None:
            threads.append(threading.current_thread())
            threading.Event().wait(0.1)

        async def work_outside(event: Event[Any]) -> None:
            await asyncio.to_thread(work, event)

        receiver.on(CommentReceived, name=NAME)(work_outside if is_async else work)

        async def main(sender: Delivering, _: VirtualLoop) -> None:
            (await sender.send(comment())).expect(200, "handled")

        call = only(simulate(receiver, main))
        seconds = call.ended_unix - call.started_unix
        assert seconds < 8
        if is_long:
            assert seconds >= 0.09  # 0.1 s, less the rounding error of a Unix time
        elif not is_async:
            assert seconds == 0
        assert threads != [threading.main_thread()]

    @pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (ValueError("own"), CallOutcome.FAILED),
            (SystemExit(1), CallOutcome.FAILED),
            (asyncio.CancelledError(), CallOutcome.FAILED),
            (StopIteration(), CallOutcome.FAILED),
            (Reject("own"), CallOutcome.REJECTED),
            (Retry(after=5), CallOutcome.RETRY_REQUESTED),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
    )
    def test_the_log_separates_own_failures_from_injected_failures(
        self, error: BaseException, outcome: CallOutcome, is_async: bool
    ) -> None:
        receiver = receiving()

        def fail(_: CommentReceived) -> None:
            raise error

        async def fail_async(event: CommentReceived) -> None:
            fail(event)

        receiver.on(CommentReceived, name=NAME)(fail_async if is_async else fail)
        call = only(simulate(receiver, send_once))
        assert call.outcome is outcome
        assert not call.failure_injected
        assert not has_effect(call)

    def test_an_own_failure_is_logged_even_if_a_fault_was_planned_after_it(
        self,
    ) -> None:
        receiver = receiving()

        @receiver.on(CommentReceived, name=NAME)
        async def handler(_: CommentReceived) -> None:
            raise ValueError("own")

        call = only(simulate(receiver, send_once, Injection(Fault.FAILS_AFTER)))
        assert not call.failure_injected
        assert not has_effect(call)

    def test_a_returned_generator_is_not_a_success(self) -> None:
        receiver = receiving()
        receiver.on(CommentReceived, name=NAME)(lambda event: (part for part in event.id))

        async def main(sender: Delivering, _: VirtualLoop) -> None:
            (await sender.send(comment())).expect(500, "handler_failed")

        assert only(simulate(receiver, main)).outcome is CallOutcome.FAILED

    def test_an_awaitable_that_a_sync_handler_returns_is_awaited(self) -> None:
        ended: list[str] = []

        async def effect(event_id: str) -> None:
            await asyncio.sleep(0)
            ended.append(event_id)

        receiver = receiving()
        receiver.on(CommentReceived, name=NAME)(lambda event: effect(event.id))
        assert [only(simulate(receiver, send_once)).event_id] == ended

    def test_a_call_that_a_shutdown_cancels_is_neither_success_nor_failure(self) -> None:
        receiver = receiving()
        receiver.on(CommentReceived, name=NAME)(lambda _: None)
        # The lifespan ends after 8 s and waits 20 s for handlers, and then cancels the sleep of
        # 44 s.
        log = simulate(receiver, send_once, Injection(Fault.SLOW, 44))
        assert only(log).outcome is CallOutcome.CANCELLED
        assert log.in_progress == 0

    def test_an_event_is_released_only_after_the_thread_of_its_handler_has_ended(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(virtual_loop, "_PATIENCE_SECONDS", 0.05)
        ended: list[str] = []
        receiver = receiving(limits=Limits(drain_seconds=0.05))

        @receiver.on(CommentReceived, name=NAME)
        def handler(event: CommentReceived) -> None:
            threading.Event().wait(0.3)
            ended.append(event.id)

        async def main(sender: Delivering, loop: VirtualLoop) -> None:
            sending = loop.create_task(sender.send(comment()))
            await asyncio.wait({sending}, timeout=0.01)

        call = only(simulate(receiver, main))
        assert call.outcome is CallOutcome.CANCELLED
        assert ended == [call.event_id]
        assert (
            call.ended_unix - call.started_unix >= 0.29
        )  # 0.3 s, less the rounding error of a Unix time

    def test_a_handler_gets_its_context(self) -> None:
        contexts: list[Context] = []
        receiver = receiving()

        @receiver.on(CommentReceived, name=NAME)
        def handler(_: CommentReceived, context: Context) -> None:
            contexts.append(context)

        call = only(simulate(receiver, send_once))
        assert [(c.handler, c.event_id) for c in contexts] == [(NAME, call.event_id)]

    @pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
    def test_error_hooks_get_injected_failures_and_are_waited_for(self, is_async: bool) -> None:
        errors: list[BaseException] = []
        receiver = receiving()
        receiver.on(CommentReceived, name=NAME)(lambda _: None)

        def hook(error: ExceptionGroup[Exception]) -> None:
            if threading.current_thread() is not threading.main_thread():
                errors.extend(error.exceptions)

        async def hook_async(error: ExceptionGroup[Exception]) -> None:
            # If the loop skipped time here, the time limit would end before the thread.
            async with asyncio.timeout(60):
                await asyncio.to_thread(threading.Event().wait, 0.1)
            errors.extend(error.exceptions)

        receiver.on_error(hook_async if is_async else hook)
        simulate(receiver, send_once, Injection(Fault.FAILS_BEFORE))
        [error] = errors
        assert "injected" in str(error)

    def test_the_original_receiver_does_not_change(self) -> None:
        receiver = receiving()

        @receiver.on(CommentReceived, name=NAME)
        def handler(_: CommentReceived) -> None: ...

        receiver.on_error(lambda _: None)
        before = receiver.handlers, receiver.error_hooks
        simulate(receiver, send_once)
        assert (receiver.handlers, receiver.error_hooks) == before
        assert receiver.handlers[0].function is handler


class TestCallLog:
    def test_a_call_is_in_progress_until_it_is_recorded(self) -> None:
        counts: list[int] = []
        receiver = receiving()
        logs: list[CallLog] = []

        async def handler(_: CommentReceived) -> None:
            [log] = logs
            counts.append(log.in_progress)

        receiver.on(CommentReceived, name=NAME)(handler)

        async def main(loop: VirtualLoop) -> None:
            log = CallLog()
            logs.append(log)
            router = instrumented(receiver, log=log, plan=Scripted(), loop=loop)
            async with delivering(receiver.copy(clock=loop.unix_clock, router=router), loop) as to:
                await to.send(comment())
            counts.append(log.in_progress)

        run_virtually(main)
        assert counts == [1, 0]

    def test_successes_are_counted_by_event_and_handler(self) -> None:
        log = CallLog()
        for event_id, handler, outcome in [
            ("evt_1", "a", CallOutcome.FAILED),
            ("evt_1", "a", CallOutcome.SUCCEEDED),
            ("evt_1", "b", CallOutcome.SUCCEEDED),
            ("evt_2", "a", CallOutcome.SUCCEEDED),
            ("evt_2", "a", CallOutcome.SUCCEEDED),
            ("evt_3", "a", CallOutcome.REJECTED),
        ]:
            number = log.start(event_id, handler)
            log.record(
                HandlerCall(event_id, handler, number, 0, 0, outcome, None, failure_injected=False)
            )
        assert log.successes() == {("evt_1", "a"): 1, ("evt_1", "b"): 1, ("evt_2", "a"): 2}
        assert log.successes()["evt_3", "a"] == 0
        assert [call.number for call in calls_of(log, "evt_2", "a")] == [1, 2]
        assert calls_of(log, "evt_9", "a") == []


@pytest.mark.parametrize("with_inbox", [True, False], ids=["inbox", "inline"])
def test_with_all_faults_every_handler_succeeds_once_with_every_event(
    tmp_path: Path, with_inbox: bool
) -> None:
    receiver = receiving()
    receiver.on(CommentReceived, name="sync")(lambda _: None)

    async def handler(_: CommentReceived) -> None: ...

    receiver.on(CommentReceived, name="async")(handler)
    events = [comment() for _ in range(40)]

    async def deliver(sender: Delivering, event: CommentReceived) -> None:
        for wait in (30, 120, 600, 1800, 3600, 10800, 21600, 43200):
            if 200 <= (await sender.send(event)).status < 300:
                return
            await asyncio.sleep(wait)

    async def main(sender: Delivering, _: VirtualLoop) -> None:
        await asyncio.gather(*(deliver(sender, event) for event in events))
        if with_inbox:
            await asyncio.sleep(2 * HOUR)

    log = simulate(
        receiver,
        main,
        plan=FaultPlan(seed=1, rate=0.6),
        store=f"sqlite:///{tmp_path}/hooks.db",
        inbox=Inbox() if with_inbox else None,
    )
    names = ("sync", "async")
    assert log.successes() == {(event.id, name): 1 for event in events for name in names}
    assert {call.fault for call in log.calls if call.failure_injected} == {
        Fault.FAILS_BEFORE,
        Fault.FAILS_AFTER,
        Fault.FAILS_LATE,
        Fault.ASKS_RETRY,
    }


def test_no_repr_holds_a_body_or_a_secret() -> None:
    receiver = receiving()
    receiver.on(CommentReceived, name=NAME)(lambda _: None)
    log = simulate(receiver, send_once, Injection(Fault.FAILS_BEFORE))
    shown = repr(log) + repr(log.calls)
    assert only(log).event_id in shown
    assert SECRET not in shown
    assert "data" not in shown
