"""The format of events, and the endpoints that receive them: Events (interface v1)."""

import base64
import hashlib
import hmac
import json
import re
from datetime import UTC, datetime

import pytest
import standardwebhooks
from freezegun import freeze_time
from support.recorder import Received, Recorder, add_endpoint, answering

from hookonce import Receiver, verify
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.emulator.rules import SUBSCRIBABLE
from hookonce.events import EVENT_CLASSES, CommentReceived, Event, EventParser, PostTargetFailed
from hookonce.senders import publishing
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 5, 6, 12, tzinfo=UTC).timestamp()
DOCUMENTED = [
    "post.target.published",
    "post.target.failed",
    "comment.received",
    "message.received",
    "channel.unhealthy",
    "channel.disconnected",
]


def reference_accepts(one: Received, secret: str, signature: str | None = None) -> bool:
    """Return whether the reference library accepts a request at the time of its arrival."""
    headers = one.headers | {"webhook-signature": signature or one.headers["webhook-signature"]}
    with freeze_time(datetime.fromtimestamp(one.at, UTC)):
        try:
            standardwebhooks.Webhook(secret).verify(one.body, headers)
        except standardwebhooks.WebhookVerificationError:
            return False
    return True


# Event types and rules 1 to 3


def test_the_documented_types_can_be_subscribed_to_and_no_others() -> None:
    """Interface, Events, Event types: six types; webhook.test cannot be subscribed to."""
    assert list(SUBSCRIBABLE) == DOCUMENTED


@pytest.mark.parametrize("event_type", ["webhook.test", "post.deleted", "", "comment.*"])
def test_a_type_that_cannot_be_subscribed_to_is_refused(event_type: str) -> None:
    """Interface, Events, Event types: webhook.test cannot be subscribed to."""
    with pytest.raises(ValueError, match=re.escape(repr(event_type))):
        EmulatedService(Recorder(), events=["comment.received", event_type])


async def test_emit_refuses_the_test_event() -> None:
    """Interface, Events, Event types: the service sends webhook.test only on request."""
    app = Recorder()
    async with EmulatedService(app) as service:
        with pytest.raises(ValueError, match="call `test` instead"):
            await service.emit("webhook.test")
        assert app.received == []
        assert service.deliveries() == []
        await service.test()
    assert [one.headers["example-event-type"] for one in app.received] == ["webhook.test"]


@pytest.mark.parametrize("subscribed", DOCUMENTED)
async def test_an_endpoint_receives_only_what_it_subscribed_to(subscribed: str) -> None:
    """Interface, Events, rule 1: an endpoint receives only the events it subscribed to."""
    app = Recorder()
    async with EmulatedService(app, events=[subscribed]) as service:
        emitted = [await service.emit(event_type) for event_type in DOCUMENTED]
        await service.emit("something.new")
        logged = service.deliveries()
    assert app.ids == [event.id for event in emitted if event.type == subscribed]
    assert [row.event_id for row in logged] == app.ids


async def test_an_event_has_the_same_id_at_every_endpoint() -> None:
    """Interface, Events, Delivery format: webhook-id is the event id, so two endpoints see the
    same one.
    """
    first, second, third = Recorder(), Recorder(), Recorder()
    async with EmulatedService(first) as service:
        add_endpoint(service, second)
        add_endpoint(service, third, events=("comment.received",), name="third")
        event = await service.emit(PostTargetFailed)
        own, other = (service.secret(endpoint.id) for endpoint in service.endpoints[:2])
    assert first.ids == second.ids == [event.id]
    assert third.ids == []
    assert first.received[0].body == second.received[0].body
    assert reference_accepts(first.received[0], own)
    assert reference_accepts(second.received[0], other)
    assert not reference_accepts(first.received[0], other), "each endpoint has its own secret"


async def test_an_event_can_be_sent_to_one_endpoint() -> None:
    first, second = Recorder(), Recorder()
    async with EmulatedService(first) as service:
        row = add_endpoint(service, second)
        event = await service.emit("comment.received", endpoint=row.id)
        with pytest.raises(LookupError, match="no endpoint 'wh_unknown'"):
            await service.emit("comment.received", endpoint="wh_unknown")
    assert (first.ids, second.ids) == ([], [event.id])


async def test_an_event_is_sent_at_once() -> None:
    """Interface, Events, rule 2: events are sent as soon as the result is known."""
    clock = VirtualClock(NOON)
    app = Recorder(clock=clock)
    async with EmulatedService(app, clock=clock) as service:
        await service.emit("post.target.published")
        assert [one.at for one in app.received] == [NOON]


