"""Our models and the senders' own libraries read the bodies that the senders document."""

import base64
import hmac
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import pytest
from pydantic import BaseModel
from standardwebhooks import Webhook as StandardWebhook

from hookonce import Event, PayloadError, PayloadFault, VerificationError, sign, unwrap
from hookonce.events import Envelope, UnknownEvent
from hookonce.events.openai import (
    OPENAI_EVENT_CLASSES,
    OpenAIEvent,
    RealtimeCallIncoming,
    ResponseCompleted,
    UnknownOpenAIEvent,
)
from hookonce.events.standard import StandardEvent
from hookonce.samples.events import event_body
from hookonce.senders import Sender, openai, publishing, standard, svix
from hookonce.verification.secrets import new_secret, verifying_key

SECRET = new_secret()

# The specification, Payload structure and "Thin" vs "full" payloads.
EXAMPLE = b"""{
  "type": "example.event",
  "timestamp": "2022-11-03T20:26:10.344522Z",
  "data": {
    "foo": "bar",
    "fizzbuzz": 2
  }
}"""
CONTACT = b"""{"type":"contact.created","timestamp":"2022-11-03T20:26:10.344522Z","data":\
{"id":"1f81eb52-5198-4599-803e-771906343485"}}"""
# OpenAI's API reference, Webhook Events.
RESPONSE = b"""{
  "id": "evt_abc123",
  "type": "response.completed",
  "created_at": 1719168000,
  "data": {
    "id": "resp_abc123"
  }
}"""
CALL = json.dumps(
    {
        "id": "evt_abc123",
        "type": "realtime.call.incoming",
        "created_at": 1719168000,
        "data": {
            "call_id": "rtc_479a275623b54bdb9b6fbae2f7cbd408",
            "sip_headers": [
                {"name": "Max-Forwards", "value": "63"},
                {"name": "CSeq", "value": "851287 INVITE"},
            ],
        },
    }
).encode()
# Clerk's guide on webhooks and 360Learning's page Event payload and headers; both send through
# Svix's scheme, with the time in Unix milliseconds.
CLERK = json.dumps(
    {
        "data": {"id": "user_29w83sxmDNGwOuEthce5gg56FcC", "object": "user"},
        "instance_id": "ins_123",
        "object": "event",
        "timestamp": 1654012591835,
        "type": "user.created",
    }
).encode()
LEARNING = json.dumps(
    {
        "type": "user.created",
        "timestamp": 1749816650724,
        "data": {"userId": "684c154ab06eb32565e5cbc0", "firstName": "Ada"},
    }
).encode()
# Svix's API reference: its operational webhooks have no time.
EXHAUSTED = json.dumps(
    {
        "type": "message.attempt.exhausted",
        "data": {"appId": "app_1srOrx2ZWZBpBUvZwXKQmoEYga2", "msgId": "msg_1"},
    }
).encode()


def read(body: bytes, sender: Sender, *classes: type[Event[Any]], **signed: Any) -> Event[Any]:
    headers = sign(SECRET, "msg_1", body, sender=sender, **signed)
    return unwrap(body, headers, SECRET, sender=sender, events=classes)


# Bodies from the senders' documents


class Contact(BaseModel):
    id: str


class ContactCreated(StandardEvent[Contact]):
    type: Literal["contact.created"]


class UserCreated(Event[Contact]):
    type: Literal["user.created"]
    instance_id: str
    object: str


def test_the_specifications_examples_are_read() -> None:
    example = read(EXAMPLE, standard)
    assert isinstance(example, UnknownEvent)
    assert isinstance(example, StandardEvent)
    assert (example.id, example.type) == ("msg_1", "example.event")
    assert example.created_at == datetime(2022, 11, 3, 20, 26, 10, 344_522, tzinfo=UTC)
    assert example.data == {"foo": "bar", "fizzbuzz": 2}
    contact = read(CONTACT, standard, ContactCreated)
    assert isinstance(contact, ContactCreated)
    assert contact.data.id == "1f81eb52-5198-4599-803e-771906343485"


def test_a_completed_response_of_openai_is_read() -> None:
    event = read(RESPONSE, openai)
    assert isinstance(event, ResponseCompleted)
    assert (event.id, event.body_id, event.object) == ("msg_1", "evt_abc123", None)
    assert event.created_at == datetime.fromtimestamp(1719168000, UTC)
    assert event.data.id == "resp_abc123"
    whole = read(RESPONSE.replace(b'"type"', b'"object": "event", "type"'), openai)
    assert isinstance(whole, ResponseCompleted)
    assert whole.object == "event"


