"""A receiver as an AWS Lambda function behind API Gateway or an Application Load Balancer.

Lambda freezes a process when an invocation ends. So handlers end before the answer: an inbox with
workers in the process is refused, and a handler that outlasts the answer budget is waited for.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from ..delivery.outcome import NOT_POST, Outcome, Reason
from ..http.body import announced_length, check_size, check_whole, note_changed_body
from ..receiver import Receiver
from ..verification.loggers import get_logger
from .bodies import refusal_of
from .loop_thread import LoopThread

__all__ = ["LambdaContext", "LambdaHandler", "mount"]

_log = get_logger("hookonce.http")

MALFORMED = Outcome(HTTPStatus.BAD_REQUEST, "malformed_event")

# What is left of an invocation when it stops to wait for a handler: enough to answer.
_MARGIN_SECONDS = 1.0


class LambdaContext(Protocol):
    """The part of Lambda's context object that is used."""

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until Lambda ends the invocation."""
        ...


def mount(receiver: Receiver) -> LambdaHandler:
    """Return the handler of a Lambda function that answers deliveries.

    There is no application to mount on and no path: the gateway routes both to the function::

        handler = mount(receiver)  # `app.handler` in the settings of the function

    Use a store that outlives the machine, such as Redis. Give the function more time than the
    slowest handler needs.

    Args:
        receiver: answers the deliveries, in an event loop that the first delivery starts.

    Raises:
        ValueError: the receiver has an inbox with embedded workers.

    """
    return LambdaHandler(receiver)


class LambdaHandler:
    """Answers events of API Gateway (REST and HTTP APIs), function URLs and load balancers.

    Each gets its answer in the shape that it expects. The event loop and the store stay open from
    one invocation to the next.

    Raises:
        ValueError: the receiver has an inbox with embedded workers.

    """

    def __init__(self, receiver: Receiver) -> None:
        if receiver.has_embedded_workers:
            raise ValueError(
                "a Lambda function is frozen as soon as it has answered, so workers in its process"
                " would stand still with events in their hands: leave `inbox` out to handle inside"
                " the invocation, or use Inbox(embedded=False) with `hookonce worker` elsewhere"
            )
        self._limits = receiver.limits
        self._loop = LoopThread(receiver)

    def __call__(self, event: Mapping[str, Any], context: LambdaContext | None) -> dict[str, Any]:
        """Answer one event.

        Raises:
            ValueError: it is no HTTP request, so nobody waits for an answer.

        """
        arrived = time.monotonic()
        request = _Request.of(event)
        outcome = self._answer(request, arrived)
        if outcome.reason == Reason.STILL_RUNNING:
            self._finish(context)
        return request.response(outcome)

    def close(self) -> None:
        """Drain running handlers and end the event loop; at exit this happens by itself."""
        self._loop.close()

    def _answer(self, request: _Request, arrived: float) -> Outcome:
        try:
            if request.method == "POST":
                return self._deliver(request, arrived)
            outcome = NOT_POST
        except _MalformedError as error:
            _log.error("cannot read an event of API Gateway or a load balancer: %s", error)
            outcome = MALFORMED
        except Exception as error:  # noqa: BLE001 - it is answered
            outcome = refusal_of(error)
        return self._loop.note_unread(outcome, waited=time.monotonic() - arrived)

    def _deliver(self, request: _Request, arrived: float) -> Outcome:
        most = self._limits.body_bytes
        headers = list(request.headers())
        lengths = (value for name, value in headers if name.lower() == "content-length")
        announced = announced_length(next(lengths, None), most)
        body = request.body()
        check_size(len(body), most)
        is_chunked = any(name.lower() == "transfer-encoding" for name, _ in headers)
        check_whole(body, announced, is_chunked=is_chunked)
        outcome = self._loop.handle(body, headers, waited=time.monotonic() - arrived)
        note_changed_body(outcome, body, announced)
        return outcome

    def _finish(self, context: LambdaContext | None) -> None:
        """Wait for handlers that still run: after the answer they would be frozen."""
        left = self._limits.handler_timeout_seconds
        if context is not None:
            left = min(left, context.get_remaining_time_in_millis() / 1000 - _MARGIN_SECONDS)
        if not self._loop.idle(max(0.0, left)):
            _log.error("a handler needs longer than this function may take; it is frozen now")


class _MalformedError(Exception):
    """An HTTP request that cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class _Request:
    """An HTTP request as a gateway describes it."""

    event: Mapping[str, Any]
    method: str

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> _Request:
        """Return the request in an event, or raise ValueError where there is none."""
        if isinstance(event, Mapping):
            method = event.get("httpMethod")  # REST APIs and load balancers
            if method is None:  # HTTP APIs and function URLs
                http = _mapping(_mapping(event.get("requestContext")).get("http"))
                method = http.get("method")
            if isinstance(method, str):
                return cls(event, method.upper())
        raise ValueError(
            "this is no request of API Gateway, a function URL or a load balancer (it names no"
            " HTTP method); is the function invoked by something else?"
        )

    def headers(self) -> Iterator[tuple[str, str]]:
        """Yield the headers, every value of those that are repeated."""
        repeated = _mapping(self.event.get("multiValueHeaders"))
        for name, values in repeated.items():
            for value in values if isinstance(values, list) else ():
                if isinstance(value, str):
                    yield str(name), value
        if repeated:
            return  # a REST API gives the last of each in `headers` as well
        for name, value in _mapping(self.event.get("headers")).items():
            if isinstance(value, str):
                yield str(name), value

    def body(self) -> bytes:
        """Return the bytes of the body."""
        body = self.event.get("body")
        if body is None:
            return b""
        if not isinstance(body, str):
            raise _MalformedError("its body is not text; use the Lambda proxy integration")
        if not self.event.get("isBase64Encoded"):
            try:
                return body.encode()
            except UnicodeEncodeError:
                raise _MalformedError("its body has lone surrogates") from None
        try:
            return base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            raise _MalformedError("isBase64Encoded is set, and its body is not base64") from None

    def response(self, outcome: Outcome) -> dict[str, Any]:
        """Return an answer in the shape that the sender of the event expects."""
        status = HTTPStatus(outcome.status)
        headers = {"content-type": "application/json", **outcome.headers}
        answer: dict[str, Any] = {
            "statusCode": int(status),
            "headers": headers,
            "body": outcome.body.decode(),
            "isBase64Encoded": False,
        }
        if "elb" in _mapping(self.event.get("requestContext")):
            answer["statusDescription"] = f"{int(status)} {status.phrase}"
            if "multiValueHeaders" in self.event:  # an ALB takes the headers it was told to take
                del answer["headers"]
                answer["multiValueHeaders"] = {name: [value] for name, value in headers.items()}
        return answer


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
