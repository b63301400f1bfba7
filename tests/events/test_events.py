"""Verified bytes become typed events, or a PayloadError that shows no value of the body."""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PydanticUndefinedAnnotation, field_validator
from pydantic_core import PydanticCustomError

from hookonce import Event, PayloadError, PayloadFault, Receiver, VerificationError, sign, unwrap
from hookonce.events import (
    EVENT_CLASSES,
    CommentReceived,
    EventParser,
    MessageReceived,
    PostTargetFailed,
    PublishingEvent,
    UnknownPublishingEvent,
    WebhookTest,
)
from hookonce.testing import SignedRequest, event_body, make_event, signed_request
from hookonce.testing.pytest_plugin import SenderFactory
from hookonce.verification.secrets import new_secret

SECRET = new_secret()
parser = EventParser()


def envelope(**changes: Any) -> dict[str, Any]:
    """Return the envelope of a comment with changes; the value ``...`` removes a field."""
    body = json.loads(event_body("comment.received", event_id="evt_1")) | changes
    return {name: value for name, value in body.items() if value is not ...}


def encoded(**changes: Any) -> bytes:
    return json.dumps(envelope(**changes)).encode()


def comment_data(**changes: Any) -> dict[str, Any]:
    data = envelope()["data"] | changes
    return {name: value for name, value in data.items() if value is not ...}


def refused(body: bytes, message_id: str | None = None) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        parser.parse(body, message_id)
    return caught.value


# Events of the documented types


def test_exactly_the_seven_documented_types_have_a_class() -> None:
    assert set(EVENT_CLASSES) == {
        "post.target.published",
        "post.target.failed",
        "comment.received",
        "message.received",
        "channel.unhealthy",
        "channel.disconnected",
        "webhook.test",
    }


@pytest.mark.parametrize(("event_type", "event_class"), EVENT_CLASSES.items())
def test_each_documented_type_is_read_as_its_class(
    event_type: str, event_class: type[Event[Any]]
) -> None:
    body = event_body(
        event_type,
        event_id="evt_1",
        created_at=datetime(2026, 11, 20, 10, 2, 11, 345_000, tzinfo=UTC),
        workspace_id="ws_1",
    )
    event = parser.parse(body, "evt_1")
    assert type(event) is event_class
    assert isinstance(event, PublishingEvent)
    assert (event.id, event.type, event.workspace_id) == ("evt_1", event_type, "ws_1")
    assert event.created_at == datetime(2026, 11, 20, 10, 2, 11, 345_000, tzinfo=UTC)


def test_the_fields_of_a_comment_are_typed() -> None:
    event = parser.parse(encoded(data=comment_data(parentId="cmt_0", postId=None, text="Hi")))
    assert isinstance(event, CommentReceived)
    assert (event.data.text, event.data.parent_id, event.data.post_id) == ("Hi", "cmt_0", None)
    assert event.data.created_at == datetime(2026, 11, 20, 10, 2, 11, tzinfo=UTC)


def test_the_error_of_a_failed_target_is_typed() -> None:
    event = make_event(PostTargetFailed)
    assert event.data.error is not None
    assert event.data.error.code == "media.rejected"


def test_the_kind_of_a_message_may_have_undocumented_values() -> None:
    event = make_event(MessageReceived, data={"message": {"kind": "voice_note"}})
    assert event.data.message.kind == "voice_note"


def test_a_test_event_keeps_any_data() -> None:
    event = make_event(WebhookTest, data={"by": ["app", 1, None]})
    assert event.data == {"by": ["app", 1, None]}


def test_events_are_frozen() -> None:
    event = make_event(CommentReceived)
    with pytest.raises(ValueError, match="frozen"):
        event.id = "evt_2"  # type: ignore[misc]  # type checkers refuse this assignment too


# unknown types, fields and values


