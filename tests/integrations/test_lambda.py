"""Tests for Lambda beyond the common suite: events of every shape, and a frozen process."""

import base64
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookonce import Inbox, Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.integrations.aws_lambda import LambdaHandler, mount
from hookonce.testing import SignedRequest, make_event, signed_request
from hookonce.verification.secrets import new_secret
from integrations.lambda_gateways import Timer

SECRET = new_secret()

HURRIED = Limits(answer_seconds=0.2)


@pytest.fixture
def gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


@pytest.fixture
def limits() -> Limits:
    return Limits(body_bytes=4096)


@pytest.fixture
def handler(gate: threading.Event, limits: Limits) -> Iterator[LambdaHandler]:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=limits)

    @receiver.on(CommentReceived)
    def wait(event: CommentReceived) -> None:  # noqa: ARG001 - handlers have this parameter
        assert gate.wait(20)

    handler = mount(receiver)
    yield handler
    gate.set()
    handler.close()


def signed() -> SignedRequest:
    return signed_request(make_event(CommentReceived, data={"text": "é 🍞"}), SECRET)


def http_api(request: SignedRequest, **changed: Any) -> dict[str, Any]:
    return {
        "version": "2.0",
        "headers": {"Content-Length": str(len(request.body)), **request.headers},
        "requestContext": {"http": {"method": "POST", "path": "/"}},
        "body": request.body.decode(),
        "isBase64Encoded": False,
        **changed,
    }


def test_names_of_headers_may_have_any_case(handler: LambdaHandler) -> None:
    request = signed()
    headers = {name.upper(): value for name, value in request.headers.items()}
    assert handler(http_api(request, headers=headers), Timer())["statusCode"] == 200


@pytest.mark.parametrize("is_base64", [True, False])
def test_a_body_is_taken_as_text_or_as_base64(handler: LambdaHandler, is_base64: bool) -> None:
    request = signed()
    body = base64.b64encode(request.body).decode() if is_base64 else request.body.decode()
    event = http_api(request, body=body, isBase64Encoded=is_base64)
    assert handler(event, Timer())["statusCode"] == 200


def test_a_load_balancer_without_multi_value_headers_is_answered_without_them(
    handler: LambdaHandler,
) -> None:
    request = signed()
    event = {
        "httpMethod": "POST",
        "headers": dict(request.headers),
        "requestContext": {"elb": {"targetGroupArn": "arn:aws:x"}},
        "body": request.body.decode(),
        "isBase64Encoded": False,
    }
    answer = handler(event, None)
    assert answer == {
        "statusCode": 200,
        "statusDescription": "200 OK",
        "headers": {"content-type": "application/json"},
        "body": '{"status": "accepted", "reason": "handled"}',
        "isBase64Encoded": False,
    }


def test_all_repeated_signature_headers_of_a_rest_api_are_checked(handler: LambdaHandler) -> None:
    request, other = signed(), new_secret()
    wrong = signed_request(request.body, other).headers["webhook-signature"]
    multi = {name: [value] for name, value in request.headers.items()}
    multi["webhook-signature"].insert(0, wrong)
    event = {
        "httpMethod": "POST",
        "headers": {**request.headers, "webhook-signature": wrong},
        "multiValueHeaders": multi,
        "requestContext": {},
        "body": request.body.decode(),
        "isBase64Encoded": False,
    }
    assert handler(event, Timer())["statusCode"] == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"body": "no base64!", "isBase64Encoded": True},
        {"body": "é", "isBase64Encoded": True},
        {"body": {"id": "evt_1"}},
        {"body": 7},
        {"body": "\ud800"},
    ],
)
def test_a_body_that_cannot_be_read_is_answered_400(
    handler: LambdaHandler, changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    answer = handler(http_api(signed(), **changed), Timer())
    assert answer["statusCode"] == 400
    assert answer["body"] == '{"status": "refused", "reason": "malformed_event"}'
    assert "cannot read an event" in caplog.text


@pytest.mark.parametrize(
    "changed",
    [
        {"headers": None},
        {"headers": {"webhook-id": None, "webhook-timestamp": 7}},
        {"headers": ["webhook-id"]},
        {"headers": {}, "multiValueHeaders": {"webhook-id": None}},
        {"headers": {}, "body": None},
    ],
)
def test_headers_that_are_missing_or_not_text_are_answered_400(
    handler: LambdaHandler, changed: dict[str, Any]
) -> None:
    answer = handler(http_api(signed(), **changed), Timer())
    assert answer["statusCode"] == 400
    assert "missing_" in answer["body"]


@pytest.mark.parametrize(
    "event", [{}, {"source": "aws.events"}, {"requestContext": {"http": 3}}, [], None, "x"]
)
def test_an_event_that_is_not_a_request_raises_an_error_that_says_so(
    handler: LambdaHandler, event: Any
) -> None:
    with pytest.raises(ValueError, match="no request of API Gateway"):
        handler(event, Timer())


def test_a_body_that_a_gateway_has_rewritten_is_named_in_the_log(
    handler: LambdaHandler, caplog: pytest.LogCaptureFixture
) -> None:
    request = signed()
    event = http_api(request, body=request.body.decode().replace('":', '": '))
    assert handler(event, Timer())["statusCode"] == 401
    assert "was changed on its way" in caplog.text
    assert str(len(request.body)) in caplog.text


def test_a_forged_body_of_the_announced_length_is_only_refused(handler: LambdaHandler) -> None:
    request = signed().tampered()
    assert handler(http_api(request), Timer())["statusCode"] == 401


def test_the_event_loop_is_kept_between_invocations(handler: LambdaHandler) -> None:
    def loops() -> set[int | None]:
        return {thread.ident for thread in threading.enumerate() if "hookonce-loop" in thread.name}

    before = loops()
    request = signed()
    answers = [handler(http_api(request), Timer()) for _ in range(3)]
    assert [answer["statusCode"] for answer in answers] == [200, 200, 200]
    assert len(loops() - before) == 1


@pytest.mark.parametrize("limits", [HURRIED], ids=["hurried"])
def test_a_handler_beyond_the_functions_time_is_frozen_and_logged(
    handler: LambdaHandler, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    gate.clear()
    answer = handler(http_api(signed()), Timer(1.1))
    assert answer["statusCode"] == 503
    assert answer["headers"]["retry-after"] == "30"
    assert any(r.levelno == logging.ERROR and "freezes" in r.getMessage() for r in caplog.records)


def test_an_inbox_with_workers_in_the_function_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'hooks.db'}"
    receiver = Receiver(secrets=SECRET, store=url, inbox=Inbox())
    with pytest.raises(ValueError, match=r"freezes.*leave `inbox` out.*hookonce worker"):
        mount(receiver)


def test_an_inbox_with_workers_elsewhere_is_filled(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'hooks.db'}"
    receiver = Receiver(secrets=SECRET, store=url, inbox=Inbox(embedded=False))

    @receiver.on(CommentReceived)
    def never(event: CommentReceived) -> None: ...

    handler = mount(receiver)
    assert handler(http_api(signed()), Timer())["statusCode"] == 202
    handler.close()
