"""The times at which a receiver answers, repeats calls and extends leases, in virtual time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from support.deliveries import SECRET, answer_of, comment, deliver, long_ago
from support.handlers import Handlers, Waiting, counting, on
from support.stores import FaultyStore

from hookonce import Limits, Outcome, Receiver, Retry
from hookonce.events import CommentReceived
from hookonce.simulation.virtual_loop import VirtualLoop
from hookonce.stores.memory import MemoryStore
from hookonce.stores.values import Delivery, EnqueueResult, KeyLock, delivery_key, new_token
from hookonce.testing import signed_request

T = TypeVar("T")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "anyio_backend", [("asyncio", {"loop_factory": VirtualLoop})], ids=[""]
    ),
]

TICK = 0.06
"""How late a limit is noticed, at the most: the timer of attempts looks every 0.05 s."""

FOREVER = 1e9


def loop() -> VirtualLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running


class Timed(FaultyStore):
    """Notes when each call begins, in seconds since the store was made."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(clock=loop().unix_clock))
        self.began = loop().time()
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.times[name].append(round(loop().time() - self.began, 2))
        return await super().call(name, call)


class Keeping(Timed):
    """A `Timed` store that keeps bodies."""

    keeps_bodies = True

    async def keep_in_flight(self, *_: Any, **__: Any) -> None:
        async def hang() -> None:
            await asyncio.sleep(FOREVER)

        await self.call("keep_in_flight", hang)


def receiver_on(store: Timed, **limits: Any) -> Receiver:
    return Receiver(secrets=SECRET, store=store, limits=Limits(**limits), clock=loop().unix_clock)


async def timed(answer: Coroutine[Any, Any, Outcome]) -> tuple[int, str, float]:
    """Return the status and reason of an answer, and the seconds until the answer."""
    began = loop().time()
    outcome = await answer
    return *answer_of(outcome), loop().time() - began


def is_about(seconds: float, least: float, within: float = TICK) -> bool:
    return least - 0.01 <= seconds <= least + within


