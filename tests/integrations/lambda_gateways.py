"""Gateways that turn HTTP requests into AWS events, and results of a function into responses."""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import httpx2

__all__ = ["GATEWAYS", "Gateway", "LambdaTransport", "Timer"]

Event: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[[Mapping[str, Any], Any], Mapping[str, Any]]


class Timer:
    """A stand-in for Lambda's context object."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds

    def get_remaining_time_in_millis(self) -> int:
        return int(self.seconds * 1000)


def rest_api(request: httpx2.Request, body: bytes) -> Event:
    """Return the event of a REST API (payload 1.0): header names keep their case, text is plain."""
    headers = {name.title(): value for name, value in request.headers.items()}
    return {
        "resource": "/{proxy+}",
        "path": request.url.path,
        "httpMethod": request.method,
        "headers": headers,
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "queryStringParameters": None,
        "requestContext": {"httpMethod": request.method, "stage": "prod"},
        "body": body.decode() if body else None,
        "isBase64Encoded": False,
    }


def http_api(request: httpx2.Request, body: bytes) -> Event:
    """Return the event of an HTTP API or a function URL (payload 2.0)."""
    event: Event = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": request.url.path,
        "headers": dict(request.headers.items()),
        "requestContext": {"http": {"method": request.method, "path": request.url.path}},
        "isBase64Encoded": True,
    }
    return event | ({"body": base64.b64encode(body).decode()} if body else {})


def load_balancer(request: httpx2.Request, body: bytes) -> Event:
    """Return the event of a load balancer with multi-value headers turned on."""
    return {
        "requestContext": {"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:x"}},
        "httpMethod": request.method,
        "path": request.url.path,
        "multiValueHeaders": {name: [value] for name, value in request.headers.items()},
        "body": body.decode(),
        "isBase64Encoded": False,
    }


Gateway: TypeAlias = Callable[[httpx2.Request, bytes], Event]
GATEWAYS: dict[str, Gateway] = {
    "rest_api": rest_api,
    "http_api": http_api,
    "load_balancer": load_balancer,
}


class LambdaTransport(httpx2.AsyncBaseTransport):
    """A transport that calls Lambda functions; each instance handles one request at a time.

    Args:
        start: starts an instance.
        gateway: turns a request into an event.

    """

    def __init__(self, start: Callable[[], Function], gateway: Gateway) -> None:
        self._start = start
        self._gateway = gateway
        self._idle: list[Function] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        event = self._gateway(request, await request.aread())
        event = json.loads(json.dumps(event))  # AWS passes only JSON
        instance = self._idle.pop() if self._idle else self._start()
        answer = json.loads(json.dumps(await asyncio.to_thread(instance, event, Timer())))
        self._idle.append(instance)
        body = b"" if request.method == "HEAD" else answer["body"].encode()
        return _response(answer, body, multi="elb" in event["requestContext"])


def _response(answer: Mapping[str, Any], body: bytes, *, multi: bool) -> httpx2.Response:
    headers = answer.get("headers") or {}
    if multi:  # an ALB with multi-value headers ignores all others
        headers = {name: value for name, [value] in answer["multiValueHeaders"].items()}
        assert answer["statusDescription"].startswith(f"{answer['statusCode']} ")
    assert answer["isBase64Encoded"] is False
    return httpx2.Response(answer["statusCode"], headers=headers, content=body)
