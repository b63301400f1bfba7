"""The tools of ``hookonce.testing`` and the fixtures of the pytest plugin."""

import asyncio
import json
import re
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import pytest
import standardwebhooks
from pydantic import JsonValue
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from hookonce import Event, Receiver, Retry, VerificationError, verify
from hookonce.events import EVENT_CLASSES, CommentReceived, PostTargetFailed, UnknownPublishingEvent
from hookonce.resources import Channel, Resource
from hookonce.senders import publishing
from hookonce.testing import (
    Answer,
    SignedRequest,
    TestSender,
    event_body,
    make_event,
    new_event_id,
    signed_request,
)
from hookonce.testing.pytest_plugin import SenderFactory
from hookonce.verification.secrets import new_secret, verifying_key

SECRET = new_secret()


class Script:
    """A handler that raises the given errors, one in each run, and then succeeds."""

    def __init__(self, receiver: Receiver, *errors: Exception) -> None:
        self.errors = list(errors)
        self.runs = 0
        receiver.on(CommentReceived, name="script")(self)

    async def __call__(self, _: CommentReceived) -> None:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)


# Events that tests make


@pytest.mark.parametrize(("event_type", "event_class"), EVENT_CLASSES.items())
def test_an_event_can_be_made_from_its_class_or_its_type(
    event_type: str, event_class: type[Event[Any]]
) -> None:
    by_class, by_type = make_event(event_class), make_event(event_type)
    assert type(by_class) is type(by_type) is event_class
    assert by_class.type == by_type.type == event_type
    assert by_class.id != by_type.id
    assert by_class.id.startswith("evt_")


def test_an_event_is_of_now_unless_the_caller_says_otherwise() -> None:
    assert abs(make_event(CommentReceived).created_at - datetime.now(UTC)) < timedelta(seconds=10)
    moment = datetime(2026, 5, 6, 9, 8, 7, 654_000, tzinfo=timezone(timedelta(hours=2)))
    event = make_event(
        CommentReceived, created_at=moment, event_id="evt_mine", workspace_id="ws_mine"
    )
    assert (event.created_at, event.id, event.workspace_id) == (moment, "evt_mine", "ws_mine")
    assert event.model_dump(mode="json")["createdAt"] == "2026-05-06T07:08:07.654Z"


def test_fields_of_the_sample_can_be_changed_and_objects_are_merged() -> None:
    event = make_event(PostTargetFailed, data={"username": "mine", "error": {"message": "No."}})
    assert event.data.username == "mine"
    assert event.data.error is not None
    assert (event.data.error.code, event.data.error.message) == ("media.rejected", "No.")
    assert make_event(PostTargetFailed).data.username != "mine", "the sample itself was changed"


def test_data_that_does_not_fit_the_type_is_refused_by_field() -> None:
    with pytest.raises(ValueError, match=r"data\.text"):
        make_event(CommentReceived, data={"text": 5})


def test_data_is_understood_by_both_names_of_a_field() -> None:
    by_python = make_event(CommentReceived, data={"author_username": "ann", "is_hidden": True})
    by_wire = make_event(CommentReceived, data={"authorUsername": "ann", "isHidden": True})
    assert by_python.data == by_wire.data
    assert (by_wire.data.author_username, by_wire.data.is_hidden) == ("ann", True)
    assert not by_python.data.model_extra
    body = json.loads(event_body("comment.received", data={"author_username": "ann"}))
    assert body["data"]["authorUsername"] == "ann"
    assert "author_username" not in body["data"]


@pytest.mark.parametrize(
    ("event_type", "data", "words"),
    [
        ("comment.received", {"auhtor_username": "ann"}, "'data.auhtor_username' (did you mean"),
        ("comment.received", {"likes": 3}, "'data.likes'; extra=True allows"),
        ("post.target.failed", {"error": {"hint": "Pay."}}, "'data.error.hint'"),
        ("channel.unhealthy", {"display_name": "a", "displayName": "b"}, "both spellings"),
    ],
)
def test_a_field_that_there_is_not_is_refused(
    event_type: str, data: dict[str, Any], words: str
) -> None:
    for make in (make_event, event_body):
        with pytest.raises(ValueError, match=re.escape(words)):
            make(event_type, data=data)


def test_a_field_that_there_is_not_is_added_on_demand() -> None:
    data: dict[str, JsonValue] = {"likes": 3, "author_name": "Ann"}
    comment = make_event(CommentReceived, data=data, extra=True).data
    assert (comment.model_extra, comment.author_name) == ({"likes": 3}, "Ann")