@pytest.mark.parametrize("data", [{"total": 12}, [1, 2], "text", 1.5, True, None, {}])
def test_an_unknown_event_keeps_its_data_unchanged(data: Any) -> None:
    event = parser.parse(encoded(type="invoice.paid", data=data), "evt_1")
    assert type(event) is UnknownPublishingEvent
    assert (event.type, event.data) == ("invoice.paid", data)


@pytest.mark.parametrize("event_type", EVENT_CLASSES)
def test_a_round_trip_keeps_fields_and_values_that_are_not_known_yet(event_type: str) -> None:
    came = json.loads(event_body(event_type))
    came["traceId"] = {"a": [1, {"b": None}]}
    came["data"]["mood"] = "sunny"
    if "status" in came["data"]:
        came["data"]["status"] = "a status of next year"
    event = parser.parse(json.dumps(came).encode())
    assert json.loads(event.model_dump_json(exclude_unset=True)) == came


def test_a_round_trip_of_an_unknown_event_keeps_everything() -> None:
    came = envelope(type="invoice.paid", data={"lines": [{"a": 1.25}]}, extra=[None])
    event = parser.parse(json.dumps(came).encode())
    assert json.loads(event.model_dump_json(exclude_unset=True)) == came


def test_nullable_fields_may_be_absent() -> None:
    body = encoded(data=comment_data(postId=..., parentId=..., authorName=..., createdAt=...))
    event = parser.parse(body)
    assert isinstance(event, CommentReceived)
    assert (event.data.post_id, event.data.author_name, event.data.created_at) == (None, None, None)


# The id in the body


def test_the_id_in_the_body_must_be_the_signed_one() -> None:
    assert refused(encoded(), "evt_2").fault is PayloadFault.ID_MISMATCH
    assert parser.parse(encoded(), "evt_1").id == "evt_1"


def test_the_id_is_checked_for_unknown_types_and_repaired_bodies_too() -> None:
    assert refused(encoded(type="ping"), "evt_2").fault is PayloadFault.ID_MISMATCH
    halved = encoded(data=comment_data(text="\ud83d"))
    assert refused(halved, "evt_2").fault is PayloadFault.ID_MISMATCH


# Bodies that cannot be read


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"nonsense",
        b"{",
        encoded()[:-1],
        encoded() + b"}",
        b"\xef\xbb\xbf" + encoded(),
        encoded().replace(b"evt_1", b"evt_\xff"),
        encoded().decode().encode("utf-16"),
        encoded().replace(b"evt_1", b"evt\n1"),
        b"'single'",
    ],
)
def test_a_body_that_is_not_json_is_refused_as_not_json(body: bytes) -> None:
    assert refused(body, "evt_1").fault is PayloadFault.NOT_JSON


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_a_body_nested_without_end_is_refused(opening: bytes) -> None:
    assert refused(opening * 200_000).fault is PayloadFault.NOT_JSON
    closing = {b"[": b"]", b'{"a":': b"}"}[opening]
    deep = opening * 200_000 + b"1" + closing * 200_000
    for event_type in ("comment.received", "ping", "webhook.test"):
        body = encoded(type=event_type, data="DEEP").replace(b'"DEEP"', deep)
        assert refused(body).fault is PayloadFault.NOT_JSON


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{}", "type"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"text"', "object"),
        (b"12", "object"),
        (encoded(type=...), "type"),
        (encoded(type=None), "type"),
        (encoded(type=7), "type"),
        (encoded(type=["comment.received"]), "type"),
        (encoded(id=...), "id"),
        (encoded(id=1), "id"),
        (encoded(createdAt=...), "createdAt"),
        (encoded(createdAt="yesterday"), "createdAt"),
        (encoded(workspaceId=...), "workspaceId"),
        (encoded(workspaceId=None), "workspaceId"),
        (encoded(type="ping", id=...), "id"),
        (encoded(type="ping", createdAt="yesterday"), "createdAt"),
        (encoded(type="ping", data=...), "data"),
    ],
)
def test_a_body_that_is_no_envelope_is_refused_and_the_field_is_named(
    body: bytes, problem: str
) -> None:
    error = refused(body)
    assert error.fault is PayloadFault.NOT_ENVELOPE
    assert problem in str(error)
    assert error.problems


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data": ...}, "data"),
        ({"data": None}, "data"),
        ({"data": []}, "data"),
        ({"data": comment_data(text=...)}, "data.text"),
        ({"data": comment_data(text=5)}, "data.text"),
        ({"data": comment_data(isHidden={})}, "data.isHidden"),
        ({"data": comment_data(createdAt="soon")}, "data.createdAt"),
        ({"type": "post.target.failed"}, "data."),
        ({"type": "webhook.test", "data": []}, "data"),
    ],
)
def test_data_that_does_not_fit_the_class_is_refused_and_the_field_is_named(
    changes: dict[str, Any], problem: str
) -> None:
    error = refused(encoded(**changes))
    assert error.fault is PayloadFault.WRONG_SHAPE
    assert problem in error.problems[0]


