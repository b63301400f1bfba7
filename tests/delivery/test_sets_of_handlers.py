"""Processes with different sets of handlers share one store."""

from functools import partial
from typing import Any

import pytest
from support.deliveries import answer_of, deliver, empty_inbox, long_ago, receiver_on
from support.handlers import on, succeed
from support.waiting import until, until_async

from hookonce import Inbox, Receiver, Retry
from hookonce.events import CommentReceived, Event
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio


async def test_a_process_without_the_handler_that_failed_does_not_complete_its_event(
    durable_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = receiver_on(durable_url), receiver_on(durable_url)
    ran, fails = list[str](), [True]

    async def both(_: CommentReceived) -> None:
        ran.append("both")

    async def only_new(_: CommentReceived) -> None:
        ran.append("only new")
        if fails:
            raise ValueError("not yet")

    for receiver in (old, new):
        on(receiver, "both", both)
    on(new, "only-new", only_new)
    async with old, new:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(new, event)) == (500, "handler_failed")
        assert answer_of(await deliver(old, event, attempt=2)) == (503, "handler_absent")
        assert "only-new" in caplog.text
        readiness = await old.check()
        assert readiness.ready, "a rolling deployment is no fault"
        [warning] = [text for text in readiness.warnings if "only-new" in text]
        assert "waits for the handler only-new, which this process does not have" in warning
        assert "; after a deployment, import the module" in warning
        fails.clear()
        assert answer_of(await deliver(new, event, attempt=3)) == (200, "handled")
        assert answer_of(await deliver(old, event, attempt=4)) == (200, "duplicate")
    assert ran == ["both", "only new", "only new"]


async def test_a_handler_that_here_is_for_other_events_still_counts_as_outstanding(
    durable_url: str,
) -> None:
    old, new = receiver_on(durable_url), receiver_on(durable_url)
    on(old, "fails", _fail)
    new.on("channel.*", name="fails")(_fail)
    on(new, "stays", succeed)
    async with old, new:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(old, event)) == (500, "handler_failed")
        assert answer_of(await deliver(new, event, attempt=2)) == (503, "handler_absent")


async def test_a_process_without_handlers_leaves_an_event_to_the_outstanding_handler(
    durable_url: str,
) -> None:
    bare, full = receiver_on(durable_url), receiver_on(durable_url)
    on(full, "fails", _fail)
    async with bare, full:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(bare, event)) == (200, "no_handler")
        assert answer_of(await deliver(full, event)) == (500, "handler_failed")
        assert answer_of(await deliver(bare, event, attempt=2)) == (503, "handler_absent")
        unknown_here = make_event(CommentReceived)
        assert answer_of(await deliver(bare, unknown_here, attempt=2)) == (200, "no_handler")


async def _fail(_: Event[Any]) -> None:
    raise ValueError("x")


async def test_a_handler_that_is_gone_everywhere_makes_a_dead_letter_that_names_it(
    durable_url: str,
) -> None:
    old, new = receiver_on(durable_url), receiver_on(durable_url)
    for receiver in (old, new):
        on(receiver, "stays", succeed)
    on(old, "removed", _fail)
    async with old, new:
        event = make_event(CommentReceived, created_at=long_ago())
        await deliver(old, event)
        assert answer_of(await deliver(new, event, attempt=9)) == (202, "exhausted")
        letter = await new.dead.show(event.id)
        assert letter is not None
        assert "removed" in letter.error
        assert letter.outstanding == {"removed"}
        assert answer_of(await new.dead.replay(event.id)) == (202, "exhausted")
        assert await new.dead.show(event.id) is not None


async def test_in_the_inbox_an_event_waits_for_the_worker_that_knows_its_handler(
    durable_url: str,
) -> None:
    inbox = Inbox(backoff=0.0, max_attempts=1000, embedded=False)
    old, new = receiver_on(durable_url, inbox=inbox), receiver_on(durable_url, inbox=inbox)
    ran, fails = list[str](), [True]

    async def only_new(_: CommentReceived) -> None:
        ran.append("only new")
        if fails:
            raise Retry(after=0)

    for receiver in (old, new):
        on(receiver, "both", succeed)
    on(new, "only-new", only_new)
    async with old, new:
        event = make_event(CommentReceived)
        await deliver(old, event)
        async with new.working():
            await until(lambda: ran)
        assert (await old.waiting.stats()).depth == 1
        async with old.working():
            await until_async(partial(_has_tried, old, event, 3))
        fails.clear()
        async with new.working():
            await empty_inbox(new)
    assert set(ran) == {"only new"}


async def _has_tried(receiver: Receiver, event: Event[Any], more: int) -> bool:
    entry = await receiver.waiting.show(event.id)
    return entry is not None and entry.attempts >= more


async def test_a_new_handler_does_not_run_for_events_completed_before(
    durable_url: str,
) -> None:
    old, new = receiver_on(durable_url), receiver_on(durable_url)
    ran = list[str]()

    async def note(event: CommentReceived) -> None:
        ran.append(event.id)

    on(old, "stays", succeed)
    on(new, "stays", succeed)
    on(new, "late", note)
    async with old, new:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(old, event)) == (200, "handled")
        assert answer_of(await deliver(new, event, attempt=2)) == (200, "duplicate")
    assert ran == []