class TestAnswers:
    @pytest.mark.parametrize(
        ("answer_seconds", "age", "seconds"),
        [(8.0, 0.0, 3.0), (2.0, 0.0, 3.0), (8.0, 6.0, 2.0), (8.0, 8.0, 0.95), (8.0, 60.0, 0.95)],
    )
    async def test_a_claim_that_hangs_is_given_up_within_the_answer_budget(
        self, caplog: pytest.LogCaptureFixture, answer_seconds: float, age: float, seconds: float
    ) -> None:
        """A claim may take the rest of the budget; the claim of a late request gets a short try."""
        store = Timed()
        receiver, event = receiver_on(store, answer_seconds=answer_seconds), comment()
        counting(receiver)
        gate = store.hang("claim")
        request = signed_request(event, SECRET)
        async with receiver:
            began = loop().time() - age
            status, reason, took = await timed(
                receiver.handle(request.body, request.headers, started=began)
            )
            gate.set()
        assert (status, reason) == (503, "store_unavailable")
        assert is_about(took, seconds)
        assert (
            f"cannot claim default:{event.id}: the store did not answer within {seconds:g} s"
            in caplog.text
        )

    async def test_a_claim_of_an_event_in_flight_elsewhere_is_repeated_at_growing_pauses(
        self,
    ) -> None:
        store = Timed()
        receiver, event = receiver_on(store, answer_seconds=2.0), comment()
        ran = counting(receiver)
        await store.inner.claim(delivery_key("default", event.id), new_token(), 30.0)
        async with receiver:
            status, reason, took = await timed(deliver(receiver, event))
        assert (status, reason, ran) == (503, "in_flight", [])
        assert is_about(took, 2.0)
        assert store.times["claim"] == [0.0, 0.05, 0.15, 0.35, 0.75, 1.25, 1.75, 2.0]

    async def test_the_retry_after_of_an_event_in_flight_elsewhere_is_the_rest_of_its_lease(
        self,
    ) -> None:
        store = Timed()
        receiver, event = receiver_on(store, answer_seconds=2.0), comment()
        counting(receiver)
        await store.inner.claim(delivery_key("default", event.id), new_token(), 22.0)
        async with receiver:
            outcome = await deliver(receiver, event)
        assert outcome.headers == {"retry-after": "20"}

    async def test_a_delivery_whose_handler_still_runs_is_answered_at_the_end_of_the_budget(
        self,
    ) -> None:
        receiver = receiver_on(Timed(), answer_seconds=3.0)
        waiting = Waiting(receiver)
        async with receiver:
            status, reason, took = await timed(deliver(receiver, comment()))
            waiting.gate.set()
        assert (status, reason) == (503, "still_running")
        assert is_about(took, 3.0)

    async def test_a_copy_waits_for_the_running_attempt_as_long_as_its_own_budget(self) -> None:
        store = Timed()
        receiver, event = receiver_on(store, answer_seconds=3.5, lease_seconds=12.0), comment()
        waiting = Waiting(receiver)
        async with receiver:
            first = asyncio.create_task(deliver(receiver, event))
            await asyncio.sleep(1)
            began = loop().time()
            copy = await deliver(receiver, event, 2)
            assert answer_of(copy) == (503, "in_flight")
            assert is_about(loop().time() - began, 3.5)
            # The lease was extended half a second ago: 11.5 s are left, which is rounded up.
            assert copy.headers["retry-after"] == "12"
            assert answer_of(await first) == (503, "still_running")
            second = asyncio.create_task(deliver(receiver, event, 3))
            await asyncio.sleep(0.5)
            waiting.gate.set()
            assert answer_of(await second) == (200, "duplicate")
        assert len(store.times["claim"]) == 1

    @pytest.mark.parametrize(("age", "seconds"), [(0.0, 3.0), (6.0, 2.0), (8.0, 0.95)])
    async def test_a_delivery_that_cannot_be_stored_in_time_is_left_to_a_retry(
        self, caplog: pytest.LogCaptureFixture, age: float, seconds: float
    ) -> None:
        class Hanging(Timed):
            async def enqueue(self, delivery: Delivery, token: object) -> EnqueueResult:  # noqa: ARG002 - the signature comes from the contract
                await asyncio.sleep(FOREVER)
                raise AssertionError

        receiver, event = receiver_on(store := Hanging()), comment()
        counting(receiver)

        class Intake:
            async def enqueue(self, delivery: Delivery, key_lock: object = None) -> EnqueueResult:  # noqa: ARG002 - the contract has this parameter
                return await store.enqueue(delivery, None)

        receiver._wiring.pipeline._intake = Intake()  # makes the store an inbox store
        request = signed_request(event, SECRET)
        async with receiver:
            status, reason, took = await timed(
                receiver.handle(request.body, request.headers, started=loop().time() - age)
            )
        assert (status, reason) == (503, "store_unavailable")
        assert is_about(took, seconds)
        assert (
            f"cannot store default:{event.id}: the store did not answer within {seconds:g} s"
            in caplog.text
        )

    async def test_a_hanging_store_does_not_delay_the_answer_to_the_last_delivery_in_flight(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        receiver, event = receiver_on(store := Keeping()), comment()
        counting(receiver)
        await store.inner.claim(delivery_key("default", event.id), new_token(), 30.0)
        async with receiver:
            status, reason, took = await timed(deliver(receiver, event, 9))
        assert (status, reason) == (503, "in_flight")
        assert is_about(took, 8.95)
        assert "keep" not in store.times
        assert (
            f"could not keep the last delivery of default:{event.id}: the store did not answer"
            " within 0.95 s" in caplog.text
        )

    async def test_an_unreadable_delivery_is_answered_within_the_budget_and_kept(self) -> None:
        receiver = receiver_on(store := Keeping(), answer_seconds=1.0)
        request = signed_request(b"no event", SECRET, message_id="evt_1", attempt=9)
        await store.inner.claim(delivery_key("default", "evt_1"), new_token(), 30.0)
        async with receiver:
            status, reason, took = await timed(receiver.handle(request.body, request.headers))
        assert (status, reason) == (503, "in_flight")
        assert is_about(took, 4.0)  # the hanging call fails after store_seconds
        assert len(store.times["keep_in_flight"]) == 1


class TestShortLimits:
    """The timer of attempts has a period of a tenth of the shortest limit."""

    SECONDS = 0.21  # the timer's longest period would be too long: 0.25

    async def test_a_short_answer_budget_shortens_the_timers_period(self) -> None:
        receiver = receiver_on(Timed(), answer_seconds=self.SECONDS)
        waiting = Waiting(receiver)
        async with receiver:
            status, reason, took = await timed(deliver(receiver, comment()))
            waiting.gate.set()
        assert (status, reason) == (503, "still_running")
        assert is_about(took, self.SECONDS, 0.03)

    async def test_a_short_handler_time_limit_shortens_the_timers_period(self) -> None:
        receiver = receiver_on(Timed(), handler_timeout_seconds=self.SECONDS)
        Waiting(receiver)
        async with receiver:
            status, reason, took = await timed(deliver(receiver, comment()))
        assert (status, reason) == (500, "handler_failed")
        assert is_about(took, self.SECONDS, 0.03)

    async def test_a_short_store_time_limit_shortens_the_timers_period(self) -> None:
        receiver = receiver_on(store := Timed(), store_seconds=self.SECONDS)
        counting(receiver)
        gate = store.hang("claim")
        async with receiver:
            status, reason, took = await timed(deliver(receiver, comment()))
            gate.set()
        assert (status, reason) == (503, "store_unavailable")
        assert is_about(took, self.SECONDS, 0.03)

    async def test_a_short_lease_shortens_the_timers_period(self) -> None:
        receiver = receiver_on(store := Timed(), lease_seconds=3 * self.SECONDS)
        waiting = Waiting(receiver)
        async with receiver:
            running = asyncio.create_task(deliver(receiver, comment()))
            await asyncio.sleep(0.3)
            waiting.gate.set()
            await running
        [extended] = store.times["extend"]
        assert is_about(extended, self.SECONDS, 0.03)


class TestLeases:
    async def test_a_lease_is_extended_at_each_third_of_it(self) -> None:
        receiver = receiver_on(store := Timed(), lease_seconds=30.0)
        waiting = Waiting(receiver)
        async with receiver:
            await deliver(receiver, comment())
            await asyncio.sleep(24)
            assert [round(at) for at in store.times["extend"]] == [10, 20, 30]
            waiting.gate.set()

    async def test_a_handler_that_begins_after_an_extension_needs_no_other(self) -> None:
        receiver, event = (
            receiver_on(store := Timed(), lease_seconds=30.0),
            comment(created_at=long_ago()),
        )
        receiver.on(CommentReceived, name="serial", serial_by=_one_key)(_succeed)
        await store.inner.acquire_key_lock(KeyLock("default", "serial", "k"), new_token(), 12.0)
        async with receiver:
            assert answer_of(await deliver(receiver, event, 9)) == (503, "still_running")
            assert await receiver.idle(60)
            assert answer_of(await deliver(receiver, event, 9)) == (200, "duplicate")
        assert [round(at) for at in store.times["extend"]] == [10]

    async def test_an_extension_that_failed_is_tried_again_soon(self) -> None:
        receiver = receiver_on(store := Timed(), lease_seconds=30.0)
        waiting = Waiting(receiver)
        store.failures["extend"] = 2
        async with receiver:
            await deliver(receiver, comment())
            await asyncio.sleep(20)
            assert [round(at) for at in store.times["extend"]] == [10, 11, 12, 22]
            waiting.gate.set()

    async def test_an_extension_of_a_short_lease_is_tried_again_sooner(self) -> None:
        receiver = receiver_on(store := Timed(), lease_seconds=3.0, answer_seconds=2.0)
        waiting = Waiting(receiver)
        store.failures["extend"] = 2
        async with receiver:
            await deliver(receiver, comment())
            await asyncio.sleep(0.8)
            first, second, third, fourth = store.times["extend"]
            assert is_about(first, 1.0)
            assert is_about(second - first, 0.3)
            assert is_about(third - second, 0.3)
            assert is_about(fourth - third, 1.0)
            waiting.gate.set()

    async def test_an_extension_that_hangs_is_given_up_and_tried_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        receiver, event = receiver_on(store := Timed(), lease_seconds=30.0), comment()
        waiting = Waiting(receiver)
        gate = store.hang("extend")
        async with receiver:
            await deliver(receiver, event)
            await asyncio.sleep(7)
            assert [round(at) for at in store.times["extend"]] == [10, 14]
            assert (
                f"could not extend the lease of default:{event.id}: the store did not answer"
                " within 3 s" in caplog.text
            )
            gate.set()
            waiting.gate.set()

    async def test_a_success_is_recorded_soon_while_another_handler_runs(
        self,
    ) -> None:
        receiver, event = receiver_on(store := Timed(), lease_seconds=30.0), comment()
        waiting, done = Waiting(receiver), counting(receiver)
        async with receiver:
            running = asyncio.create_task(deliver(receiver, event))
            await asyncio.sleep(1)
            assert done == [event.id]
            [written] = store.times["extend"]
            assert is_about(written, 0.1)
            waiting.gate.set()
            await running

    async def test_the_success_of_a_single_handler_is_written_to_the_store_once(self) -> None:
        receiver = receiver_on(store := Timed())
        counting(receiver)
        async with receiver:
            assert answer_of(await deliver(receiver, comment())) == (200, "handled")
            await asyncio.sleep(1)
        assert (store.calls["claim"], store.calls["complete"]) == (1, 1)
        assert store.calls["extend"] == 0


class TestTroubleOfTheStore:
    async def test_a_failed_release_is_repeated_at_growing_pauses(self) -> None:
        receiver = receiver_on(store := Timed(), lease_seconds=30.0)
        Handlers(receiver, "a").raises["a"] = ValueError("x")
        store.failures["release"] = 8
        async with receiver:
            status, reason, took = await timed(deliver(receiver, comment()))
            assert (status, reason) == (503, "store_unavailable")
            assert took < TICK
            assert await receiver.idle(60)
        assert store.times["release"] == [0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1, 9.1]

    async def test_a_success_that_cannot_be_recorded_is_repeated_at_growing_pauses(self) -> None:
        receiver = receiver_on(store := Timed(), lease_seconds=30.0)
        counting(receiver)
        store.failures["complete"] = 4
        async with receiver:
            status, reason, took = await timed(deliver(receiver, comment()))
            assert (status, reason) == (200, "handled")
            assert took < TICK
            assert await receiver.idle(60)
        assert store.times["complete"] == [0.0, 0.1, 0.3, 0.7, 1.5]

    async def test_a_success_whose_recording_hangs_is_answered_at_the_store_time_limit(
        self,
    ) -> None:
        receiver, event = receiver_on(store := Timed()), comment()
        counting(receiver)
        gate = store.hang("complete")
        async with receiver:
            status, reason, took = await timed(deliver(receiver, event))
            assert (status, reason) == (200, "handled")
            assert is_about(took, 3.0)
            gate.set()
            assert await receiver.idle(60)
            assert answer_of(await deliver(receiver, event, 2)) == (200, "duplicate")

    async def test_a_watermark_that_cannot_be_recorded_is_repeated_at_growing_pauses(self) -> None:
        receiver = receiver_on(store := Timed(), lease_seconds=30.0)
        receiver.on(CommentReceived, name="latest", latest_by=_one_key)(_succeed)
        store.failures["release_key_lock"] = 7
        async with receiver:
            outcome = asyncio.create_task(deliver(receiver, comment()))
            assert await receiver.idle(60)
            assert answer_of(await outcome) == (200, "handled")
        assert store.times["release_key_lock"] == [0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1]

    async def test_an_event_whose_claim_may_have_been_granted_is_released_after_a_pause(
        self,
    ) -> None:
        receiver = receiver_on(store := Timed())
        counting(receiver)
        store.failures["claim"] = 1
        async with receiver:
            await deliver(receiver, comment())
            assert await receiver.idle(60)
        assert store.times["release"] == [0.1]


class TestHandlers:
    async def test_an_async_handler_is_cancelled_when_its_time_is_over(self) -> None:
        receiver = receiver_on(Timed(), handler_timeout_seconds=5.0)
        waiting = Waiting(receiver)
        async with receiver:
            status, reason, took = await timed(deliver(receiver, comment()))
        assert (status, reason, waiting.ended) == (500, "handler_failed", ["cancelled"])
        assert is_about(took, 5.0)

    async def test_a_handler_cancelled_at_its_limit_leaves_no_cancellation_in_the_attempt(
        self,
    ) -> None:
        """If the store hangs afterwards, the attempt reports a late store, not a shutdown."""
        receiver = receiver_on(store := Timed(), handler_timeout_seconds=1.0)
        Waiting(receiver)
        gate = store.hang("release")
        async with receiver:
            status, reason, took = await timed(deliver(receiver, comment()))
            gate.set()
            assert await receiver.idle(60)
        assert (status, reason) == (503, "store_unavailable")
        assert is_about(took, 4.0, 2 * TICK)

    @pytest.mark.parametrize(("limit", "clean_up"), [(4.0, 4.0), (60.0, 5.0)])
    async def test_a_handler_that_ignores_its_cancellation_is_overdue_after_a_while(
        self, limit: float, clean_up: float
    ) -> None:
        receiver = receiver_on(Timed(), handler_timeout_seconds=limit)
        gate = asyncio.Event()

        async def stubborn(_: CommentReceived) -> None:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue

        on(receiver, "stubborn", stubborn)
        async with receiver:
            began = loop().time()
            running = asyncio.create_task(deliver(receiver, comment()))
            while not receiver._wiring.attempts.overdue:
                await asyncio.sleep(0.05)
                assert loop().time() - began < limit + 20
            assert is_about(loop().time() - began, limit + clean_up, 2 * TICK)
            gate.set()
            await running

    async def test_a_retry_s_wait_is_the_longest_that_was_asked_for(self) -> None:
        receiver = receiver_on(Timed())
        handlers = Handlers(receiver, "a", "b", "c")
        handlers.raises |= {"a": Retry(after=7), "b": Retry(after=9), "c": Retry()}
        async with receiver:
            outcome = await deliver(receiver, comment())
        assert outcome.headers == {"retry-after": "9"}

    async def test_a_key_lock_held_by_another_attempt_is_asked_for_at_growing_pauses(
        self,
    ) -> None:
        receiver = receiver_on(store := Timed(), answer_seconds=2.0)
        receiver.on(CommentReceived, name="serial", serial_by=_one_key)(_succeed)
        await store.inner.acquire_key_lock(KeyLock("default", "serial", "k"), new_token(), 30.0)
        async with receiver:
            outcome = await deliver(receiver, comment())
        assert answer_of(outcome) == (503, "in_flight")
        assert store.times["acquire_key_lock"] == [0.0, 0.05, 0.15, 0.35, 0.75, 1.25, 1.75, 1.9]
        assert outcome.headers == {"retry-after": "29"}


class TestShutdown:
    async def test_the_drain_waits_for_handlers_that_end_in_time(self) -> None:
        receiver = receiver_on(Timed(), drain_seconds=0.9)
        waiting = Waiting(receiver)
        async with receiver:
            running = asyncio.create_task(deliver(receiver, comment()))
            await asyncio.sleep(0.1)
            loop().call_later(0.8, waiting.gate.set)
        assert answer_of(await running) == (200, "handled")

    async def test_the_drain_waits_for_handlers_and_then_for_the_store(self) -> None:
        store = Timed()
        receiver = receiver_on(store, answer_seconds=1.0, drain_seconds=7.0, store_seconds=2.0)
        waiting = Waiting(receiver)
        store.hang("release")
        async with receiver:
            await deliver(receiver, comment())
            began = loop().time()
        assert waiting.ended == ["cancelled"]
        # Seven seconds for the handler, then twice the store's time limit of two seconds.
        assert is_about(loop().time() - began, 11.0, 0.2)


def _one_key(_: object) -> str:
    return "k"


async def _succeed(_: CommentReceived) -> None: ...