def test_an_incoming_call_of_openai_is_read() -> None:
    event = read(CALL, openai)
    assert isinstance(event, RealtimeCallIncoming)
    assert event.data.call_id == "rtc_479a275623b54bdb9b6fbae2f7cbd408"
    assert [header.name for header in event.data.sip_headers] == ["Max-Forwards", "CSeq"]


@pytest.mark.parametrize(("event_type", "event_class"), OPENAI_EVENT_CLASSES.items())
def test_every_type_of_openai_is_read_as_its_class(
    event_type: str, event_class: type[OpenAIEvent[Any]]
) -> None:
    body = event_body(event_type, sender=openai)
    assert type(read(body, openai)) is event_class
    library = pytest.importorskip("openai.types.webhooks", reason="openai is not installed")
    [union, *_] = get_args(library.UnwrapWebhookEvent)
    models = {
        get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(union)
    }
    if event_type in models:  # an older version of the package has fewer types
        models[event_type].model_validate_json(body)


def test_a_type_of_openai_that_has_no_class_is_unknown_but_has_openais_fields() -> None:
    event = read(RESPONSE.replace(b"response.completed", b"video.completed"), openai)
    assert isinstance(event, UnknownOpenAIEvent)
    assert (event.body_id, event.data) == ("evt_abc123", {"id": "resp_abc123"})


def test_bodies_of_services_behind_svix_are_read() -> None:
    exhausted = read(EXHAUSTED, svix)
    assert isinstance(exhausted, UnknownEvent)
    assert exhausted.created_at is None
    created = read(CLERK, svix, UserCreated)
    assert isinstance(created, UserCreated)
    assert created.created_at is None
    assert (created.data.id, created.instance_id) == ("user_29w83sxmDNGwOuEthce5gg56FcC", "ins_123")


@pytest.mark.parametrize(
    ("body", "milliseconds"), [(CLERK, 1654012591835), (LEARNING, 1749816650724)]
)
def test_a_time_in_milliseconds_is_read_where_the_envelope_names_it(
    body: bytes, milliseconds: int
) -> None:
    event = read(body, replace(svix, envelope=Envelope(times="milliseconds")))
    assert event.created_at is not None
    assert round(event.created_at.timestamp() * 1000) == milliseconds


# The senders' own libraries


def by_openai(body: bytes, headers: Mapping[str, str]) -> None:
    library = pytest.importorskip("openai", reason="openai is not installed")
    library.OpenAI(api_key="none", webhook_secret=SECRET).webhooks.unwrap(body, headers)


def by_svix(body: bytes, headers: Mapping[str, str]) -> None:
    library = pytest.importorskip("svix.webhooks", reason="svix is not installed")
    library.Webhook(SECRET).verify(body, dict(headers))


def by_standard(body: bytes, headers: Mapping[str, str]) -> None:
    StandardWebhook(SECRET).verify(body, dict(headers))


LIBRARIES = [
    pytest.param(openai, by_openai, RESPONSE, id="openai"),
    pytest.param(svix, by_svix, EXHAUSTED, id="svix"),
    pytest.param(standard, by_standard, CONTACT, id="standard"),
]
Library = Callable[[bytes, Mapping[str, str]], None]


@pytest.mark.parametrize(("sender", "library", "body"), LIBRARIES)
def test_what_the_senders_own_library_accepts_is_accepted(
    sender: Sender, library: Library, body: bytes
) -> None:
    fields = json.loads(body)
    forms = [
        body,
        json.dumps(fields, indent=4).encode(),
        json.dumps(fields | {"type": "a.type.of.next.year"}).encode(),
        json.dumps(fields | {"a field of next year": {"": [None]}}).encode(),
        json.dumps(fields | {"more": "Inês 🍞"}, ensure_ascii=False).encode(),
        json.dumps(dict(reversed(fields.items()))).encode(),
    ]
    for form in forms:
        headers = sign(SECRET, "msg_1", form, sender=sender)
        library(form, headers)
        assert unwrap(form, headers, SECRET, sender=sender).id == "msg_1"
        two = sign([new_secret(), SECRET], "msg_1", form, sender=sender)
        library(form, two)
        assert unwrap(form, two, SECRET, sender=sender).id == "msg_1"


