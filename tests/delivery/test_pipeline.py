"""A delivery without HTTP goes the same way as one over it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET, answer_of, comment, deliver, receiver_on, sqlite_url
from support.handlers import counting

from hookonce import Context, Outcome
from hookonce.events import CommentReceived
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
    ids=["mapping", "mapping of bytes", "pairs", "iterator", "generator", "pairs of bytes"],
)
async def test_handle_takes_headers_in_any_shape_with_their_hints(
    tmp_path: Path, shape: Callable[[Any], Any]
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    contexts: list[Context] = []

    @receiver.on(CommentReceived)
    async def note(_: CommentReceived, context: Context) -> None:
        contexts.append(context)

    request = signed_request(make_event(CommentReceived), SECRET, attempt=9)
    async with receiver:
        outcome = await receiver.handle(request.body, shape(request.headers))
        assert (outcome.status, outcome.reason) == (200, "handled")
    [context] = contexts
    assert (context.delivery_attempt, context.last_chance) == (9, True)


async def test_a_type_without_a_handler_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    receiver = receiver_on()
    async with receiver:
        for _ in range(2):
            assert answer_of(await deliver(receiver, comment())) == (200, "no_handler")
    said = [record.getMessage() for record in caplog.records if "no handler" in record.getMessage()]
    assert said == ["there is no handler for comment.received; such events are ignored"]
