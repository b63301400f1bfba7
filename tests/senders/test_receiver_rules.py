"""A receiver follows the rules of its sender."""

import asyncio
import copy
import pickle
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from hookonce import Event, Limits, Receiver
from hookonce.clock import ManualClock
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events.standard import StandardEvent
from hookonce.senders import Rules, Sender, openai, publishing, standard, svix
from hookonce.stores.sqlite import SQLiteStore
from hookonce.testing import SignedRequest, TestSender, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()
HOUR = 3600.0
BODY = b'{"type": "order.paid", "timestamp": "2026-01-01T00:00:00Z", "data": {}}'


def receiver_of(sender: Sender, **arguments: Any) -> Receiver:
    return Receiver(**{"secrets": SECRET, "store": "memory://", "sender": sender, **arguments})


@pytest.mark.parametrize(
    ("sender", "answer_seconds"), [(publishing, 8.0), (svix, 12.0), (openai, 4.0)]
)
def test_the_answer_comes_within_the_time_that_the_sender_waits(
    sender: Sender, answer_seconds: float
) -> None:
    assert receiver_of(sender).limits.answer_seconds == answer_seconds
    few = Limits(threads=2)
    assert receiver_of(sender, limits=few).limits.answer_seconds == answer_seconds
    assert (
        receiver_of(publishing, limits=few).copy(sender=sender).limits
        == receiver_of(sender, limits=few).limits
    )


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda limits: pickle.loads(pickle.dumps(limits))]
)
def test_a_copy_of_limits_serves_a_receiver_as_the_original_does(
    copied: Callable[[Limits], Limits],
) -> None:
    limits = copied(Limits(threads=3))
    assert limits == Limits(threads=3)
    assert limits.for_sender(svix.rules).answer_seconds == 12.0
    given = copied(Limits(answer_seconds=2.0).for_sender(svix.rules))
    assert given.for_sender(publishing.rules).answer_seconds == 2.0
    assert given.store_seconds_within(0.5) == Limits().store_seconds


def test_an_answer_that_would_come_too_late_is_refused() -> None:
    long = Limits(answer_seconds=12.5)
    assert receiver_of(svix, limits=long).limits.answer_seconds == 12.5
    with pytest.raises(ValueError, match=r"at most 8\.5, since the sender gives up after 10 s"):
        receiver_of(publishing, limits=long)
    with pytest.raises(ValueError, match=r"at most 4\.25, since the sender does not say"):
        receiver_of(openai, limits=long)
    with pytest.raises(ValueError, match=r"at most 8\.5"):
        receiver_of(svix, limits=long).copy(sender=publishing)


@pytest.mark.parametrize(
    ("sender", "least"), [(publishing, 26), (svix, 29), (openai, 73), (standard, 77)]
)
def test_a_store_must_remember_as_long_as_the_sender_delivers(sender: Sender, least: int) -> None:
    receiver_of(sender, retention=timedelta(hours=least))
    with pytest.raises(ValueError, match=f"retention must be at least {least} hours"):
        receiver_of(sender, retention=timedelta(hours=least - 1))
    short = receiver_of(publishing, retention=timedelta(hours=26))
    if sender is not publishing:
        with pytest.raises(ValueError, match=f"retention must be at least {least} hours"):
            short.copy(sender=sender)


def test_a_ledger_must_remember_as_long_as_the_sender_delivers(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "app.db", retention=timedelta(hours=30))
    receiver = receiver_of(standard)
    with pytest.raises(ValueError, match="the ledger of 'book': retention must be at least 77"):

        @receiver.on("order.paid", within=ledger, name="book")
        def book(event: Event[Any], transaction: object) -> None: ...

    ledger.close()


@pytest.mark.parametrize(
    ("sender", "seconds"), [(publishing, "30"), (svix, "5"), (openai, "30"), (standard, "5")]
)
async def test_a_busy_answer_asks_for_the_senders_own_first_wait(
    sender: Sender, seconds: str
) -> None:
    receiver = receiver_of(sender)
    async with receiver, TestSender(receiver, secrets=SECRET) as sending:
        pass
    answer = await sending.post(sending_request(sender))
    assert (answer.status, answer.headers["retry-after"]) == (503, seconds)


def sending_request(sender: Sender) -> SignedRequest:
    return signed_request(BODY, SECRET, sender=sender)


# Svix publishes its number of attempts, but its deliveries do not carry the attempt's number.
svix_with_time = replace(svix, name="svix", envelope=standard.envelope)


