"""A delivery without HTTP is processed like a delivery over HTTP."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import (
    SECRET,
    answer_of,
    comment,
    deliver,
    long_ago,
    receiver_on,
    sqlite_url,
)
from support.handlers import counting
from support.stores import FaultyInboxStore
from support.waiting import until

from hookonce import Context, Inbox, Outcome
from hookonce.events import CommentReceived
from hookonce.stores.sqlite import SQLiteStore
from hookonce.testing import make_event, signed_request

pytestmark = pytest.mark.anyio


async def test_handle_is_the_whole_pipeline_without_http(tmp_path: Path) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    ran = counting(receiver)
    request = signed_request(event := make_event(CommentReceived), SECRET)
    async with receiver:
        pairs = [(name.encode(), value.encode()) for name, value in request.headers.items()]
        first = await receiver.handle(request.body, pairs)
        assert (first.status, first.reason) == (200, "handled")
        assert first.body == b'{"status": "accepted", "reason": "handled"}'
        second = await receiver.handle(request.body, request.headers)
        assert (second.status, second.reason) == (200, "duplicate")
        third = await receiver.handle(request.tampered().body, request.headers)
        assert third == Outcome(401, "no_matching_signature")
    assert ran == [event.id]


@pytest.mark.parametrize(
    "shape",
    [
        dict,
        lambda headers: {name.encode(): value.encode() for name, value in headers.items()},
        lambda headers: list(headers.items()),
        lambda headers: iter(headers.items()),
        lambda headers: ((name.upper(), value) for name, value in headers.items()),
        lambda headers: [(name.encode(), value.encode()) for name, value in headers.items()],
    ],
    ids=["mapping", "mapping of bytes", "pairs", "items once", "pairs once", "pairs of bytes"],
)
async def test_handle_takes_headers_in_any_shape_with_their_hints(
    tmp_path: Path, shape: Callable[[Any], Any]
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    contexts: list[Context] = []

    @receiver.on(CommentReceived)
    async def note(_: CommentReceived, context: Context) -> None:
        contexts.append(context)

    request = signed_request(comment(created_at=long_ago()), SECRET, attempt=9)
    async with receiver:
        outcome = await receiver.handle(request.body, shape(request.headers))
        assert (outcome.status, outcome.reason) == (200, "handled")
    [context] = contexts
    assert (context.delivery_attempt, context.last_chance) == (9, True)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks are never eager before 3.12")
@pytest.mark.parametrize("inbox", [None, Inbox()], ids=["inline", "inbox"])
async def test_a_loop_whose_tasks_are_eager_handles_an_event(
    tmp_path: Path, inbox: Inbox | None
) -> None:
    asyncio.get_running_loop().set_task_factory(vars(asyncio)["eager_task_factory"])
    receiver = receiver_on(sqlite_url(tmp_path) if inbox else "memory://", inbox=inbox)
    ran = counting(receiver)
    async with receiver.lifespan():
        outcome = await deliver(receiver, event := comment())
        assert outcome.status == (202 if inbox else 200)
        await until(lambda: ran)
    assert ran == [event.id]


async def test_a_type_without_a_handler_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    receiver = receiver_on()
    async with receiver:
        for _ in range(2):
            assert answer_of(await deliver(receiver, comment())) == (200, "no_handler")
    said = [record.getMessage() for record in caplog.records if "no handler" in record.getMessage()]
    assert said == ["there is no handler for comment.received; such events are ignored"]


async def test_an_event_of_another_id_than_was_signed_is_a_dead_letter(tmp_path: Path) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    ran = counting(receiver)
    request = signed_request(comment("evt_1"), SECRET, message_id="evt_2")
    async with receiver:
        outcome = await receiver.handle(request.body, request.headers)
        assert answer_of(outcome) == (202, "quarantined")
        letter = await receiver.dead.show("evt_2")
    assert letter is not None
    assert letter.delivery.body == request.body
    assert ran == []


async def test_an_event_without_a_handler_here_asks_the_store_only_if_another_may_be_outstanding(
    tmp_path: Path,
) -> None:
    """The receiver asks the store only at a retry, and only if no worker handles the events."""
    for inbox, attempt, calls in ((None, 1, 0), (None, 2, 1), (Inbox(embedded=False), 2, 0)):
        store = FaultyInboxStore(SQLiteStore(tmp_path / f"{inbox is None}-{attempt}.db"))
        receiver = receiver_on(store, inbox=inbox)
        async with receiver:
            assert answer_of(await deliver(receiver, comment(), attempt)) == (200, "no_handler")
            assert store.calls["claim"] == calls
        assert store.calls["enqueue"] == 0
