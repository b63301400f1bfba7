"""A sender's envelope names the members of a body that hold an event's type, time and data."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from hookonce import Event, PayloadError, PayloadFault
from hookonce.events import Envelope, EventParser, Place, UnknownEvent
from hookonce.senders import Sender, publishing

MOMENT = datetime(2026, 11, 20, 10, 2, 11, 345_000, tzinfo=UTC)


class User(BaseModel):
    name: str


class UserCreated(Event[User]):
    type: Literal["user.created"]


def parser_of(*classes: type[Event[Any]], **places: Any) -> EventParser:
    return EventParser(classes, sender=Sender(name="acme", envelope=Envelope(**places)))


def encoded(body: object) -> bytes:
    return json.dumps(body).encode()


def refused(parser: EventParser, body: object) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        parser.parse(body if isinstance(body, bytes) else encoded(body), "msg_1")
    return caught.value


STANDARD = {
    "type": "user.created",
    "timestamp": "2026-11-20T10:02:11.345Z",
    "data": {"name": "Ada"},
}


def test_the_payload_of_the_specification_is_the_default() -> None:
    event = parser_of(UserCreated).parse(encoded(STANDARD), "msg_1")
    assert isinstance(event, UserCreated)
    assert (event.id, event.type, event.created_at) == ("msg_1", "user.created", MOMENT)
    assert event.data.name == "Ada"


@pytest.mark.parametrize(
    "written",
    [
        "2026-11-20T10:02:11.345Z",
        "2026-11-20T11:02:11.345+01:00",
        "2026-11-20T10:02:11.345",
        MOMENT.timestamp(),
        round(MOMENT.timestamp() * 1000),
        str(round(MOMENT.timestamp() * 1000)),
    ],
)
def test_a_time_is_iso_8601_or_unix_seconds_or_milliseconds(written: object) -> None:
    event = parser_of(UserCreated).parse(encoded(STANDARD | {"timestamp": written}), "msg_1")
    assert event.created_at is not None
    assert abs(event.created_at - MOMENT) < timedelta(milliseconds=1)
    assert event.created_at.utcoffset() is not None


@pytest.mark.parametrize("written", ["yesterday", True, [], {}, "", 1e300])
def test_a_time_of_another_form_makes_the_body_unreadable(written: object) -> None:
    error = refused(parser_of(UserCreated), STANDARD | {"timestamp": written})
    assert (error.fault, error.field) == (PayloadFault.NOT_ENVELOPE, "timestamp")


def test_a_path_may_lead_into_nested_objects() -> None:
    parser = parser_of(UserCreated, type="meta.event", created_at="meta.at", data="body.user")
    meta = {"event": "user.created", "at": 1_700_000_000, "region": "eu"}
    event = parser.parse(encoded({"meta": meta, "body": {"user": {"name": "Ada"}}}), "msg_1")
    assert isinstance(event, UserCreated)
    assert event.created_at == datetime.fromtimestamp(1_700_000_000, UTC)
    assert event.data.name == "Ada"


def test_a_place_of_an_envelope_may_be_a_function() -> None:
    def joined(body: Mapping[str, Any]) -> str:
        return f"{body['entity']}.{body['action']}"

    parser = parser_of(UserCreated, type=joined, created_at=None, data="object")
    body = {"entity": "user", "action": "created", "object": {"name": "Ada"}}
    assert isinstance(parser.parse(encoded(body), "msg_1"), UserCreated)
    error = refused(parser, {"entity": "private-7f3a"})
    assert error.fault is PayloadFault.NOT_ENVELOPE
    assert "a function of the envelope raised KeyError in" in str(error)
    assert "private" not in str(error)


@pytest.mark.parametrize("value", [object(), "\ud83d", b"\xff", [object()]])
@pytest.mark.parametrize("place", ["type", "created_at", "data"])
def test_a_function_that_returns_what_json_cannot_hold_makes_the_body_unreadable(
    place: str, value: object
) -> None:
    error = refused(parser_of(UserCreated, **{place: lambda _: value}), STANDARD)
    assert error.fault is PayloadFault.NOT_ENVELOPE
    assert "a function of the envelope returned a value that JSON cannot hold" in str(error)


def test_a_function_that_returns_the_body_in_itself_makes_the_body_unreadable() -> None:
    def nested(body: Mapping[str, Any]) -> dict[str, Any]:
        endless: dict[str, Any] = dict(body)
        endless["body"] = endless
        return endless

    error = refused(parser_of(UserCreated, data=nested), STANDARD)
    assert error.fault is PayloadFault.NOT_ENVELOPE


def test_an_async_function_is_refused() -> None:
    async def later(_: Mapping[str, Any]) -> str:
        return "user.created"

    with pytest.raises(TypeError, match="type takes a plain function, not the async"):
        Envelope(type=later)


def test_the_whole_body_may_be_the_data() -> None:
    parser = parser_of(UserCreated, data=None)
    event = parser.parse(
        encoded({"type": "user.created", "timestamp": 1_700_000_000, "name": "Ada"}), "msg_1"
    )
    assert isinstance(event, UserCreated)
    assert event.data.name == "Ada"


def test_an_event_of_an_envelope_without_a_time_has_no_created_at() -> None:
    event = parser_of(UserCreated, created_at=None).parse(encoded(STANDARD), "msg_1")
    assert event.created_at is None
    assert event.model_extra == {"timestamp": "2026-11-20T10:02:11.345Z"}


class _Mine(Event[User]):
    type: Literal["user.created"]
    tenant: str
    body_id: int
    body_created_at: str = ""


def test_the_other_fields_of_the_body_are_fields_of_the_class() -> None:
    """A field of the body becomes ``body_<name>`` if events have a field of the same name."""
    mine = STANDARD | {"tenant": "t_1", "id": 7, "created_at": "long ago"}
    event = parser_of(_Mine).parse(encoded(mine), "msg_1")
    assert isinstance(event, _Mine)
    assert (event.id, event.body_id, event.tenant) == ("msg_1", 7, "t_1")
    assert (event.created_at, event.body_created_at) == (MOMENT, "long ago")
    error = refused(parser_of(_Mine), STANDARD | {"tenant": "t_1"})
    assert (error.fault, error.field) == (PayloadFault.NOT_ENVELOPE, "id")


def test_a_camel_case_field_beside_the_envelope_is_not_its_time() -> None:
    event = parser_of(UserCreated).parse(encoded(STANDARD | {"createdAt": "2001-01-01"}), "msg_1")
    assert event.created_at == MOMENT
    assert event.model_extra == {"body_createdAt": "2001-01-01"}


@pytest.mark.parametrize("path", ["id", "eventId", "meta.id"])
def test_an_id_in_the_body_must_be_the_webhook_id_only_if_the_sender_says_so(path: str) -> None:
    body = STANDARD | {"id": "evt_1", "eventId": "evt_1", "meta": {"id": "evt_1"}}
    parser = parser_of(UserCreated, id=path)
    assert parser.parse(encoded(body), "evt_1").id == "evt_1"
    with pytest.raises(PayloadError) as caught:
        parser.parse(encoded(body), "evt_2")
    assert caught.value.fault is PayloadFault.ID_MISMATCH
    assert parser_of(UserCreated).parse(encoded(body), "evt_2").id == "evt_2"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "meta.type"),
        ({"meta": None}, "meta.type"),
        ({"meta": {"type": None}}, "meta.type"),
        ({"meta": {"type": "user.created"}}, "at"),
        ({"meta": {"type": "user.created"}, "at": None}, "at"),
        ({"meta": {"type": "user.created"}, "at": 1}, "user"),
        ({"meta": {"type": "user.created"}, "at": "x", "user": {"name": "Ada"}}, "at"),
        ({"meta": {"type": 5}, "at": 1, "user": {}}, "meta.type"),
        ({"meta": {"type": "ping"}, "at": "x", "user": {}}, "at"),
    ],
)
def test_a_missing_or_wrong_field_of_the_envelope_is_named_by_its_path(
    body: object, field: str
) -> None:
    error = refused(parser_of(UserCreated, type="meta.type", created_at="at", data="user"), body)
    assert (error.fault, error.field) == (PayloadFault.NOT_ENVELOPE, field)
    assert field in str(error)


@pytest.mark.parametrize(("user", "field"), [({}, "user.name"), (None, "user"), (3, "user")])
def test_a_wrong_field_of_the_data_is_named_by_its_path(user: object, field: str) -> None:
    body = {"type": "user.created", "user": user}
    error = refused(parser_of(UserCreated, created_at=None, data="user"), body)
    assert (error.fault, error.field) == (PayloadFault.WRONG_SHAPE, field)


def test_the_default_sender_names_the_missing_field_too() -> None:
    body = {"id": "evt_1", "type": "comment.received", "createdAt": "2026-11-20T10:00:00Z"}
    assert refused(EventParser(), body).field == "workspaceId"
    assert refused(EventParser(), {"id": "evt_1"}).field == "type"
    assert refused(EventParser(), body | {"type": "ping"}).field == "data"
    assert refused(EventParser(), b"nonsense").field is None


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"12", b"{", b'"x"', b"\xff", b"[" * 9_999])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    fault = refused(parser_of(UserCreated), body).fault
    assert fault in {PayloadFault.NOT_JSON, PayloadFault.NOT_ENVELOPE}


def test_half_an_emoji_does_not_make_a_body_unreadable() -> None:
    body = encoded(STANDARD | {"data": {"name": "Ada \ud83d"}})
    event = parser_of(UserCreated).parse(body, "msg_1")
    assert isinstance(event, UserCreated)
    assert event.data.name == "Ada ?"


class _Colour(Enum):
    RED = "red"


class _StrictData(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime
    colour: _Colour
    pair: tuple[int, int]


class _Strict(Event[_StrictData]):
    type: Literal["user.created"]


def test_a_strict_class_reads_json_of_every_sender() -> None:
    """Strict classes refuse text for a ``datetime`` unless the input is JSON."""
    data = {"at": "2026-11-20T10:00:00Z", "colour": "red", "pair": [1, 2]}
    event = parser_of(_Strict).parse(encoded(STANDARD | {"data": data}), "msg_1")
    assert isinstance(event, _Strict)
    assert (event.data.colour, event.data.pair) == (_Colour.RED, (1, 2))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_of_a_declared_field_is_finite(number: str) -> None:
    class Sale(Event[dict[str, float]]):
        type: Literal["sale"]

    body = f'{{"type":"sale","timestamp":1,"data":{{"price":{number}}}}}'.encode()
    assert refused(parser_of(Sale), body).fault is PayloadFault.WRONG_SHAPE


def test_a_sender_without_classes_has_unknown_events() -> None:
    event = parser_of().parse(encoded(STANDARD | {"type": "\0nothing"}), "msg_1")
    assert isinstance(event, UnknownEvent)
    event = parser_of().parse(encoded(STANDARD), "msg_1")
    assert type(event) is UnknownEvent
    assert event.data == {"name": "Ada"}


def test_a_plain_event_class_requires_the_time_if_the_sender_has_times() -> None:
    """``latest_by`` compares these times, so no event may lack its time."""
    body = {"id": "evt_1", "type": "user.created", "workspaceId": "ws_1", "data": {"name": "Ada"}}
    parser = EventParser([UserCreated], sender=publishing)
    assert parser.parse(encoded(body | {"createdAt": 1}), "evt_1").created_at is not None
    for wrong in (body, body | {"createdAt": None}):
        with pytest.raises(PayloadError) as caught:
            parser.parse(encoded(wrong), "evt_1")
        assert caught.value.field == "createdAt"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ENVELOPES = [
    Envelope(),
    Envelope(created_at=None),
    Envelope(type="meta.type", created_at="meta.at", data="meta.data", id="meta.id"),
    Envelope(type="data", data="type", times="seconds"),
    Envelope(data=None, created_at="createdAt", times="milliseconds"),
    publishing.envelope,
]


@given(
    body=st.dictionaries(
        st.sampled_from(
            ["id", "type", "data", "timestamp", "createdAt", "created_at", "meta", "at"]
        ),
        JSON_VALUES,
    ),
    envelope=st.sampled_from(ENVELOPES),
)
def test_any_object_is_an_event_or_a_payload_error(
    body: dict[str, Any], envelope: Envelope
) -> None:
    parser = EventParser([UserCreated], sender=Sender(name="acme", envelope=envelope))
    try:
        event = parser.parse(json.dumps(body).encode(), "msg_1")
    except PayloadError:
        return
    assert event.id == "msg_1"
    assert (event.created_at is None) == (envelope.created_at is None)


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_a_written_body_is_read_as_the_same_event(envelope: Envelope) -> None:
    data = {"type": "user.created", "createdAt": 1_700_000_000_000} if envelope.data is None else {}
    fields = {
        "id": "msg_1",
        "type": "user.created",
        "created_at": None if envelope.created_at is None else MOMENT.replace(microsecond=0),
        "data": {"name": "Ada", **data},
        "tenant": "t_1",
    }
    body = envelope.write(fields)
    sender = Sender(name="acme", envelope=envelope)
    if envelope is publishing.envelope:
        body["workspaceId"] = "ws_1"
    event = EventParser([UserCreated], sender=sender).parse(encoded(body), "msg_1")
    assert isinstance(event, UserCreated)
    assert event.created_at == fields["created_at"]
    assert event.data.name == "Ada"
    assert (event.model_extra or {})["tenant"] == "t_1"


def test_no_body_can_be_written_if_a_place_of_the_envelope_is_a_function() -> None:
    envelope = Envelope(type=lambda body: body["kind"])
    with pytest.raises(TypeError, match="type of its envelope is a function"):
        envelope.write({"id": "msg_1", "type": "x", "created_at": MOMENT, "data": {}})


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"type": ""}, "type takes a path"),
        ({"type": "a..b"}, "not 'a..b'"),
        ({"type": None}, "type takes a path or a function"),
        ({"created_at": 3}, "created_at takes a path or a function"),
        ({"id": len}, "id takes a path"),
        ({"times": "iso"}, "times takes 'iso8601', 'seconds' or 'milliseconds', not 'iso'"),
    ],
)
def test_an_impossible_path_in_an_envelope_is_refused(
    places: dict[str, Place], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Envelope(**places)  # type: ignore[arg-type]  # the test passes wrong types