MARK = "private-7f3a"


def _bodies_with_a_mark() -> Iterator[bytes]:
    """Yield unreadable bodies; together they have ``MARK`` in every place that may hold a text."""
    yield MARK.encode()
    yield json.dumps([MARK]).encode()
    yield json.dumps(MARK).encode()
    yield encoded(type={"x": MARK})
    yield encoded(type=MARK, id=...)
    yield encoded(type=MARK, id=[MARK])
    yield encoded(createdAt=MARK)
    yield encoded(id={MARK: MARK})
    yield encoded(data=MARK)
    yield encoded(data=[MARK])
    yield encoded(data=comment_data(isHidden=MARK, text={"x": MARK}))
    yield encoded(data=comment_data(createdAt=f"2026-13-45T{MARK}"))
    yield encoded(data=comment_data(text=MARK))[:-1]
    yield encoded(data=comment_data(text=f"{MARK} \ud83d", isHidden=[]))
    yield encoded(type="post.target.failed", data=comment_data(text=MARK))


@pytest.mark.parametrize("body", [*_bodies_with_a_mark()])
def test_problems_never_show_the_value_that_was_found(body: bytes) -> None:
    error = refused(body, "evt_1")
    linked: BaseException | None = error
    while linked is not None:
        assert MARK not in f"{linked!s} {linked!r}"
        # a logged traceback prints chained exceptions unless they are suppressed
        linked = linked.__cause__ or (None if linked.__suppress_context__ else linked.__context__)


def test_a_mismatched_id_is_not_shown() -> None:
    assert "evt_" not in str(refused(encoded(), "evt_2"))


def test_the_number_of_problems_is_bounded() -> None:
    target = {"type": "post.target.failed", "data": {}}
    assert 1 <= len(refused(encoded(**target)).problems) <= 5


@given(st.binary(max_size=200) | st.recursive(st.none(), st.lists).map(str).map(str.encode))
def test_any_bytes_are_an_event_or_a_payload_error(body: bytes) -> None:
    with suppress(PayloadError):
        parser.parse(body, "evt_1")


TEXTS = st.text(st.characters(exclude_categories=()))  # includes lone surrogates
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "id": JSON_VALUES,
            "type": st.sampled_from([*EVENT_CLASSES, "ping"]) | JSON_VALUES,
            "createdAt": JSON_VALUES,
            "workspaceId": JSON_VALUES,
            "data": JSON_VALUES,
        },
    )
)
def test_any_envelope_is_an_event_or_a_payload_error(changes: dict[str, Any]) -> None:
    body = json.dumps(envelope() | changes).encode()
    with suppress(PayloadError):
        event = parser.parse(body, "evt_1")
        assert event.id == "evt_1"
        named = changes.get("type", "comment.received")
        assert event.type == named.encode("utf-8", "replace").decode()


# Lone surrogates: halves of an emoji


