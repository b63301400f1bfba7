"""The pytest helpers take the sender from the receiver under test."""

from dataclasses import replace
from typing import Any, Literal

import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import Mount

from hookonce import Event, Receiver
from hookonce.events import CommentReceived
from hookonce.events.openai import ResponseCompleted
from hookonce.events.standard import StandardEvent
from hookonce.http.app import ASGIApp
from hookonce.integrations.fastapi import mount
from hookonce.senders import Envelope, Hints, Sender, openai, publishing, standard, svix
from hookonce.testing import TestSender, make_event
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = pytest.mark.anyio


class Booking(BaseModel):
    seats: int


class BookingMade(Event[Booking]):
    type: Literal["booking.made"]


class ContactCreated(StandardEvent[dict[str, str]]):
    type: Literal["contact.created"]


acme = Sender(
    name="acme",
    headers=("acme",),
    envelope=Envelope(type="meta.kind", created_at="meta.at", data="payload", times="seconds"),
    hints=Hints(event_type="kind", attempt="try"),
)
CASES: list[Any] = [
    pytest.param(publishing, CommentReceived, {}, id="publishing"),
    pytest.param(standard, ContactCreated, {"name": "Ada"}, id="standard"),
    pytest.param(svix, BookingMade, {"seats": 2}, id="svix"),
    pytest.param(openai, ResponseCompleted, {"id": "resp_1"}, id="openai"),
    pytest.param(acme, BookingMade, {"seats": 3}, id="acme"),
]


def in_starlette(receiver: Receiver) -> ASGIApp:
    return Starlette(
        routes=[Mount("/in", routes=receiver.routes("/hooks"))], lifespan=receiver.lifespan
    )


def in_fastapi(receiver: Receiver) -> ASGIApp:
    app = FastAPI(lifespan=receiver.lifespan)
    mount(app, receiver, "/hooks")
    return app


@pytest.mark.parametrize(
    ("around", "path"),
    [(lambda receiver: receiver, "/webhooks"), (in_starlette, "/in/hooks"), (in_fastapi, "/hooks")],
    ids=["alone", "in starlette", "in fastapi"],
)
@pytest.mark.parametrize(("sender", "event_class", "data"), CASES)
async def test_the_fixture_sends_as_the_sender_of_the_receiver_does(
    sender: Sender,
    event_class: type[Event[Any]],
    data: dict[str, Any],
    around: Any,
    path: str,
    webhook_secret: str,
    webhook_sender: SenderFactory,
) -> None:
    receiver = Receiver(secrets=webhook_secret, store="memory://", sender=sender)
    seen: list[Event[Any]] = []

    @receiver.on(event_class, name="note")
    async def note(event: Event[Any]) -> None:
        seen.append(event)

    made = make_event(event_class, data=data, sender=receiver.sender)
    async with webhook_sender(around(receiver), path=path) as client:
        (await client.send(made)).expect(200, "handled")
        (await client.send(made, attempt=2)).expect(200, "duplicate")
        (await client.send(made, tamper=True)).expect(401)
    assert [(type(one), one.id, one.data) for one in seen] == [(event_class, made.id, made.data)]


@pytest.mark.parametrize("sender", [publishing, openai])
async def test_copies_and_attempts_of_bytes_are_of_one_event(
    sender: Sender, webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    """The id in OpenAI's bodies is not the id that is signed."""
    receiver = Receiver(secrets=webhook_secret, store="memory://", sender=sender)
    runs: list[str] = []

    @receiver.on("*", name="note")
    async def note(event: Event[Any]) -> None:
        runs.append(event.id)
        if len(runs) == 1:
            raise ValueError("the first attempt fails")

    body = b'{"id": "evt_1", "type": "a.b", "created_at": 1, "createdAt": "2026-01-01T00:00:00Z",'
    body += b' "workspaceId": "ws_1", "data": {}}'
    async with webhook_sender(receiver) as client:
        answers = await client.send_until_accepted(body)
        assert [answer.status for answer in answers] == [500, 200]
        await client.send_copies(body, 3)
    assert len(set(runs[:2])) == 1
    assert (runs[0] == "evt_1") == (sender is publishing)


def mounted(*receivers: Receiver) -> ASGIApp:
    routes = [route for one in receivers for route in one.routes(f"/{one.endpoint}")]
    return Starlette(routes=routes)


async def test_the_path_decides_between_receivers_of_several_senders(
    webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    first, second = (
        Receiver(secrets=webhook_secret, store="memory://", sender=sender, endpoint=sender.name)
        for sender in (svix, acme)
    )
    app = mounted(first, second)
    for path in ("/svix", "/acme", "/acme/"):
        client = webhook_sender(app, path=path)
        (await client.send(make_event(BookingMade, data={"seats": 1}))).expect(200)
    with pytest.raises(ValueError, match="several senders, and none at '/hooks'"):
        TestSender(app, secrets=webhook_secret, path="/hooks")
    given = webhook_sender(app, path="/hooks", sender=replace(svix, name="other"))
    (await given.send(b"{}")).expect(404)
