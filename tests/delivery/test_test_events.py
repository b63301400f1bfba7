"""A test event reaches only the handlers that named it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from hookonce import Receiver
from hookonce.events import CommentReceived, Event, WebhookTest
from hookonce.testing import make_event
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = pytest.mark.anyio


async def test_a_test_event_reaches_only_handlers_that_named_it(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    ran: list[str] = []

    def note(name: str, _: Event[Any]) -> None:
        ran.append(name)

    def add(name: str) -> Callable[..., Any]:
        return partial(note, name)

    receiver.on("*", name="every")(add("every"))
    receiver.on("*.*", name="two")(add("two"))
    receiver.on_unknown(name="unknown")(add("unknown"))
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(WebhookTest))).expect(200, "no_handler")
        assert ran == []
        receiver.on(WebhookTest, name="by class")(add("by class"))
        receiver.on("webhook.test", name="by name")(add("by name"))
        receiver.on("*", "webhook.test", name="both")(add("both"))
        (await sender.send(make_event(WebhookTest))).expect(200, "handled")
        assert sorted(ran) == ["both", "by class", "by name"]
        ran.clear()
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        assert sorted(ran) == ["both", "every", "two"]
