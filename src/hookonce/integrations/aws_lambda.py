"""A receiver as an AWS Lambda function behind API Gateway or an Application Load Balancer.

Lambda freezes the process as soon as the function has answered. So an inbox with embedded workers
is refused, and the function waits for a handler that exceeds the answer budget.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from ..http.body import (
    RequestRefusedError,
    announced_length,
    check_method,
    check_size,
    check_whole,
    note_changed_body,
)
from ..logs import get_logger
from ..outcome import Outcome, Reason
from ..receiver import Receiver
from .loop_thread import LoopThread

__all__ = ["LambdaContext", "LambdaHandler", "mount"]

_log = get_logger("hookonce.http")

MALFORMED = Outcome(HTTPStatus.BAD_REQUEST, "malformed_event")

# Stop waiting for a handler this long before the end of the invocation, to have time to answer.
_MARGIN_SECONDS = 1.0


class LambdaContext(Protocol):
    """The method of Lambda's context object that this module calls."""

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until Lambda ends the invocation."""
        ...


def mount(receiver: Receiver) -> LambdaHandler:
    """Return the handler of a Lambda function that answers deliveries.

    There is no application and no path here: the gateway routes requests to the function::

        handler = mount(receiver)  # `app.handler` in the settings of the function

    Use a store that outlives the machine, such as PostgreSQL or Redis. Give the function more time
    than the slowest handler needs.

    Args:
        receiver: answers the deliveries, in an event loop that the first delivery starts.

    Returns:
        the handler; its ``close`` drains running handlers. At exit this happens by itself.

    Raises:
        ValueError: the receiver has an inbox with embedded workers.
    """
    return LambdaHandler(receiver)


class LambdaHandler:
    """Answers requests from API Gateway (REST and HTTP APIs), function URLs and load balancers.

    The answer has the shape that the source of the event expects. The event loop and the store
    stay open from one invocation to the next.

    Raises:
        ValueError: the receiver has an inbox with embedded workers.
    """

    def __init__(self, receiver: Receiver) -> None:
        if receiver.has_embedded_workers:
            raise ValueError(
                "Lambda freezes a function as soon as it has answered, and would freeze embedded"
                " workers with the events they hold: leave `inbox` out to handle events inside the"
                " invocation, or use Inbox(embedded=False) with `hookonce worker` elsewhere"
            )
        self._limits = receiver.limits
        self._loop = LoopThread(receiver)

    def __call__(self, event: Mapping[str, Any], context: LambdaContext | None) -> dict[str, Any]:
        """Answer one Lambda event.

        Raises:
            ValueError: the event is not an HTTP request, so nobody waits for an answer.
        """
        arrived = time.monotonic()
        request = _GatewayRequest.of(event)
        try:
            check_method(request.method)
            outcome = self._deliver(request, arrived)
        except Exception as error:  # noqa: BLE001 - the client must get an answer
            outcome = self._loop.refuse(error, waited=time.monotonic() - arrived)
        if outcome.reason == Reason.STILL_RUNNING:
            self._finish(context)
        return request.response(outcome)

    def close(self) -> None:
        """Drain running handlers and end the event loop; Python also calls this at its exit."""
        self._loop.close()

    def _deliver(self, request: _GatewayRequest, arrived: float) -> Outcome:
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
        """Wait for running handlers, because Lambda freezes the process after the answer."""
        left = self._limits.handler_timeout_seconds
        if context is not None:
            left = min(left, context.get_remaining_time_in_millis() / 1000 - _MARGIN_SECONDS)
        if not self._loop.idle(max(0.0, left)):
            _log.error("a handler takes longer than the function's time-out; Lambda freezes it now")


@dataclass(frozen=True, slots=True)
class _GatewayRequest:
    """An HTTP request as a gateway describes it."""

    event: Mapping[str, Any]
    method: str

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> _GatewayRequest:
        """Read the request in a Lambda event; raise ValueError if the event has no request."""
        if isinstance(event, Mapping):
            method = event.get("httpMethod")  # REST APIs and load balancers
            if method is None:  # HTTP APIs and function URLs
                http = _mapping(_mapping(event.get("requestContext")).get("http"))
                method = http.get("method")
            if isinstance(method, str):
                return cls(event, method.upper())
        raise ValueError(
            "the event is no request of API Gateway, a function URL or a load balancer: it names"
            " no HTTP method. Is the function invoked by something else?"
        )

    def headers(self) -> Iterator[tuple[str, str]]:
        """Yield the headers, with all values of a repeated header."""
        repeated = _mapping(self.event.get("multiValueHeaders"))
        for name, values in repeated.items():
            for value in values if isinstance(values, list) else ():
                if isinstance(value, str):
                    yield str(name), value
        if repeated:
            return  # a REST API repeats these names in `headers`, with only their last values
        for name, value in _mapping(self.event.get("headers")).items():
            if isinstance(value, str):
                yield str(name), value

    def body(self) -> bytes:
        body = self.event.get("body")
        if body is None:
            return b""
        if not isinstance(body, str):
            raise _malformed("its body is not text; use the Lambda proxy integration")
        if not self.event.get("isBase64Encoded"):
            try:
                return body.encode()
            except UnicodeEncodeError:
                raise _malformed("its body has lone surrogates") from None
        try:
            return base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            raise _malformed("isBase64Encoded is set, and its body is not base64") from None

    def response(self, outcome: Outcome) -> dict[str, Any]:
        """Return the response in the format of the gateway that sent the event."""
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
            # A load balancer that sends this field ignores `headers` in the response.
            if "multiValueHeaders" in self.event:
                del answer["headers"]
                answer["multiValueHeaders"] = {name: [value] for name, value in headers.items()}
        return answer


def _malformed(why: str) -> RequestRefusedError:
    _log.error("cannot read an event of API Gateway or a load balancer: %s", why)
    return RequestRefusedError(MALFORMED)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
