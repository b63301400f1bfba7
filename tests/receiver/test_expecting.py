"""`Receiver.expecting` waits for a program's events; a poll finds results without events."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from support.deliveries import SECRET, answer_of, comment, deliver

from hookonce import Receiver
from hookonce.errors import WebhookError
from hookonce.events import ChannelUnhealthy, CommentReceived
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def some_turns(count: int) -> None:
    """Let the event loop run for this many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver(secrets=SECRET, store="memory://")


async def test_an_event_of_the_block_is_given_even_if_it_came_before_anybody_waited(
    receiver: Receiver,
) -> None:
    async with receiver.expecting(CommentReceived, within=5) as expected:
        await deliver(receiver, comment("evt_1"))
        found: CommentReceived = await expected.first()
    assert found.id == "evt_1"


async def test_an_event_that_came_before_the_block_is_given_if_the_condition_names_it(
    receiver: Receiver,
) -> None:
    await deliver(receiver, comment("evt_1"))
    await deliver(receiver, comment("evt_2"))
    async with receiver.expecting(
        CommentReceived, where=lambda event: event.id == "evt_2", within=5
    ) as expected:
        assert (await expected.first()).id == "evt_2"
    async with receiver.expecting(CommentReceived, within=0.05) as expected:
        with pytest.raises(TimeoutError):
            await expected.first()


async def test_an_event_of_more_than_a_minute_ago_is_not_given() -> None:
    now = time.time()
    receiver = Receiver(secrets=SECRET, store="memory://", clock=lambda: now)
    await deliver(receiver, comment("evt_1"))
    now += 61
    async with receiver.expecting(
        CommentReceived, where=lambda event: event.id == "evt_1", within=0.05
    ) as expected:
        with pytest.raises(TimeoutError):
            await expected.first()


async def test_an_event_that_is_being_handled_when_the_block_begins_is_given(
    receiver: Receiver,
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None:
        began.set()
        await may_end.wait()

    delivering = asyncio.create_task(deliver(receiver, comment("evt_1")))
    await began.wait()
    async with receiver.expecting(
        CommentReceived, where=lambda event: event.id == "evt_1", within=5
    ) as expected:
        may_end.set()
        assert (await expected.first()).id == "evt_1"
    await delivering


async def test_an_event_that_came_early_is_found_without_a_poll(receiver: Receiver) -> None:
    async def poll() -> str:
        raise AssertionError("it was asked")

    await deliver(receiver, comment("evt_1"))
    async with receiver.expecting(
        CommentReceived, where=lambda event: event.id == "evt_1", within=5, poll=poll
    ) as expected:
        assert isinstance(await expected.first(), CommentReceived)


async def test_only_events_of_the_classes_and_the_condition_are_given_each_once(
    receiver: Receiver,
) -> None:
    async with receiver.expecting(
        CommentReceived, where=lambda event: event.id != "evt_1", within=5
    ) as expected:
        await deliver(receiver, make_event(ChannelUnhealthy))
        for event_id in ("evt_1", "evt_2", "evt_2", "evt_3"):
            await deliver(receiver, comment(event_id))
        assert [(await expected.first()).id for _ in range(2)] == ["evt_2", "evt_3"]


async def test_without_an_event_in_time_first_raises_a_timeout(receiver: Receiver) -> None:
    async with receiver.expecting(CommentReceived, within=0.05) as expected:
        with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
            await expected.first()


async def test_the_poll_finds_results_whose_event_came_earlier_or_never_comes(
    receiver: Receiver,
) -> None:
    answers: list[str | None] = [None, None, "published"]

    async def poll() -> str | None:
        return answers.pop(0)

    async with receiver.expecting(
        CommentReceived, within=5, poll=poll, poll_every=0.001
    ) as expected:
        assert await expected.first() == "published"
    assert answers == []


async def test_a_poll_that_fails_at_the_service_does_not_end_the_wait(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    async def poll() -> str | None:
        raise WebhookError("the service is down")

    async with receiver.expecting(CommentReceived, within=5, poll=poll) as expected:
        waiting = asyncio.create_task(expected.first())
        await asyncio.sleep(0)
        await deliver(receiver, comment("evt_1"))
        found = await waiting
    assert isinstance(found, CommentReceived)
    assert "the service is down" in caplog.text


async def test_a_condition_that_raises_fails_the_wait_and_not_the_delivery(
    receiver: Receiver,
) -> None:
    def where(_: Any) -> bool:
        raise KeyError("no such target")

    async with receiver.expecting(CommentReceived, where=where, within=5) as expected:
        assert (await deliver(receiver, comment())).status == 200
        with pytest.raises(KeyError):
            await expected.first()


async def test_after_the_block_no_events_are_observed(receiver: Receiver) -> None:
    async with receiver.expecting(CommentReceived, within=5) as expected:
        pass
    await deliver(receiver, comment())
    assert not expected._came


@pytest.mark.parametrize("turns", range(4))
async def test_an_event_that_arrives_while_its_wait_is_cancelled_stays_for_the_next(
    receiver: Receiver, turns: int
) -> None:
    """The next wait gets the event, however many loop turns pass before the cancellation."""
    async with receiver.expecting(CommentReceived, within=5) as expected:
        waiting = asyncio.create_task(expected.first())
        await some_turns(3)
        assert answer_of(await deliver(receiver, comment("evt_1"))) == (200, "no_handler")
        await some_turns(turns)
        waiting.cancel()
        try:
            found = await waiting
        except asyncio.CancelledError:
            found = await expected.first()
        assert found.id == "evt_1"


async def test_each_event_wakes_one_of_several_that_wait(receiver: Receiver) -> None:
    async with receiver.expecting(CommentReceived, within=5) as expected:
        waits = [asyncio.create_task(expected.first()) for _ in range(3)]
        await some_turns(3)
        for event_id in ("evt_1", "evt_2", "evt_3"):
            await deliver(receiver, comment(event_id))
        assert {event.id for event in await asyncio.gather(*waits)} == {"evt_1", "evt_2", "evt_3"}


async def test_an_event_that_cannot_be_expected_is_refused(receiver: Receiver) -> None:
    with pytest.raises(TypeError, match="at least one event class"):
        receiver.expecting()
    with pytest.raises(ValueError, match="within takes a finite number of seconds above 0"):
        receiver.expecting(CommentReceived, within=0)
    with pytest.raises(RuntimeError, match="inside the block"):
        await receiver.expecting(CommentReceived).first()
    with pytest.raises(TypeError, match="give a poll"):
        receiver.expecting(CommentReceived, poll_every=1)