def test_a_comment_cut_in_the_middle_of_an_emoji_is_readable() -> None:
    body = encoded(data=comment_data(text="good bread \ud83d", authorName="Ann \ude00 \u00ea"))
    assert b"\\ud83d" in body
    event = parser.parse(body, "evt_1")
    assert isinstance(event, CommentReceived)
    assert event.data.text == "good bread ?"
    assert event.data.author_name == "Ann ? \u00ea"


def test_half_an_emoji_does_not_change_a_whole_emoji_beside_it() -> None:
    event = parser.parse(encoded(data=comment_data(text="\U0001f35e \ud83d")), "evt_1")
    assert isinstance(event, CommentReceived)
    assert event.data.text == "\U0001f35e ?"


def test_half_emojis_in_names_and_unknown_events_are_replaced_too() -> None:
    event = parser.parse(encoded(type="ping", data={"\ud83d": ["\ude00"]}), "evt_1")
    assert event.data == {"?": ["?"]}


def test_a_body_with_half_an_emoji_and_another_fault_is_refused_for_the_other_fault() -> None:
    halved = comment_data(text="\ud83d", isHidden=[])
    assert refused(encoded(data=halved)).fault is PayloadFault.WRONG_SHAPE
    assert refused(encoded(data=comment_data(text="\ud83d"))[:-1]).fault is PayloadFault.NOT_JSON
    assert refused(encoded(text="\ud83d", id=...)).fault is PayloadFault.NOT_ENVELOPE


# Event classes that a user defines


class Money(Event[dict[str, int]]):
    type: Literal["invoice.paid"]


class ShortComment(CommentReceived):
    @property
    def excerpt(self) -> str:
        return self.data.text[:10]


def test_a_class_of_the_users_own_is_used_for_its_type() -> None:
    own = EventParser([Money, ShortComment])
    assert type(own.parse(encoded(type="invoice.paid", data={"cents": 5}))) is Money
    comment = own.parse(encoded(data=comment_data(text="a rather long text")))
    assert isinstance(comment, ShortComment)
    assert comment.excerpt == "a rather l"
    assert type(own.parse(event_body("channel.unhealthy"))) is EVENT_CLASSES["channel.unhealthy"]
    assert type(parser.parse(encoded())) is CommentReceived


def test_a_class_of_the_users_own_refuses_data_of_another_shape() -> None:
    with pytest.raises(PayloadError) as caught:
        EventParser([Money]).parse(encoded(type="invoice.paid", data={"cents": MARK}))
    assert caught.value.fault is PayloadFault.WRONG_SHAPE
    assert MARK not in str(caught.value)


@pytest.mark.anyio
async def test_a_class_that_pydantic_cannot_build_fails_the_start() -> None:
    class Unbuilt(Event["NowhereDefined"]):  # type: ignore[name-defined] # the test needs an unknown name
        type: Literal["invoice.paid"]

    receiver = Receiver(secrets=SECRET, store="memory://")
    receiver.on(Unbuilt, name="note")(lambda _: None)
    with pytest.raises(PydanticUndefinedAnnotation, match="NowhereDefined"):
        await receiver.__aenter__()


class Card(BaseModel):
    kind: Literal["card"]


class Cash(BaseModel):
    kind: Literal["cash"]


class Payment(BaseModel):
    by: Annotated[Card | Cash, Field(discriminator="kind")]


class Paid(Event[Payment]):
    type: Literal["invoice.paid"]


def test_an_unknown_tag_inside_data_does_not_make_the_event_an_unknown_one() -> None:
    own = EventParser([Paid])
    assert type(own.parse(encoded(type="invoice.paid", data={"by": {"kind": "cash"}}))) is Paid
    with pytest.raises(PayloadError) as caught:
        own.parse(encoded(type="invoice.paid", data={"by": {"kind": MARK}}))
    assert caught.value.fault is PayloadFault.WRONG_SHAPE
    assert "data.by" in str(caught.value)
    assert MARK not in str(caught.value)


