"""When only refused deliveries arrive, the receiver warns, and stays ready."""

import re
import time
from datetime import timedelta
from typing import Any

import pytest

from hookonce import Event, Receiver
from hookonce.clock import utc
from hookonce.emulator import VirtualClock
from hookonce.events import CommentReceived, WebhookTest
from hookonce.operations.doctor.deliveries import TestDelivery
from hookonce.senders import publishing, svix
from hookonce.testing import make_event, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio


@pytest.fixture
def receiver(webhook_secret: str, virtual_clock: VirtualClock) -> Receiver:
    return Receiver(secrets=webhook_secret, store="memory://", clock=virtual_clock)


async def deliver(
    receiver: Receiver, secret: str, *, event: type[Event[Any]] = CommentReceived
) -> int:
    skew = time.time() - receiver.clock()
    request = signed_request(make_event(event), secret, skew=skew)
    return int((await receiver.handle(request.body, request.headers)).status)


async def warnings_of(receiver: Receiver) -> list[str]:
    readiness = await receiver.check()
    assert readiness.ready
    return [text for text in readiness.warnings if "refused" in text]


async def test_twenty_refused_deliveries_are_a_warning_that_names_reason_and_time(
    receiver: Receiver, virtual_clock: VirtualClock
) -> None:
    wrong = new_secret()
    for number in range(20):
        assert await warnings_of(receiver) == [], number
        assert await deliver(receiver, wrong) == 401
        virtual_clock.tick(timedelta(minutes=1))
    [warning] = await warnings_of(receiver)
    assert "the last 20 deliveries were refused since" in warning
    assert "the last reason is no_matching_signature" in warning
    assert "; configure the endpoint's current secret" in warning
    readiness = await receiver.check()
    assert readiness.refused is not None
    assert readiness.refused.since == utc(virtual_clock() - 20 * 60)


@pytest.mark.parametrize(("hours", "words"), [(1, "behind"), (-1, "ahead of")])
async def test_a_wrong_clock_is_named_with_its_distance(
    hours: int, words: str, receiver: Receiver, webhook_secret: str
) -> None:
    for _ in range(20):
        skew = time.time() - receiver.clock() - hours * 3600
        request = signed_request(make_event(CommentReceived), webhook_secret, skew=skew)
        assert (await receiver.handle(request.body, request.headers)).status == 401
    [warning] = await warnings_of(receiver)
    named = re.search(rf"this machine's clock is {words} the sender's by (\d+) s; sync", warning)
    assert named is not None, warning
    assert abs(int(named[1]) - 3600) < 60


async def test_missing_headers_are_blamed_on_a_proxy(
    receiver: Receiver, webhook_secret: str
) -> None:
    for _ in range(20):
        request = signed_request(make_event(CommentReceived), webhook_secret)
        headers = {name: text for name, text in request.headers.items() if name != "webhook-id"}
        assert (await receiver.handle(request.body, headers)).status == 400
    [warning] = await warnings_of(receiver)
    assert "the last reason is missing_id" in warning
    assert warning.endswith("; let it pass every webhook-* header on unchanged")


async def test_the_headers_of_the_receivers_sender_are_named(webhook_secret: str) -> None:
    receiver = Receiver(secrets=webhook_secret, store="memory://", sender=svix)
    for _ in range(20):
        request = signed_request(b"{}", webhook_secret, sender=publishing)
        headers = {name: text for name, text in request.headers.items() if name != "webhook-id"}
        assert (await receiver.handle(request.body, headers)).status == 400
    [warning] = await warnings_of(receiver)
    assert warning.endswith("; let it pass every svix-* and webhook-* header on unchanged")


@pytest.mark.parametrize("event", [CommentReceived, WebhookTest])
async def test_one_genuine_delivery_ends_the_warning(
    event: type[Event[Any]], receiver: Receiver, webhook_secret: str
) -> None:
    wrong = new_secret()
    for _ in range(25):
        await deliver(receiver, wrong)
    assert await warnings_of(receiver)
    assert await deliver(receiver, webhook_secret, event=event) == 200
    assert await warnings_of(receiver) == []
    assert (await receiver.check()).refused is None


async def test_a_genuine_delivery_that_fails_ends_the_warning_too(
    receiver: Receiver, webhook_secret: str
) -> None:
    @receiver.on(CommentReceived)
    def fail(_: CommentReceived) -> None:
        raise ValueError("off")

    wrong = new_secret()
    for _ in range(25):
        await deliver(receiver, wrong)
    assert await deliver(receiver, webhook_secret) == 500
    assert await warnings_of(receiver) == []


async def test_a_test_of_the_doctor_does_not_end_the_warning(
    receiver: Receiver, webhook_secret: str
) -> None:
    wrong = new_secret()
    for _ in range(25):
        await deliver(receiver, wrong)
    skew = time.time() - receiver.clock()
    test = TestDelivery.new(webhook_secret, publishing).genuine()
    request = signed_request(test.body, webhook_secret, skew=skew)
    assert (await receiver.handle(request.body, request.headers)).status == 200
    assert await warnings_of(receiver)


async def test_a_forged_test_of_the_doctor_does_not_count(receiver: Receiver) -> None:
    for _ in range(25):
        test = TestDelivery.new(new_secret(), publishing).genuine()
        assert (await receiver.handle(test.body, test.headers)).status == 401
    assert (await receiver.check()).refused is None
