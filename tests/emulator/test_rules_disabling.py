"""The interface's rules for disabling endpoints, and the exceptions for test events."""

from datetime import UTC, datetime, timedelta

import pytest
from support.recorder import Received, Recorder, add_endpoint, answering, ticking

from hookonce.emulator import DisabledReason, EmulatedService, EndpointStatus, Notice, VirtualClock

pytestmark = pytest.mark.anyio

HOUR = 3600


def state(service: EmulatedService, endpoint: str | None = None) -> tuple[object, object]:
    shown = service.endpoint(endpoint)
    return shown.status, shown.disabled_reason


# Answers with status 410


@pytest.mark.parametrize("attempt", range(1, 10))
async def test_an_answer_of_410_disables_at_once_on_any_attempt(attempt: int) -> None:
    """Interface, States: active webhook endpoint | receiver answers 410 | on any attempt."""
    clock = VirtualClock()
    app = Recorder(answering(*[500] * (attempt - 1), 410), clock)
    async with EmulatedService(app, clock=clock) as service:
        await service.emit("comment.received")
        await service.advance(days=10)
        assert len(app.received) == attempt
        assert state(service) == ("disabled", "gone")
        (notice,) = service.notices
        assert notice == Notice(service.endpoint().id, DisabledReason.GONE, notice.at)
        assert notice.at.timestamp() == pytest.approx(app.received[-1].at, abs=1e-3)
        (row,) = service.deliveries()
        assert (row.status, row.response_status) == ("failed", 410)
        assert (row.attempts, row.next_attempt_at) == (attempt, None)


async def test_a_410_gives_up_all_pending_deliveries() -> None:
    """Interface, States: a disabled endpoint receives nothing, not even what was pending."""
    clock = VirtualClock()
    app = Recorder(answering(500, 503, 410, 204), clock)
    other = Recorder(answering(500, 500, 500, 204), clock)
    async with EmulatedService(app, clock=clock) as service:
        own, second = service.endpoint().id, add_endpoint(service, other).id
        for _ in range(3):
            await service.emit("comment.received")
        assert [row.status for row in service.deliveries(own)] == ["failed"] * 3
        assert [row.next_attempt_at for row in service.deliveries(own)] == [None] * 3
        await service.emit("comment.received")
        await service.advance(days=2)
        assert [row.status for row in service.deliveries(second)] == ["delivered"] * 4
        assert state(service, second) == ("active", None)
        assert len(service.deliveries(own)) == 3, "what was emitted since is not for it"
        assert [notice.endpoint_id for notice in service.notices] == [own]
    assert len(app.received) == 3
    assert len(other.received) == 7


async def test_a_410_to_a_test_event_disables_too() -> None:
    """Interface, States: receiver answers 410, on any attempt. We assume that this includes
    attempts at test events.
    """
    async with EmulatedService(Recorder(410)) as service:
        await service.test()
        assert state(service) == ("disabled", "gone")


# 72 hours and ten failed attempts