def test_what_is_not_documented_may_be_any_field() -> None:
    made = make_event("message.received", data={"conversationId": "c", "message": {"to": "me"}})
    assert made.data.model_extra == {"conversationId": "c"}
    assert make_event("webhook.test", data={"by": "me"}).data == {"by": "me"}


def test_an_own_class_has_fields_of_its_own() -> None:
    class Ad(Resource):
        cost_cents: int
        paid_by: Channel | None = None

    class AdPublished(Event[Ad]):
        type: Literal["ad.published"]

    channel = json.loads(event_body("channel.unhealthy"))["data"]
    data: dict[str, JsonValue] = {"cost_cents": 5, "paid_by": {**channel, "display_name": "Bakery"}}
    with pytest.raises(ValueError, match="both spellings"):
        make_event(AdPublished, data=data)
    del channel["displayName"]
    data["paid_by"] = {**channel, "display_name": "Bakery"}
    made = make_event(AdPublished, data=data).data
    assert made.cost_cents == 5
    assert made.paid_by is not None
    assert made.paid_by.display_name == "Bakery"
    with pytest.raises(ValueError, match=re.escape("'data.paidBy.user' (did")):
        make_event(AdPublished, data={"cost_cents": 5, "paid_by": {"user": "x"}})


def test_events_of_unknown_types_and_own_classes_can_be_made() -> None:
    class Ping(Event[dict[str, int]]):
        type: Literal["ping"]

    assert type(make_event("ping", data={"n": 1})) is UnknownPublishingEvent
    event = make_event(Ping, data={"n": 1})
    assert (type(event), event.data) == (Ping, {"n": 1})
    with pytest.raises(TypeError):
        make_event(Event)


@pytest.mark.parametrize("event_type", EVENT_CLASSES)
def test_a_body_is_written_as_the_service_writes_it(event_type: str) -> None:
    body = json.loads(event_body(event_type, event_id="evt_1"))
    assert list(body) == ["id", "type", "createdAt", "workspaceId", "data"]
    assert body["createdAt"].endswith("Z")
    assert len(body["createdAt"]) == len("2026-11-20T10:02:11.345Z")
    assert isinstance(body["data"], dict)


def test_event_ids_are_new_each_time() -> None:
    assert len({new_event_id() for _ in range(100)}) == 100


# Signed requests


def test_a_signed_request_is_genuine_for_us_and_for_the_reference_library() -> None:
    event = make_event(CommentReceived)
    request = signed_request(event, SECRET, attempt=3, sender=publishing.with_service("postline"))
    assert verify(request.body, request.headers, SECRET).id == event.id
    standardwebhooks.Webhook(SECRET).verify(request.body, dict(request.headers))
    assert request.headers["webhook-id"] == event.id
    assert request.headers["postline-event-type"] == "comment.received"
    assert request.headers["postline-delivery-attempt"] == "3"
    assert request.headers["user-agent"].startswith("postline-webhooks/1.0 (")
    assert request.headers["content-type"] == "application/json"


def test_a_tampered_request_differs_in_one_byte_of_its_body_and_verifies_no_more() -> None:
    for payload in (make_event(CommentReceived), b"x", b""):
        request = signed_request(payload, SECRET)
        tampered = request.tampered()
        assert tampered.headers == request.headers
        changed = sum(a != b for a, b in zip(tampered.body, request.body, strict=False))
        assert changed + abs(len(tampered.body) - len(request.body)) == 1
        with pytest.raises(VerificationError):
            verify(tampered.body, tampered.headers, SECRET)


@pytest.mark.parametrize("skew", [0, 250, -250])
def test_a_skew_is_how_long_ago_it_was_signed(skew: float) -> None:
    request = signed_request(make_event(CommentReceived), SECRET, skew=skew)
    delivery = verify(request.body, request.headers, SECRET)
    assert delivery.skew == pytest.approx(skew, abs=3)


def test_several_secrets_give_several_signatures_as_in_a_rotation() -> None:
    old, new = new_secret(), new_secret()
    request = signed_request(make_event(CommentReceived), [new, old])
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        assert verify(request.body, request.headers, secret).signature_count == 2


