"""Answers to events that are handled, done, in flight, failed or not done in time.

The tests of outcomes go through a real uvicorn. ``check_answer`` checks the rules that every answer
follows, and ``nothing_secret_is_logged`` checks that no log line contains a secret.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET, comment, is_done, sqlite_url
from support.handlers import Handler
from support.servers import delivering, retry_after
from support.waiting import until, until_async

from hookonce import Limits, Receiver, Retry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_secret_is_logged")]


# The event is handled now, or was handled before: answer 200


async def test_an_event_is_handled_and_its_duplicates_are_answered_200_without_a_run(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        (await sender.send(event)).expect(200, "handled")
        (await sender.send(event, attempt=2)).expect(200, "duplicate")
        (await sender.send(event)).expect(200, "duplicate")
        assert handler.ids == [event.id]
        other = comment()
        (await sender.send(other)).expect(200, "handled")
        assert handler.ids == [event.id, other.id]


async def test_each_endpoint_handles_an_event_of_its_own_once(tmp_path: Path) -> None:
    event = comment()
    for endpoint in ("bakery", "cafe-2"):
        receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path), endpoint=endpoint)
        handler = Handler(receiver)
        async with delivering(receiver, SECRET) as sender:
            (await sender.send(event)).expect(200, "handled")
            (await sender.send(event)).expect(200, "duplicate")
        assert handler.runs == 1


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_an_event_is_handled_through_either_http_implementation(http: Any) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handler = Handler(receiver)
    async with delivering(receiver, SECRET, http=http) as sender:
        (await sender.send(comment())).expect(200, "handled")
    assert handler.runs == 1


# The event is in flight elsewhere: wait, then answer 200 or 503


async def test_a_copy_of_an_event_in_flight_waits_and_is_answered_200_when_the_event_is_done(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handler = Handler(receiver)
    gate = handler.waits()
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        first = asyncio.create_task(sender.send(event))
        await until(lambda: handler.runs == 1)
        copies = [asyncio.create_task(sender.send(event, attempt=2)) for _ in range(3)]
        done, _ = await asyncio.wait({first, *copies}, timeout=0.2)
        assert not done, "a copy was answered while the event was still in flight"
        gate.set()
        (await first).expect(200, "handled")
        for copy in copies:
            (await copy).expect(200, "duplicate")
    assert handler.runs == 1


async def test_a_copy_is_answered_503_with_retry_after_when_the_first_is_not_done_in_time(
    any_store: str,
) -> None:
    limits = Limits(answer_seconds=0.3, lease_seconds=10)
    receiver = Receiver(secrets=SECRET, store=any_store, limits=limits)
    handler = Handler(receiver)
    gate = handler.waits()
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        first = asyncio.create_task(sender.send(event))
        await until(lambda: handler.runs == 1)
        began = time.monotonic()
        copy = (await sender.send(event, attempt=2)).expect(503, "in_flight")
        assert time.monotonic() - began < 2
        assert 1 <= retry_after(copy) <= 10
        (await first).expect(503, "still_running")
        gate.set()
        await until_async(lambda: is_done(sender, event))
    assert handler.runs == 1


async def test_a_waiting_copy_runs_the_event_itself_when_the_first_attempt_fails(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handler = Handler(receiver)
    gate = asyncio.Event()

    async def fail() -> None:
        await gate.wait()
        handler.succeeds()
        raise ValueError("the first attempt fails")

    handler.does = fail
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        first = asyncio.create_task(sender.send(event))
        await until(lambda: handler.runs == 1)
        copy = asyncio.create_task(sender.send(event, attempt=2))
        await asyncio.wait({copy}, timeout=0.1)
        gate.set()
        (await first).expect(500, "handler_failed")
        (await copy).expect(200, "handled")
    assert handler.runs == 2


async def test_a_copy_at_another_receiver_on_the_same_file_waits_for_the_first(
    tmp_path: Path,
) -> None:
    receivers = [Receiver(secrets=SECRET, store=sqlite_url(tmp_path)) for _ in range(2)]
    here, elsewhere = (Handler(receiver) for receiver in receivers)
    gate = here.waits()
    async with (
        delivering(receivers[0], SECRET) as sender,
        delivering(receivers[1], SECRET) as other_sender,
    ):
        event = comment()
        first = asyncio.create_task(sender.send(event))
        await until(lambda: here.runs == 1)
        copy = asyncio.create_task(other_sender.send(event, attempt=2))
        done, _ = await asyncio.wait({copy}, timeout=0.2)
        assert not done
        gate.set()
        (await first).expect(200, "handled")
        (await copy).expect(200, "duplicate")
    assert (here.runs, elsewhere.runs) == (1, 0)


async def test_a_copy_at_another_receiver_is_answered_503_when_the_first_is_not_done_in_time(
    tmp_path: Path,
) -> None:
    limits = Limits(answer_seconds=0.3, lease_seconds=20)
    receivers = [
        Receiver(secrets=SECRET, store=sqlite_url(tmp_path), limits=limits) for _ in range(2)
    ]
    here, elsewhere = (Handler(receiver) for receiver in receivers)
    gate = here.waits()
    async with (
        delivering(receivers[0], SECRET) as sender,
        delivering(receivers[1], SECRET) as other_sender,
    ):
        event = comment()
        first = asyncio.create_task(sender.send(event))
        await until(lambda: here.runs == 1)
        copy = (await other_sender.send(event, attempt=2)).expect(503, "in_flight")
        assert 1 <= retry_after(copy) <= 20
        gate.set()
        await first
    assert elsewhere.runs == 0


# A handler failed: release the event, answer 500


async def test_a_failed_handler_is_answered_500_and_the_retry_runs_it_again(any_store: str) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handler = Handler(receiver)
    handler.raises(ValueError("a detail that is nobody's business"))
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        answer = (await sender.send(event)).expect(500, "handler_failed")
        assert b"nobody's business" not in answer.body
        (await sender.send(event, attempt=2)).expect(500, "handler_failed")
        handler.succeeds()
        (await sender.send(event, attempt=3)).expect(200, "handled")
        (await sender.send(event, attempt=4)).expect(200, "duplicate")
    assert handler.runs == 3


async def test_a_requested_retry_is_answered_503_with_its_wait(any_store: str) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        handler.raises(Retry(after=77))
        answer = (await sender.send(event)).expect(503, "retry_requested")
        assert retry_after(answer) == 77
        handler.raises(Retry())
        answer = (await sender.send(event)).expect(503, "retry_requested")
        assert retry_after(answer) >= 1
        handler.succeeds()
        (await sender.send(event)).expect(200, "handled")


# The answer budget is spent: answer 503, and let the handler go on


async def test_a_handler_beyond_the_answer_budget_goes_on_and_the_retry_runs_nothing(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store, limits=Limits(answer_seconds=0.3))
    handler = Handler(receiver)
    gate = handler.waits()
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        began = time.monotonic()
        answer = (await sender.send(event)).expect(503, "still_running")
        assert 0.3 <= time.monotonic() - began < 2
        assert retry_after(answer) >= 1
        gate.set()
        await until_async(lambda: is_done(sender, event))
        (await sender.send(event, attempt=2)).expect(200, "duplicate")
    assert handler.runs == 1


async def test_a_handler_that_fails_beyond_the_answer_budget_is_run_again_by_the_retry(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store, limits=Limits(answer_seconds=0.3))
    handler = Handler(receiver)
    gate = asyncio.Event()

    async def fail() -> None:
        await gate.wait()
        handler.succeeds()
        raise ValueError("too late and wrong")

    handler.does = fail
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        (await sender.send(event)).expect(503, "still_running")
        gate.set()
        (await sender.send(event, attempt=2)).expect(200, "handled")
    assert handler.runs == 2


async def test_heartbeats_keep_the_claim_of_a_handler_beyond_its_lease(tmp_path: Path) -> None:
    limits = Limits(answer_seconds=0.2, lease_seconds=0.6)
    receivers = [
        Receiver(secrets=SECRET, store=sqlite_url(tmp_path), limits=limits) for _ in range(2)
    ]
    here, elsewhere = (Handler(receiver) for receiver in receivers)
    gate = here.waits()
    async with (
        delivering(receivers[0], SECRET) as sender,
        delivering(receivers[1], SECRET) as other_sender,
    ):
        event = comment()
        began = time.monotonic()
        (await sender.send(event)).expect(503, "still_running")
        while time.monotonic() - began < 2.5 * limits.lease_seconds:
            (await other_sender.send(event, attempt=2)).expect(503, "in_flight")
        gate.set()
        await until_async(lambda: is_done(other_sender, event))
    assert (here.runs, elsewhere.runs) == (1, 0)