@pytest.mark.parametrize(("sender", "library", "body"), LIBRARIES)
def test_what_the_senders_own_library_refuses_is_refused(
    sender: Sender, library: Library, body: bytes
) -> None:
    genuine = sign(SECRET, "msg_1", body, sender=sender)
    forged = [
        (body + b" ", genuine),
        (body, sign(new_secret(), "msg_1", body, sender=sender)),
        (body, sign(SECRET, "msg_1", body, sender=sender, timestamp=1_700_000_000)),
        (body, genuine | {next(iter(genuine)): "msg_2"}),
        (body, {}),
    ]
    library(body, genuine)
    for sent, headers in forged:
        with pytest.raises(Exception):  # noqa: B017, PT011 - each library raises its own errors
            library(sent, headers)
        with pytest.raises(VerificationError):
            unwrap(sent, headers, SECRET, sender=sender)


def signed_by_hand(
    message_id: str, timestamp: str, prefix: str, *, before: str = ""
) -> dict[str, str]:
    """Return headers that `sign` refuses to make."""
    content = f"{message_id}.{timestamp}.".encode() + RESPONSE
    digest = hmac.digest(verifying_key(SECRET).raw, content, "sha256")
    signature = f"{before}v1,{base64.b64encode(digest).decode()}"
    values = {"id": message_id, "timestamp": timestamp, "signature": signature}
    return {f"{prefix}-{part}": value for part, value in values.items()}


ALL = ((openai, by_openai), (svix, by_svix), (standard, by_standard))
STRANGERS = f"v1,{'A' * 43}= " * 16


# The guide's page on senders lists these headers with the reasons.
@pytest.mark.parametrize(
    ("message_id", "sign_of_time", "before", "libraries", "reason"),
    [
        ("msg.1", "", "", ALL, "malformed_id"),
        ("msg\x011", "", "", ALL, "malformed_id"),
        ("m" * 513, "", "", ALL, "malformed_id"),
        ("msg_1", "", STRANGERS, ALL, "no_matching_signature"),
        ("", "", "", ALL[:1], "missing_id"),
        ("msg_1", "+", "", ALL[:1], "malformed_timestamp"),
    ],
)
def test_headers_that_no_sender_sends_are_refused_though_the_library_takes_them(
    message_id: str,
    sign_of_time: str,
    before: str,
    libraries: Sequence[tuple[Sender, Library]],
    reason: str,
) -> None:
    timestamp = f"{sign_of_time}{int(time.time())}"
    for sender, library in libraries:
        headers = signed_by_hand(message_id, timestamp, sender.headers[0], before=before)
        library(RESPONSE, headers)
        with pytest.raises(VerificationError) as caught:
            unwrap(RESPONSE, headers, SECRET, sender=sender)
        assert caught.value.reason == reason


BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


# The guide's page on senders lists these headers too.
@pytest.mark.parametrize(
    ("header", "change", "libraries", "reason"),
    [
        ("timestamp", lambda text: f"+{text}", ALL[1:], "malformed_timestamp"),
        ("timestamp", lambda text: f"{text}.5", ALL[1:], "malformed_timestamp"),
        ("signature", lambda text: f"{text[:9]}*{text[9:]}", ALL[1:], "no_matching_signature"),
        (
            "signature",
            lambda text: f"{text[:-2]}{BASE64[BASE64.index(text[-2]) ^ 1]}=",
            ALL[1:],
            "no_matching_signature",
        ),
        ("signature", lambda text: text.removeprefix("v1,"), ALL[:1], "no_matching_signature"),
        ("signature", lambda text: f"v1,x\t{text}", ALL[:1], "no_matching_signature"),
    ],
)
def test_a_changed_spelling_is_refused_though_the_library_takes_it(
    header: str,
    change: Callable[[str], str],
    libraries: Sequence[tuple[Sender, Library]],
    reason: str,
) -> None:
    for sender, library in libraries:
        headers = sign(SECRET, "msg_1", RESPONSE, sender=sender)
        name = f"{sender.headers[0]}-{header}"
        headers[name] = change(headers[name])
        library(RESPONSE, headers)
        with pytest.raises(VerificationError) as caught:
            unwrap(RESPONSE, headers, SECRET, sender=sender)
        assert caught.value.reason == reason