# Delivery format: the body


@pytest.mark.parametrize("event_type", [*DOCUMENTED, "webhook.test"])
async def test_the_envelope_has_the_documented_fields(event_type: str) -> None:
    """Interface, Events, Delivery format: id, type, createdAt, workspaceId and data."""
    clock = VirtualClock(NOON + 0.0625)
    app = Recorder(clock=clock)
    async with EmulatedService(app, clock=clock) as service:
        if event_type == "webhook.test":
            await service.test()
        else:
            await service.emit(event_type)
        workspace_id = service.workspace.id
    body = json.loads(app.received[0].body)
    assert set(body) == {"id", "type", "createdAt", "workspaceId", "data"}
    assert re.fullmatch(r"evt_\w+", body["id"])
    assert body["type"] == event_type
    assert body["createdAt"] == "2026-05-06T12:00:00.062Z"
    assert body["workspaceId"] == workspace_id != ""
    assert isinstance(body["data"], dict)
    assert (
        type(EventParser(EVENT_CLASSES.values()).parse(app.received[0].body))
        is (EVENT_CLASSES[event_type])
    ), "the data has the shape of its resource"


async def test_a_comment_carries_its_post_and_its_parent() -> None:
    """Interface, Events, Delivery format: for comment.received data is a Comment plus postId and
    parentId.
    """
    app = Recorder()
    async with EmulatedService(app) as service:
        await service.emit(CommentReceived, data={"text": "Olá 🍞", "parentId": "cmt_1"})
    data = json.loads(app.received[0].body)["data"]
    documented = {"id", "text", "status", "isHidden", "channelId", "platform", "externalPostId"}
    documented |= {"authorUsername", "authorName", "createdAt"}
    assert set(data) == documented | {"postId", "parentId"}
    assert (data["text"], data["parentId"]) == ("Olá 🍞", "cmt_1")


async def test_emit_sends_an_event_unchanged_or_makes_one_from_data() -> None:
    app = Recorder()
    async with EmulatedService(app) as service:
        made = await service.emit("comment.received", event_id="evt_mine")
        assert made.id == "evt_mine"
        again = await service.emit(made)
        assert again is made
        with pytest.raises(ValueError, match="as it is"):
            await service.emit(made, data={"text": "x"})
        with pytest.raises(ValueError, match=r"data\.text"):
            await service.emit("comment.received", data={"text": 5})
    assert app.ids == ["evt_mine", "evt_mine"]
    assert app.received[0].body == app.received[1].body


async def test_the_body_is_the_same_in_every_attempt_byte_for_byte() -> None:
    """Interface, Events, Delivery behaviour: the nine attempts are attempts at one event."""
    clock = VirtualClock()
    app = Recorder(500, clock)
    async with EmulatedService(app, clock=clock) as service:
        await service.emit("comment.received", data={"text": "é \u2028 🍞"})
        await service.settle()
    assert len(app.received) == 9
    assert len({one.body for one in app.received}) == 1


# Delivery format: the headers


@pytest.mark.parametrize("name", ["example", "postline"])
async def test_every_documented_header_is_there(name: str) -> None:
    """Interface, Events, Delivery format: the table of headers."""
    clock = VirtualClock(NOON + 0.7)
    app = Recorder(answering(500, 204), clock)
    async with EmulatedService(app, clock=clock, service=name) as service:
        event = await service.emit("channel.unhealthy")
        await service.advance(minutes=1)
    first, second = app.received
    for number, one in enumerate((first, second), start=1):
        assert one.headers["webhook-id"] == event.id == json.loads(one.body)["id"]
        assert one.headers["webhook-timestamp"] == str(int(one.at))
        assert re.fullmatch(r"v1,[A-Za-z0-9+/]{43}=", one.headers["webhook-signature"])
        assert one.headers[f"{name}-event-type"] == "channel.unhealthy"
        assert one.headers[f"{name}-delivery-attempt"] == str(number)
        agent = rf"{name}-webhooks/1\.0 \(\+?https://\S+\)"
        assert re.fullmatch(agent, one.headers["user-agent"])
        assert one.headers["content-type"] == "application/json"
        assert one.headers["content-length"] == str(len(one.body))
        assert one.path == "/webhooks"