@pytest.mark.parametrize(
    "payload",
    [
        b'{"id": "evt_9", "type": "comment.received"}',
        {"id": "evt_9", "type": "comment.received", "data": {"text": "\U0001f35e"}},
    ],
)
def test_bytes_and_mappings_are_sent_under_their_own_id_and_type(payload: Any) -> None:
    request = signed_request(payload, SECRET)
    assert request.headers["webhook-id"] == "evt_9"
    assert request.headers["example-event-type"] == "comment.received"
    assert verify(request.body, request.headers, SECRET).id == "evt_9"
    assert json.loads(request.body)["id"] == "evt_9"
    if isinstance(payload, bytes):
        assert request.body == payload


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b'{"id": 5}', b"[" * 100_000])
def test_bytes_that_name_no_event_are_sent_under_a_new_id(body: bytes) -> None:
    request = signed_request(body, SECRET)
    assert request.body == body
    assert request.headers["webhook-id"].startswith("evt_")
    assert signed_request(body, SECRET, message_id="evt_x").headers["webhook-id"] == "evt_x"


def test_neither_secrets_nor_bodies_show_in_a_repr() -> None:
    request = signed_request(make_event(CommentReceived, data={"text": "private"}), SECRET)
    assert "private" not in repr(request)
    assert "v1," not in repr(request)


# `TestSender`


@pytest.mark.anyio
async def test_a_sender_delivers_and_keeps_every_answer(
    receiver: Receiver, webhook_secret: str
) -> None:
    script = Script(receiver)
    async with TestSender(receiver, secrets=webhook_secret) as sender:
        event = make_event(CommentReceived)
        first = (await sender.send(event)).expect(200, "handled")
        second = (await sender.send(event, attempt=2)).expect(200)
    assert sender.answers == [first, second]
    assert (second.reason, second.headers["content-type"]) == ("duplicate", "application/json")
    assert json.loads(first.body) == {"status": "accepted", "reason": "handled"}
    assert script.runs == 1


@pytest.mark.anyio
async def test_a_sender_can_tamper_skew_and_sign_with_other_secrets(
    receiver: Receiver, webhook_secret: str
) -> None:
    script = Script(receiver)
    async with TestSender(receiver, secrets=webhook_secret) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event, tamper=True)).expect(401, "no_matching_signature")
        (await sender.send(event, skew=301)).expect(401, "timestamp_too_old")
        (await sender.send(event, skew=-302)).expect(401, "timestamp_too_new")
        (await sender.send(event, secrets=new_secret())).expect(401, "no_matching_signature")
        (await sender.send(event, message_id="evt_other")).expect(500, "unreadable")
        assert script.runs == 0
        rotation = [new_secret(), webhook_secret]
        (await sender.send(event, secrets=rotation)).expect(200, "handled")
    assert script.runs == 1


@pytest.mark.anyio
async def test_a_receiver_in_rotation_accepts_either_secret() -> None:
    old, new = new_secret(), new_secret()
    receiver = Receiver(secrets=[new, old], store="memory://")
    script = Script(receiver)
    async with TestSender(receiver, secrets=old) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        (await sender.send(make_event(CommentReceived), secrets=new)).expect(200, "handled")
        event = make_event(CommentReceived)
        (await sender.send(event, secrets=[old, new])).expect(200, "handled")
        (await sender.send(event, secrets=[new, old])).expect(200, "duplicate")
    assert script.runs == 3


@pytest.mark.anyio
async def test_copies_are_sent_at_the_same_time(receiver: Receiver, webhook_secret: str) -> None:
    together, runs = asyncio.Event(), list[str]()

    @receiver.on(CommentReceived)
    async def wait(event: CommentReceived) -> None:
        runs.append(event.id)
        await together.wait()

    async with TestSender(receiver, secrets=webhook_secret) as sender:
        asyncio.get_running_loop().call_later(0.05, together.set)
        answers = await sender.send_copies(make_event(CommentReceived), 5)
    assert sorted(answer.reason for answer in answers) == ["duplicate"] * 4 + ["handled"]
    assert {answer.status for answer in answers} == {200}
    assert len(runs) == 1
    assert len(sender.answers) == 5


@pytest.mark.anyio
async def test_a_sender_retries_until_it_is_accepted(
    receiver: Receiver, webhook_secret: str
) -> None:
    script = Script(receiver, ValueError("x"), Retry(after=1), ValueError("y"))
    async with TestSender(receiver, secrets=webhook_secret) as sender:
        answers = await sender.send_until_accepted(make_event(CommentReceived))
    assert [answer.status for answer in answers] == [500, 503, 500, 200]
    assert script.runs == 4


@pytest.mark.anyio
async def test_a_sender_gives_up_after_nine_attempts_that_count_up(
    receiver: Receiver, webhook_secret: str
) -> None:
    attempts: list[int | None] = []

    @receiver.on(CommentReceived)
    async def fail(_: CommentReceived, context: Any) -> None:
        attempts.append(context.delivery_attempt)
        raise ValueError("always")

    async with TestSender(receiver, secrets=webhook_secret) as sender:
        answers = await sender.send_until_accepted(make_event(CommentReceived))
    assert [answer.status for answer in answers] == [500] * 9
    assert attempts == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.anyio