class Strict(Event[Any]):
    type: Literal["invoice.paid"]

    @field_validator("data")
    @classmethod
    def refuse(cls, data: object) -> object:
        raise PydanticCustomError("own", "we do not take {data}", {"data": data})


def test_the_message_of_a_users_validator_is_not_repeated() -> None:
    """A validator's message may quote the value, which would then be logged."""
    with pytest.raises(PayloadError) as caught:
        EventParser([Strict]).parse(encoded(type="invoice.paid", data=MARK))
    assert "data: not accepted" in str(caught.value)
    assert MARK not in str(caught.value)


# The function `unwrap`


def test_unwrap_verifies_and_then_reads() -> None:
    event = make_event(CommentReceived)
    request = signed_request(event, SECRET)
    assert unwrap(request.body, request.headers, SECRET) == event
    with pytest.raises(VerificationError):
        unwrap(request.tampered().body, request.headers, SECRET)
    with pytest.raises(VerificationError):
        unwrap(request.body, request.headers, new_secret())


def test_unwrap_refuses_another_id_and_verifies_before_it_reads() -> None:
    body = encoded()
    with pytest.raises(PayloadError) as caught:
        unwrap(body, sign(SECRET, "evt_2", body), SECRET)
    assert caught.value.fault is PayloadFault.ID_MISMATCH
    with pytest.raises(VerificationError):
        unwrap(b"not JSON", sign(SECRET, "evt_2", body), SECRET)


def test_unwrap_takes_classes_of_the_users_own() -> None:
    request = signed_request(encoded(type="invoice.paid", data={"cents": 5}), SECRET)
    event = unwrap(request.body, request.headers, SECRET, events=(Money,))
    assert type(event) is Money


def test_unwrap_takes_its_clock_and_tolerance_from_the_caller() -> None:
    body = encoded()
    headers = sign(SECRET, "evt_1", body, timestamp=1_000_000_000)
    assert unwrap(body, headers, SECRET, now=1_000_000_300).id == "evt_1"
    assert unwrap(body, headers, SECRET, now=1_000_000_400, tolerance=400).id == "evt_1"
    with pytest.raises(VerificationError):
        unwrap(body, headers, SECRET, now=1_000_000_301)


# The unsigned header with the event type


@pytest.mark.anyio
@pytest.mark.parametrize("claimed", ["post.target.failed", "webhook.test", "nonsense", ""])
async def test_the_unsigned_type_header_routes_nothing(
    webhook_secret: str, webhook_sender: SenderFactory, claimed: str
) -> None:
    receiver = Receiver(secrets=webhook_secret, store="memory://")
    ran: list[str] = []

    @receiver.on("*", "webhook.test", "post.target.failed")
    async def note(event: Event[Any]) -> None:
        ran.append(event.type)

    async with webhook_sender(receiver) as sender:
        request = signed_request(make_event(CommentReceived), webhook_secret)
        headers = {**request.headers, "example-event-type": claimed}
        (await sender.post(SignedRequest(request.body, headers))).expect(200, "handled")
    assert ran == ["comment.received"]


class _Sale(Event[dict[str, float]]):
    type: Literal["sale.made"]


class _Tip(Event[Any]):
    type: Literal["tip.given"]
    amount: float


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_of_a_declared_field_is_finite_or_the_event_is_unreadable(number: str) -> None:
    """NaN is never greater than a limit, so a check such as ``amount > most`` lets NaN pass."""
    ends = '"createdAt":"2026-11-20T10:00:00Z","workspaceId":"ws_1"'
    sale = f'{{"id":"evt_1","type":"sale.made","data":{{"price":{number}}},{ends}}}'
    tip = f'{{"id":"evt_1","type":"tip.given","data":{{}},"amount":{number},{ends}}}'
    for event_class, body in ((_Sale, sale), (_Tip, tip)):
        parser = EventParser([event_class])
        assert parser.parse(body.replace(number, "1.5").encode()).id == "evt_1"
        with pytest.raises(PayloadError, match="finite number"):
            parser.parse(body.encode())
