"""For every sender, a receiver can read the sample events of that sender."""

import json
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from hookonce import Event, Receiver
from hookonce.events import Envelope
from hookonce.events.openai import OPENAI_EVENT_CLASSES, ResponseCompleted
from hookonce.samples.fields import body_fields
from hookonce.senders import Sender, openai, standard, svix
from hookonce.testing import TestSender, event_body, make_event
from hookonce.verification.secrets import new_secret

SECRET = new_secret()


class UserCreated(Event[dict[str, str]]):
    type: Literal["user.created"]


@pytest.mark.parametrize(("event_type", "event_class"), OPENAI_EVENT_CLASSES.items())
def test_an_event_of_openai_can_be_made_by_its_type_or_class(
    event_type: str, event_class: type[Event[Any]]
) -> None:
    assert type(make_event(event_type, sender=openai)) is event_class
    assert type(make_event(event_class)) is event_class


def test_a_sample_body_of_openai_has_the_documented_fields() -> None:
    moment = datetime(2024, 6, 23, 18, 40, tzinfo=UTC)
    body = event_body("response.completed", created_at=moment, data={"id": "resp_1"}, sender=openai)
    assert json.loads(body) == {
        "id": "evt_abc123",
        "object": "event",
        "type": "response.completed",
        "created_at": 1719168000,
        "data": {"id": "resp_1"},
    }
    with pytest.raises(ValueError, match="did you mean 'id'"):
        event_body("response.completed", data={"idd": "resp_1"}, sender=openai)


@pytest.mark.anyio
@pytest.mark.parametrize("sender", [openai, standard, svix])
async def test_a_sample_event_of_each_sender_is_handled(sender: Sender) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", sender=sender)
    seen: list[Event[Any]] = []

    @receiver.on("*", name="note")
    async def note(event: Event[Any]) -> None:
        seen.append(event)

    made: Event[Any] = (
        make_event(ResponseCompleted, event_id="wh_1")
        if sender is openai
        else make_event(UserCreated, event_id="msg_1", data={"name": "Ada"}, sender=sender)
    )
    async with TestSender(receiver, secrets=SECRET, sender=sender, path="/") as client:
        (await client.send(made)).expect(200, "handled")
        (await client.send(made, attempt=2)).expect(200, "duplicate")
    assert [(event.id, event.type) for event in seen] == [(made.id, made.type)]
    assert seen[0].created_at == made.created_at


def test_no_body_is_made_for_an_envelope_with_a_function() -> None:
    acme = Sender(name="acme", envelope=Envelope(type=lambda body: body["kind"]))
    with pytest.raises(TypeError, match="give the body as bytes"):
        event_body("user.created", sender=acme)


class Owner(BaseModel):
    name: str


class Moved(Event[Owner]):
    type: Literal["moved"]
    body_id: str = ""
    tenant_id: str = ""


@pytest.mark.parametrize(
    ("envelope", "names", "below"),
    [
        (Envelope(), {"type", "timestamp", "data", "id", "tenantId"}, {"data": {"name"}}),
        (
            Envelope(type="meta.kind", created_at="meta.at", data="body.owner"),
            {"meta", "body", "id", "tenantId"},
            {"meta": {"kind", "at"}, "body": {"owner"}},
        ),
        (Envelope(created_at=None, data=None), {"type", "name", "id", "tenantId"}, {}),
    ],
)
def test_the_fields_of_a_body_are_where_its_envelope_has_them(
    envelope: Envelope, names: set[str], below: dict[str, set[str]]
) -> None:
    fields = body_fields(Moved, envelope)
    assert set(fields.names.values()) == names
    assert {name: set(inner.names) for name, inner in fields.objects.items()} == below
    assert fields.wire_name("tenant_id", place=(), known=()) == "tenantId"
    with pytest.raises(ValueError, match="no field 'createdAt'"):
        body_fields(Moved, Envelope(created_at=None)).wire_name("createdAt", place=(), known=())