class Failing:
    """A service with a failing endpoint and a clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock(datetime(2026, 5, 1, tzinfo=UTC).timestamp())
        self.began = self.clock()
        self.app = Recorder(500, self.clock)
        self.service = EmulatedService(self.app, clock=self.clock, seed=1)

    async def until(self, hours: float) -> None:
        """Advance the clock to this many hours after the start."""
        await self.service.advance(seconds=self.began + hours * HOUR - self.clock())

    async def emit(self, hours: float) -> None:
        await self.until(hours)
        await self.service.emit("comment.received")

    @property
    def failures(self) -> int:
        failures = self.service.endpoint().consecutive_failures
        assert failures is not None
        return failures


async def test_72_hours_of_failure_with_ten_failed_attempts_disable() -> None:
    """Interface, Limits, Disable threshold: the first failure after 72 hours disables the endpoint,
    no earlier one.
    """
    failing = Failing()
    async with failing.service as service:
        await failing.emit(0)
        await failing.emit(71.9)
        assert failing.failures == 10
        await failing.emit(72 - 1 / HOUR)
        assert state(service) == ("active", None), "ten failures, but no 72 hours"
        await failing.until(72)
        before = failing.failures
        assert before >= 10
        assert state(service) == ("active", None), "time alone disables nothing"
        await failing.emit(72)
        assert state(service) == ("disabled", "failing")
        assert failing.failures == before + 1
        (notice,) = service.notices
        assert notice == Notice(service.endpoint().id, DisabledReason.FAILING, notice.at)
        assert notice.at.timestamp() == pytest.approx(failing.clock(), abs=1e-5)
        assert {row.status for row in service.deliveries()} == {"failed"}
        received = len(failing.app.received)
        await service.emit("comment.received")
        await service.advance(days=3)
        assert len(failing.app.received) == received, "a disabled endpoint receives nothing"
        assert len(service.notices) == 1


async def test_many_failures_within_71_hours_do_not_disable() -> None:
    """Interface, Limits, Disable threshold: ten failures in less than 72 hours disable nothing."""
    failing = Failing()
    async with failing.service as service:
        for hours in range(0, 48, 4):
            await failing.emit(hours)
        await failing.until(71)
        assert failing.failures > 90
        assert state(service) == ("active", None)


async def test_72_hours_with_nine_failures_do_not_disable_and_the_tenth_does() -> None:
    """Interface, Limits, Disable threshold: at least 10 failed attempts."""
    failing = Failing()
    async with failing.service as service:
        await failing.emit(0)
        await failing.until(11)
        assert failing.failures == 8
        failing.clock.tick(timedelta(hours=90))  # as if the service were down: no attempts
        await service.advance()
        assert failing.failures == 9
        assert state(service) == ("active", None)
        await service.emit("comment.received")
        assert failing.failures == 10
        assert state(service) == ("disabled", "failing")


async def test_a_success_resets_the_72_hours() -> None:
    """Interface, States: "failing for 72 hours"; a success in between starts the 72 hours again."""
    failing = Failing()
    async with failing.service as service:
        await failing.emit(0)
        await failing.emit(40)
        await failing.until(65)
        assert failing.failures == 18
        failing.app.answer = answering(204)
        await failing.emit(66)
        assert failing.failures == 0
        failing.app.answer = answering(500)
        await failing.emit(67)
        await failing.emit(80)
        await failing.emit(138)
        assert failing.failures >= 10
        assert state(service) == ("active", None), "failing since hour 67"
        await failing.emit(139.1)  # a little after 72 hours, because floats are rounded
        assert state(service) == ("disabled", "failing")


async def test_the_endpoint_shows_the_results_of_its_attempts() -> None:
    """Interface, Resources, Webhook endpoint: consecutiveFailures, lastSuccessAt, lastFailureAt."""
    clock = VirtualClock(datetime(2026, 5, 1, tzinfo=UTC).timestamp())
    app = Recorder(answering(204, 500, 500, 204), clock)
    async with EmulatedService(app, clock=clock) as service:
        new = service.endpoint()
        assert (new.consecutive_failures, new.last_success_at, new.last_failure_at) == (
            0,
            None,
            None,
        )
        await service.emit("comment.received")
        good = service.endpoint()
        assert (good.consecutive_failures, good.last_failure_at) == (0, None)
        assert good.last_success_at == datetime(2026, 5, 1, tzinfo=UTC)
        await service.advance(hours=1)
        await service.emit("comment.received")
        await service.advance(seconds=40)
        bad = service.endpoint()
        assert (bad.consecutive_failures, bad.last_success_at) == (2, good.last_success_at)
        assert bad.last_failure_at is not None
        assert bad.last_failure_at.timestamp() == pytest.approx(app.received[-1].at, abs=1e-3)
        await service.advance(minutes=5)
        assert service.endpoint().consecutive_failures == 0
        assert service.endpoint().last_failure_at == bad.last_failure_at


# Endpoints that a user enables again, or disables


async def test_an_enabled_endpoint_has_no_failures() -> None:
    """Interface, States: disabled webhook endpoint, enabled true, active."""
    failing = Failing()
    async with failing.service as service:
        await failing.emit(0)
        await failing.emit(71.9)
        await failing.emit(72)
        assert state(service) == ("disabled", "failing")
        service.enable()
        assert state(service) == ("active", None)
        assert failing.failures == 0
        await service.advance(days=1)
        assert failing.failures == 0, "what was given up stays so"
        for hours in (97, 120, 140, 168.9):
            await failing.emit(hours)
        assert failing.failures >= 10
        assert state(service) == ("active", None), "failing since hour 97"
        await failing.emit(169)
        assert state(service) == ("disabled", "failing")
        assert len(service.notices) == 2


async def test_an_endpoint_that_is_gone_can_be_enabled_and_receives_again() -> None:
    """Interface, States: disabled webhook endpoint | switch on in the app | always | active."""
    app = Recorder(answering(410, 204))
    async with EmulatedService(app) as service:
        await service.emit("comment.received")
        missed = await service.emit("comment.received")
        service.enable()
        event = await service.emit("comment.received")
    assert app.ids[-1] == event.id
    assert missed.id not in app.ids


async def test_an_endpoint_disabled_by_hand_causes_no_notice() -> None:
    """Interface, Resources, Gaps: disabledReason "manual" is the one value shown."""
    clock = VirtualClock()
    app = Recorder(500, clock)
    async with EmulatedService(app, clock=clock) as service:
        await service.emit("comment.received")
        service.disable()
        assert state(service) == (EndpointStatus.DISABLED, DisabledReason.MANUAL)
        assert [row.status for row in service.deliveries()] == ["failed"]
        before = clock()
        await service.settle()
        assert clock() == before, "nothing is due any more"
        await service.emit("comment.received")
        await service.advance(days=2)
        assert service.notices == []
    assert len(app.received) == 1


async def test_an_endpoint_disabled_at_the_same_moment_receives_nothing() -> None:
    """Interface, States: a disabled endpoint no longer receives events that are under way."""
    second = Recorder()
    async with EmulatedService(Recorder()) as service:
        other = add_endpoint(service, second).id
        first = service._transport._apps["https://receiver.test/webhooks"]
        assert isinstance(first, Recorder)
        first.answer = ticking(answering(204), lambda: service.disable(other))
        await service.emit("comment.received")
        (row,) = service.deliveries(other)
    assert second.received == []
    assert (row.status, row.attempts) == ("failed", 0)


# Test events and disabling


async def test_a_test_event_is_never_retried() -> None:
    """Interface, Events, Delivery behaviour: test events are never retried."""
    clock = VirtualClock()
    app = Recorder(500, clock)
    async with EmulatedService(app, clock=clock) as service:
        shown = await service.test()
        assert (shown.status, shown.attempts, shown.response_status) == ("failed", 1, 500)
        assert shown.next_attempt_at is None
        await service.advance(days=3)
    assert len(app.received) == 1


async def test_test_events_do_not_count_toward_disabling() -> None:
    """Interface, Events, Delivery behaviour: neither their failures nor their successes count."""
    failing = Failing()
    async with failing.service as service:
        for hours in range(100):
            await failing.until(hours)
            await service.test()
        shown = service.endpoint()
        assert (shown.status, shown.consecutive_failures) == ("active", 0)
        assert shown.last_failure_at is None
        await failing.emit(100)
        assert failing.failures == 1
        failing.app.answer = answering(204)
        await service.test()
        assert failing.failures == 1, "a test that succeeds proves nothing"
        assert service.endpoint().last_success_at is None


async def test_a_test_event_is_not_the_failure_that_disables_after_72_hours() -> None:
    """Interface, Events, Delivery behaviour: a failed test event disables nothing."""
    failing = Failing()
    async with failing.service as service:
        await failing.emit(0)
        await failing.emit(40)
        await failing.until(75)
        assert failing.failures == 18
        await service.test()
        assert state(service) == ("active", None)
        await service.emit("comment.received")
        assert state(service) == ("disabled", "failing")


async def test_a_test_event_goes_to_the_endpoint_it_was_requested_for() -> None:
    first, second = Recorder(), Recorder()
    async with EmulatedService(first, events=["comment.received"]) as service:
        other = add_endpoint(service, second, events=()).id
        await service.test(other)
        with pytest.raises(LookupError, match="name one by its id"):
            await service.test()
    assert first.received == []
    assert [type(one) for one in second.received] == [Received]