class Failing:
    """A receiver that cannot know which attempt is the last, and whose handler fails."""

    def __init__(self, path: Path, sender: Sender) -> None:
        self.clock = ManualClock(time.time())
        self.store = SQLiteStore(path / "hooks.db", clock=self.clock)
        self.receiver = receiver_of(sender, store=self.store, clock=self.clock)
        self.is_failing = True
        self.calls = 0

        @self.receiver.on("*", name="handler")
        async def handler(_: Event[Any]) -> None:
            self.calls += 1
            if self.is_failing:
                raise RuntimeError("not now")

    async def deliver(self, message_id: str = "msg_1") -> tuple[int, str]:
        sent = TestSender(self.receiver, secrets=SECRET)
        skew = time.time() - self.clock()
        answer = await sent.send(BODY, message_id=message_id, skew=skew)
        return answer.status, answer.reason

    async def dead(self) -> int:
        return (await self.store.stats()).dead


@pytest.fixture(
    params=[standard, svix_with_time, Sender(name="silent")], ids=lambda sender: sender.name
)
async def failing(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Failing]:
    made = Failing(tmp_path, request.param)
    async with made.receiver:
        yield made


async def test_a_first_failure_of_unknown_attempts_keeps_the_body_and_stays_claimable(
    failing: Failing,
) -> None:
    assert await failing.deliver() == (500, "handler_failed")
    [kept] = await failing.store.dead_letters()
    assert kept.is_kept
    assert await failing.dead() == 0
    letter = await failing.store.dead_letter(kept.delivery.key)
    assert letter is not None
    assert letter.delivery.body == BODY
    failing.is_failing = False
    assert await failing.deliver() == (200, "handled")
    assert await failing.store.dead_letters() == []
    assert await failing.deliver() == (200, "duplicate")


async def test_a_first_attempt_that_a_shutdown_cancels_keeps_the_body(tmp_path: Path) -> None:
    limits = Limits(answer_seconds=0.1, drain_seconds=0.1)
    path, goes_on = tmp_path / "hooks.db", asyncio.Event()

    def started() -> TestSender:
        receiver = receiver_of(standard, store=f"sqlite:///{path}", limits=limits)

        @receiver.on("*", name="handler")
        async def handler(_: Event[Any]) -> None:
            await goes_on.wait()

        return TestSender(receiver, secrets=SECRET)

    async with started() as sending:
        (await sending.send(BODY, message_id="msg_1")).expect(503, "still_running")
    store = SQLiteStore(path)
    await store.open()
    [kept] = await store.dead_letters()
    letter = await store.dead_letter(kept.delivery.key)
    assert kept.is_kept
    assert letter is not None
    assert letter.delivery.body == BODY
    goes_on.set()
    async with started() as sending:
        (await sending.send(BODY, message_id="msg_1")).expect(200, "handled")
    assert await store.dead_letters() == []
    await store.aclose()


async def test_a_kept_event_is_a_dead_letter_when_the_senders_span_since_its_last_attempt_is_over(
    failing: Failing,
) -> None:
    span = failing.receiver.sender.rules.span_seconds
    assert await failing.deliver() == (500, "handler_failed")
    for _ in range(3):
        failing.clock.advance(0.9 * span)
        assert await failing.deliver() == (500, "handler_failed")
        assert await failing.dead() == 0
    failing.clock.advance(0.99 * span)
    [kept] = await failing.store.dead_letters()
    assert (kept.is_kept, kept.attempts) == (True, 4)
    failing.clock.advance(0.02 * span)
    assert await failing.dead() == 1
    assert await failing.deliver() == (202, "already_dead")
    assert failing.calls == 4


async def test_a_success_of_a_sender_with_unknown_attempts_keeps_no_body(
    failing: Failing,
) -> None:
    failing.is_failing = False
    assert await failing.deliver() == (200, "handled")
    assert await failing.store.dead_letters() == []


async def test_the_only_attempt_of_a_sender_is_its_last_chance(tmp_path: Path) -> None:
    once = Failing(tmp_path, Sender(name="once", rules=Rules(attempts=1, retry_seconds=())))
    async with once.receiver:
        assert await once.deliver() == (202, "exhausted")
        assert await once.dead() == 1


@pytest.mark.parametrize(
    ("test_type", "reason"), [(None, "handled"), ("webhook.test", "no_handler")]
)
async def test_a_pattern_matches_no_test_event_of_the_sender(
    test_type: str | None, reason: str
) -> None:
    class Tested(StandardEvent[dict[str, Any]]):
        type: Literal["webhook.test"]

    sender = Sender(name="acme", rules=Rules(test_type=test_type), event_classes=(Tested,))
    receiver = receiver_of(sender)

    @receiver.on("*", name="all")
    async def handle(_: Event[Any]) -> None: ...

    async with receiver, TestSender(receiver, secrets=SECRET) as sending:
        answer = await sending.send(BODY.replace(b"order.paid", b"webhook.test"))
    assert (answer.status, answer.reason) == (200, reason)