async def test_a_test_event_looks_like_any_other() -> None:
    """Interface, Events, Delivery format: "every delivery" has these headers."""
    app = Recorder()
    async with EmulatedService(app) as service:
        shown = await service.test()
        secret = service.secret()
    (one,) = app.received
    assert one.headers["example-event-type"] == "webhook.test"
    assert one.number == 1
    assert one.id == shown.event_id == json.loads(one.body)["id"]
    assert reference_accepts(one, secret)


# The signature


async def test_each_attempt_is_signed_with_its_own_time() -> None:
    """Interface, Events, Delivery format: webhook-timestamp is when this attempt was signed."""
    clock = VirtualClock()
    app = Recorder(500, clock)
    async with EmulatedService(app, clock=clock) as service:
        await service.emit("comment.received")
        await service.settle()
        secret = service.secret()
    assert [one.timestamp for one in app.received] == [int(one.at) for one in app.received]
    assert len({one.headers["webhook-signature"] for one in app.received}) == 9
    for one in app.received:
        assert reference_accepts(one, secret)
        assert verify(one.body, one.headers, secret, now=one.at).id == one.id


async def test_the_signature_is_made_as_documented() -> None:
    """Interface, Events, Signature, rules 1 to 3: the test computes the signature without our code
    and without a library.
    """
    app = Recorder()
    async with EmulatedService(app) as service:
        await service.emit("comment.received", data={"text": "Olá 🍞"})
        secret = service.secret()
    (one,) = app.received
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{one.headers['webhook-id']}.{one.headers['webhook-timestamp']}.".encode() + one.body
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    assert one.headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


async def test_the_signed_time_is_never_rounded_up() -> None:
    """Interface, Events, Signature, rule 2: the signed string contains the webhook-timestamp."""
    clock = VirtualClock(NOON + 0.9999998)
    app = Recorder(clock=clock)
    async with EmulatedService(app, clock=clock) as service:
        await service.emit("comment.received")
        secret = service.secret()
    (one,) = app.received
    assert one.timestamp == int(NOON)
    assert verify(one.body, one.headers, secret, now=NOON).id == one.id


@pytest.mark.parametrize("spelled", ["  {}\n", "\t{}"], ids=["blank and newline", "tab"])
async def test_a_secret_may_be_spelled_as_a_receiver_accepts_it(spelled: str) -> None:
    """Interface, Events, Signature, rule 1: the key is what comes after the prefix."""
    secret = new_secret()
    receiver = Receiver(secrets=spelled.format(secret), store="memory://")
    async with EmulatedService(receiver) as service:
        await service.emit("comment.received")
        (attempt,) = service.attempts()
    assert (attempt.status, attempt.reason) == (200, "no_handler")


async def test_an_invalid_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="secret"):
        EmulatedService(Recorder(), secret="whsec_!")


async def test_without_a_secret_an_application_gets_a_new_one() -> None:
    """Interface, Resources, Webhook endpoint: the secret starts with whsec_ and is not shown
    later.
    """
    service, other = EmulatedService(Recorder()), EmulatedService(Recorder())
    assert service.secret().startswith("whsec_")
    assert service.secret() != other.secret()
    shown = service.endpoint()
    assert shown.secret_prefix is not None
    assert service.secret().startswith(shown.secret_prefix)
    assert service.secret() not in repr(shown) + repr(service) + shown.model_dump_json()


@pytest.mark.parametrize("event_class", EVENT_CLASSES.values())
async def test_a_receiver_hands_each_event_to_its_handler(event_class: type[Event[object]]) -> None:
    """Interface, Events: ``Receiver`` reads every type of event as the service sends it."""
    receiver = Receiver(secrets=new_secret(), store="memory://")
    handled: list[str] = []

    async def handle(event: Event[object]) -> None:
        handled.append(event.id)

    receiver.on(event_class, name="handle")(handle)
    async with EmulatedService(receiver) as service:
        if event_class is EVENT_CLASSES["webhook.test"]:
            expected = (await service.test()).event_id
        else:
            expected = (await service.emit(event_class)).id
    assert handled == [expected]


def test_the_service_name_is_the_receivers_unless_given() -> None:
    """Interface, Events, Delivery format: `<service>-event-type`; a test may give the service
    another name.
    """
    receiver = Receiver(
        secrets=new_secret(), store="memory://", sender=publishing.with_service("acme")
    )
    assert EmulatedService(receiver).workspace.service == "acme"
    assert EmulatedService(receiver, service="other").workspace.service == "other"
    assert EmulatedService().workspace.service == "example"
