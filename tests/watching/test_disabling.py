"""A receiver warns long before the sender disables a failing endpoint."""

import time
from datetime import timedelta

import pytest

from hookonce import Receiver, sign
from hookonce.clock import utc
from hookonce.emulator import VirtualClock
from hookonce.events import CommentReceived, WebhookTest
from hookonce.testing import make_event, signed_request
from hookonce.testing.pytest_plugin import ServiceFactory
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio


class Switch:
    """A handler that fails while it is off."""

    is_on = False

    async def __call__(self, _: CommentReceived) -> None:
        if not self.is_on:
            raise ValueError("off")


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
def receiver(webhook_secret: str, virtual_clock: VirtualClock, switch: Switch) -> Receiver:
    receiver = Receiver(secrets=webhook_secret, store="memory://", clock=virtual_clock)
    receiver.on(CommentReceived, name="switch")(switch)
    return receiver


async def warnings_of(receiver: Receiver) -> str:
    readiness = await receiver.check()
    return "\n".join(text for text in readiness.warnings if "disables" in text)


async def test_a_day_of_failure_is_reported_two_days_before_the_sender_disables(
    receiver: Receiver,
    virtual_clock: VirtualClock,
    emulated_service: ServiceFactory,
) -> None:
    async with emulated_service(receiver, clock=virtual_clock) as service:
        await service.emit(CommentReceived)
        await service.advance(hours=12)
        assert receiver.failing is not None
        assert receiver.failing.attempts >= 5
        assert not await warnings_of(receiver)
        await service.emit(CommentReceived)
        await service.advance(hours=14)
        assert service.endpoint().status == "active"
        warning = await warnings_of(receiver)
        assert "failed for 26 h" in warning
        assert "the last answer was handler_failed" in warning
        assert "disables an endpoint after 72 h and 10 failed attempts" in warning


async def test_it_is_logged_with_a_failure_and_once_an_hour(
    receiver: Receiver,
    webhook_secret: str,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = []
    for hours in (0, 6, 6, 6, 6, 0.5, 0.6):
        virtual_clock.tick(timedelta(hours=hours))
        caplog.clear()
        skew = time.time() - virtual_clock()
        request = signed_request(make_event(CommentReceived), webhook_secret, skew=skew)
        assert (await receiver.handle(request.body, request.headers)).status == 500
        lines.append([r.getMessage() for r in caplog.records if r.name == "hookonce.disabling"])
    assert [len(those) for those in lines] == [0, 0, 0, 0, 1, 0, 1]
    assert lines[-1] == [await warnings_of(receiver)]
    assert "failed for 25 h (7 attempts" in lines[-1][0]


async def test_one_success_ends_a_streak(
    receiver: Receiver,
    switch: Switch,
    virtual_clock: VirtualClock,
    emulated_service: ServiceFactory,
) -> None:
    async with emulated_service(receiver, clock=virtual_clock) as service:
        await service.emit(CommentReceived)
        await service.advance(hours=25)
        assert await warnings_of(receiver)
        switch.is_on = True
        await service.emit(CommentReceived)
        assert receiver.failing is None
        assert not await warnings_of(receiver)


async def test_test_events_and_other_methods_count_for_nothing(
    receiver: Receiver, webhook_secret: str
) -> None:
    @receiver.on(WebhookTest, name="test")
    async def fail(_: WebhookTest) -> None:
        raise ValueError("off")

    request = signed_request(make_event(WebhookTest), webhook_secret)
    assert (await receiver.handle(request.body, request.headers)).status == 500
    assert receiver.failing is None


async def test_refusals_count_and_are_counted_by_reason(
    receiver: Receiver, virtual_clock: VirtualClock
) -> None:
    for _ in range(6):
        request = signed_request(make_event(CommentReceived), new_secret())
        assert (await receiver.handle(request.body, request.headers)).status == 401
        virtual_clock.tick(timedelta(hours=5))
    assert receiver.failing is not None
    assert (receiver.failing.attempts, receiver.failing.refused) == (6, 6)
    assert "6 of them refused as not genuine" in await warnings_of(receiver)


async def test_a_backfill_neither_ends_a_streak_of_failures_nor_counts_as_one(
    receiver: Receiver, switch: Switch, virtual_clock: VirtualClock
) -> None:
    """The sender counts only its own deliveries: active webhook endpoint | deliveries failing."""
    await receiver.backfill(make_event(CommentReceived))
    assert receiver.failing is None
    event, now = make_event(CommentReceived), int(virtual_clock())
    body = event.model_dump_json().encode()
    headers = sign(receiver.current_secrets()[0], event.id, body, timestamp=now)
    assert (await receiver.handle(body, headers)).status == 500
    streak = receiver.failing
    assert streak is not None
    assert streak.since == utc(virtual_clock())
    assert streak.hours(streak.since + timedelta(hours=3)) == pytest.approx(3)
    switch.is_on = True
    assert (await receiver.backfill(make_event(CommentReceived))).status == 200
    assert receiver.failing == streak
    assert (await receiver.handle(body, headers)).status == 200
    assert receiver.failing is None