@pytest.mark.parametrize("moved", [["svix-id"], ["svix-timestamp", "svix-signature"], []])
def test_two_families_are_not_mixed_as_svixs_library_mixes_them(moved: list[str]) -> None:
    headers = sign(SECRET, "msg_1", EXHAUSTED, sender=svix)
    if moved:
        headers = {
            name.replace("svix", "webhook") if name in moved else name: value
            for name, value in headers.items()
        }
    else:
        headers |= sign(SECRET, "msg_2", EXHAUSTED)
    by_svix(EXHAUSTED, headers)
    with pytest.raises(VerificationError) as caught:
        unwrap(EXHAUSTED, headers, SECRET, sender=svix)
    assert caught.value.reason == "conflicting_headers"


# The guide's page on senders lists these bodies with the reasons.
REFUSED_BEYOND = [
    (openai, by_openai, {"type": "response.completed"}, "created_at"),
    (openai, by_openai, {"id": "evt_1", "created_at": 1, "data": {"id": "resp_1"}}, "type"),
    (openai, by_openai, {"type": "response.completed", "created_at": 1, "id": "evt_1"}, "data"),
    (
        openai,
        by_openai,
        {"type": "response.completed", "created_at": 1, "id": "evt_1", "data": {}},
        "data.id",
    ),
    (svix, by_svix, {"invoiceId": "inv_98765"}, "type"),
    (svix, by_svix, {"type": "invoice.paid", "invoiceId": "inv_98765"}, "data"),
    (standard, by_standard, {"type": "contact.created", "data": {}}, "timestamp"),
    (standard, by_standard, {"type": "contact.created", "timestamp": 1, "id": "x"}, "data"),
    *(
        (sender, library, {**json.loads(RESPONSE), "timestamp": 1, "type": 5}, "type")
        for sender, library in ALL
    ),
    (openai, by_openai, {**json.loads(RESPONSE), "created_at": "soon"}, "created_at"),
    (standard, by_standard, {**json.loads(CONTACT), "timestamp": "soon"}, "timestamp"),
]


@pytest.mark.parametrize(("sender", "library", "body", "field"), REFUSED_BEYOND)
def test_a_body_without_what_dispatch_needs_is_refused_though_the_library_takes_it(
    sender: Sender, library: Library, body: dict[str, Any], field: str
) -> None:
    sent = json.dumps(body).encode()
    headers = sign(SECRET, "msg_1", sent, sender=sender)
    library(sent, headers)
    with pytest.raises(PayloadError) as caught:
        unwrap(sent, headers, SECRET, sender=sender)
    assert caught.value.field == field


DEEP = RESPONSE.replace(b'"type"', b'"deep": ' + b"[" * 300 + b"]" * 300 + b', "type"')


@pytest.mark.parametrize("body", [b"[]", DEEP])
@pytest.mark.parametrize(("sender", "library"), ALL)
def test_an_event_is_an_object_of_moderate_depth(
    sender: Sender, library: Library, body: bytes
) -> None:
    headers = sign(SECRET, "msg_1", body, sender=sender)
    library(body, headers)
    with pytest.raises(PayloadError):
        unwrap(body, headers, SECRET, sender=sender)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le"])
@pytest.mark.parametrize(("sender", "library"), ALL[:2])
def test_an_event_is_utf_8_without_a_mark(sender: Sender, library: Library, encoding: str) -> None:
    body = RESPONSE.decode().encode(encoding)
    headers = sign(SECRET, "msg_1", body, sender=sender)
    library(body, headers)
    with pytest.raises(PayloadError) as caught:
        unwrap(body, headers, SECRET, sender=sender)
    assert caught.value.fault is PayloadFault.NOT_JSON


def test_svix_takes_any_bytes_but_an_event_is_json() -> None:
    headers = sign(SECRET, "msg_1", b"a=1", sender=svix)
    by_svix(b"a=1", headers)
    with pytest.raises(PayloadError) as caught:
        unwrap(b"a=1", headers, SECRET, sender=svix)
    assert caught.value.fault is PayloadFault.NOT_JSON


def test_the_error_of_another_senders_body_names_the_missing_field() -> None:
    for sender, body, field in [
        (publishing, CONTACT, "id"),
        (openai, CONTACT, "created_at"),
        (standard, RESPONSE, "timestamp"),
    ]:
        with pytest.raises(PayloadError) as caught:
            read(body, sender)
        assert (caught.value.fault, caught.value.field) == (PayloadFault.NOT_ENVELOPE, field)