async def test_a_sender_posts_a_request_as_it_is(receiver: Receiver, webhook_secret: str) -> None:
    Script(receiver)
    async with TestSender(receiver, secrets=webhook_secret) as sender:
        request = signed_request(make_event(CommentReceived), webhook_secret)
        headers = {
            name: value for name, value in request.headers.items() if name != "webhook-timestamp"
        }
        answer = await sender.post(SignedRequest(request.body, headers))
        answer.expect(400, "missing_timestamp")


@pytest.mark.anyio
async def test_a_sender_sends_to_an_application_at_its_path_and_runs_its_lifespan(
    webhook_secret: str, tmp_path: Path
) -> None:
    receiver = Receiver(secrets=webhook_secret, store=f"sqlite:///{tmp_path / 'hooks.db'}")
    Script(receiver)
    app = Starlette(routes=receiver.routes("/in"), lifespan=receiver.lifespan)
    async with TestSender(
        app, secrets=webhook_secret, path="/in", sender=publishing.with_service("postline")
    ) as sender:
        assert (tmp_path / "hooks.db").exists()
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert not (tmp_path / "hooks.db-wal").exists(), "the store was not closed"


@pytest.mark.anyio
async def test_a_sender_needs_no_lifespan(receiver: Receiver, webhook_secret: str) -> None:
    Script(receiver)
    sender = TestSender(receiver, secrets=webhook_secret)
    (await sender.send(make_event(CommentReceived))).expect(200, "handled")


@pytest.mark.anyio
async def test_a_sender_takes_an_application_that_ignores_lifespans(webhook_secret: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await PlainTextResponse("no JSON", 418)(scope, receive, send)

    async with TestSender(app, secrets=webhook_secret) as sender:
        answer = await sender.send(make_event(CommentReceived))
    assert (answer.status, answer.reason, answer.body) == (418, "", b"no JSON")


@pytest.mark.anyio
async def test_a_lifespan_that_fails_to_start_fails_the_test(webhook_secret: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the signature of ASGI
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    with pytest.raises(RuntimeError, match="startup failed: no database"):
        async with TestSender(app, secrets=webhook_secret):
            raise AssertionError("it started")


# Answers to requests


def answered(status: int, reason: str) -> Answer:
    return Answer(status, {}, json.dumps({"reason": reason}).encode())


def test_an_expected_answer_is_given_back() -> None:
    answer = answered(200, "handled")
    assert answer.expect(200) is answer
    assert answer.expect(200, "handled") is answer


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (202, None, "expected the answer 202, got 200 handled"),
        (202, "handled", "expected the answer 202 handled, got 200 handled"),
        (200, "duplicate", "expected the answer 200 duplicate, got 200 handled"),
    ],
)
def test_an_unexpected_answer_fails_with_both_shown(
    status: int, reason: str | None, message: str
) -> None:
    with pytest.raises(AssertionError) as caught:
        answered(200, "handled").expect(status, reason)
    assert str(caught.value) == message


# The pytest plugin


def test_the_fixture_gives_a_new_secret_that_can_be_used(webhook_secret: str) -> None:
    assert webhook_secret.startswith("whsec_")
    assert len(verifying_key(webhook_secret).raw) == 32
    assert webhook_secret != SECRET


@pytest.mark.anyio
async def test_the_factory_signs_with_the_secret_of_the_test(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    Script(receiver)
    app = Starlette(routes=receiver.routes("/in"), lifespan=receiver.lifespan)
    async with webhook_sender(app, path="/in") as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")


@pytest.mark.full("2 s")
def test_the_plugin_works_in_a_project_that_asks_for_it_as_documented(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["hookonce.testing.pytest_plugin"]\n')
    (tmp_path / "test_mine.py").write_text(
        textwrap.dedent(
            """
            import asyncio
            from hookonce import Receiver
            from hookonce.events import CommentReceived
            from hookonce.testing import make_event

            def test_mine(webhook_secret, webhook_sender):
                receiver = Receiver(secrets=webhook_secret, store="memory://")
                seen = []
                receiver.on(CommentReceived, name="mine")(lambda event: seen.append(event.id))

                async def deliver():
                    async with webhook_sender(receiver) as sender:
                        event = make_event(CommentReceived)
                        (await sender.send(event)).expect(200, "handled")
                        assert seen == [event.id]

                asyncio.run(deliver())
            """
        )
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout
