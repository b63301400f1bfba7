"""A receiver in a FastAPI application, with an entry in its OpenAPI document."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from ..events import PublishingEvent
from ..http.app import MORE_SLASHES, ASGIApp, Message, Receive, Scope, Send, elsewhere
from ..http.body import CONSUMED, RequestRefusedError
from ..http.guard import StatusGuard, check_path, respond
from ..outcome import INCOMPLETE, NOT_POST
from ..receiver import Receiver
from ..senders.built_in import publishing
from ..senders.sender import Sender

__all__ = ["mount"]

_log = logging.getLogger("hookonce.http")


class DeliveryAnswer(BaseModel):
    """The body of every answer."""

    status: Literal["accepted", "refused", "retry"]
    reason: str


_ANSWERS = {
    200: "Handled now or before, or deliberately ignored",
    202: "Kept: in the inbox, or as a dead letter",
    400: "A signed header is missing or malformed",
    401: "No signature matches, or the timestamp is outside the tolerance",
    405: "Not a POST",
    408: "The body did not arrive in time",
    413: "The body is too large",
    500: "Failed; to be delivered again",
    503: "Not now; to be delivered again",
}

# Without routes for these methods, FastAPI would send its own answer.
_OTHER_METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "PUT", "TRACE"]

_HEADERS = {
    "id": "The event's id, the same in every attempt",
    "timestamp": "When this attempt was signed, in Unix seconds",
    "signature": "One `v1,` or `v1a,` signature, or several separated by spaces",
}


def mount(
    app: FastAPI | APIRouter,
    receiver: Receiver,
    path: str = "/webhooks",
    *,
    name: str = "hookonce",
    **options: Any,
) -> None:
    """Add routes that answer deliveries at ``path``, with and without a trailing slash.

    The application opens and closes the receiver with its lifespan::

        app = FastAPI(lifespan=receiver.lifespan)
        mount(app, receiver, "/webhooks")

    The body is read raw, within the receiver's limits. Dependencies run before the receiver, and
    none of them can send a 3xx or a 410 from these routes.

    Args:
        app: the application, or a router that is included later.
        receiver: answers the deliveries.
        path: where deliveries arrive, after the prefix of a router; empty for the prefix alone.
        name: the name of the routes.
        options: for ``APIRouter.add_api_route``, such as ``dependencies`` or ``tags``.

    Raises:
        ValueError: the path does not start with a slash.
    """
    router = app.router if isinstance(app, FastAPI) else app
    if path or router is not app:
        check_path(path)
    delivery: ASGIApp = receiver.routes("/")[0].endpoint
    bare = path.rstrip("/")
    spellings = ("/",) if path == "/" else (bare, f"{bare}/")

    async def receive_webhook(request: Request) -> Response:
        return _Delivery(delivery, request)

    async def refuse_path(request: Request) -> Response:
        return _Delivery(elsewhere, request)

    add = partial(
        router.add_api_route, name=name, response_model=None, route_class_override=_GuardedRoute
    )
    hidden = {**options, "include_in_schema": False}
    described = {**_described(receiver.sender), **options}
    for spelling in spellings:
        shown = described if spelling == spellings[0] else hidden
        add(spelling, receive_webhook, methods=["POST"], **shown)
        add(spelling, receive_webhook, methods=_OTHER_METHODS, **hidden)
    add(f"{bare}/{MORE_SLASHES}", refuse_path, methods=["POST", *_OTHER_METHODS], **hidden)


class _GuardedRoute(APIRoute):
    """A route that turns redirects and 410 into 500, even if a dependency sends them."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in (self.methods or ()):
            await StatusGuard(super().handle)(scope, receive, send)
        # Answer an unknown method here: FastAPI would raise, and the guard would answer 500.
        else:
            await respond(send, NOT_POST)


class _Delivery(Response):
    """The receiver's answer to a request."""

    def __init__(self, app: ASGIApp, request: Request) -> None:
        super().__init__()
        self._app = app
        self._request = request

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,  # noqa: ARG002 - `_request` holds `receive`, and any body bytes already read
        send: Send,
    ) -> None:
        await self._app(scope, _pieces_of(self._request), send)


def _pieces_of(request: Request) -> Receive:
    """Return a ``receive`` that yields the body, even if a dependency has read the body before."""
    pieces = request.stream()

    async def receive() -> Message:
        try:
            piece = await anext(pieces)
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}
        except ClientDisconnect:
            return {"type": "http.disconnect"}
        except RuntimeError as error:
            _log.error(
                "the body of a delivery is consumed. %s, such as `await request.body()`", CONSUMED
            )
            raise RequestRefusedError(INCOMPLETE) from error
        return {"type": "http.request", "body": piece, "more_body": True}

    return receive


def _described(sender: Sender) -> dict[str, Any]:
    """Return the options of the route that appears in the OpenAPI document."""
    envelope: dict[str, Any] = {"type": "object"}
    if sender is publishing:  # there is no pydantic model of other senders' bodies
        envelope = PublishingEvent[dict[str, Any]].model_json_schema(by_alias=True)
    return {
        "summary": "Receive a webhook",
        "description": "Takes one signed event, as Standard Webhooks describes.",
        "responses": {
            status: {"model": DeliveryAnswer, "description": text}
            for status, text in _ANSWERS.items()
        },
        "openapi_extra": {
            "parameters": [
                {
                    "name": f"{prefix}-{ending}",
                    "in": "header",
                    # If a sender may use several prefixes, no single header is required.
                    "required": len(sender.headers) == 1,
                    "description": text,
                    "schema": {"type": "string"},
                }
                for prefix in sender.headers
                for ending, text in _HEADERS.items()
            ],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {**envelope, "title": "Event"}}},
            },
        },
    }
