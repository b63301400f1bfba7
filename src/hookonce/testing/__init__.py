"""Tools to test a receiver: realistic events, signed requests, and a sender without a network.

A short test::

    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived, data={"text": "Hello"})
        (await sender.send(event)).expect(200, "handled")
        (await sender.send(event, attempt=2)).expect(200, "duplicate")

The sender calls the application over ASGI: everything is real except the network. Fixtures for
pytest are in ``hookonce.testing.pytest_plugin``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self, TypeAlias

from pydantic import JsonValue

from ..clock import span_seconds, system_clock
from ..events import Event
from ..http.app import ASGIApp
from ..http.inprocess import Answer, Lifespan, exchange, whole
from ..samples.events import event_body, make_event, new_event_id
from ..samples.finite import non_finite
from ..sender import ATTEMPTS
from ..verification.signature import sign

__all__ = [
    "Answer",
    "Payload",
    "SignedRequest",
    "TestSender",
    "event_body",
    "make_event",
    "new_event_id",
    "signed_request",
]

Payload: TypeAlias = Event[Any] | Mapping[str, JsonValue] | bytes
"""A body to send: an event, an envelope as a mapping, or raw bytes."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A signed delivery.

    Attributes:
        body: the raw bytes.
        headers: every header of the interface's delivery format, with lower-case names.
    """

    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)

    def tampered(self) -> SignedRequest:
        """Return the same request with one byte of the body changed after signing."""
        changed = bytearray(self.body or b" ")
        changed[-1] ^= 1
        return SignedRequest(bytes(changed), self.headers)


def signed_request(
    payload: Payload,
    secrets: str | Sequence[str],
    *,
    message_id: str | None = None,
    attempt: int = 1,
    skew: float | timedelta = 0.0,
    service: str = "example",
) -> SignedRequest:
    """Return a request that delivers a payload, with its signature.

    Args:
        payload: an event, an envelope as a mapping, or raw bytes.
        secrets: the secret to sign with, or several, as during a rotation.
        message_id: the webhook-id; by default the payload's id, or a new id if it has none.
        attempt: the number in the delivery-attempt header, from 1.
        skew: how long ago it was signed (seconds or a ``timedelta``); negative for the future.
        service: the sender's name in its own headers.

    Raises:
        ValueError: a mapping holds NaN or an infinity, or the time is not a valid timestamp.
    """
    event_id, event_type = None, None
    if isinstance(payload, Event):
        event_id, event_type = payload.id, payload.type
        body = payload.model_dump_json(exclude_unset=True).encode()
    elif isinstance(payload, bytes):
        body = payload
        event_id, event_type = _names_in(body)
    else:
        event_id, event_type = str(payload.get("id", "")), str(payload.get("type", ""))
        if (place := non_finite(payload)) is not None:
            raise ValueError(f"{place}: JSON has no NaN or infinity; to send it anyway, give bytes")
        body = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
    timestamp = system_clock() - span_seconds("skew", skew, signed=True)
    headers = {
        "content-type": "application/json",
        "user-agent": f"{service}-webhooks/1.0 (+https://docs.example/webhooks)",
        f"{service}-event-type": event_type or "unknown",
        f"{service}-delivery-attempt": str(attempt),
        **sign(secrets, message_id or event_id or new_event_id(), body, timestamp=timestamp),
    }
    return SignedRequest(body, headers)


def _names_in(body: bytes) -> tuple[str | None, str | None]:
    try:
        envelope = json.loads(body)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(envelope, dict):
        return None, None
    event_id, event_type = envelope.get("id"), envelope.get("type")
    return (
        event_id if isinstance(event_id, str) else None,
        event_type if isinstance(event_type, str) else None,
    )


class TestSender:
    """Sends signed deliveries to an ASGI application in this process.

    As an async context manager it runs the application's lifespan too.

    Args:
        app: a receiver, or an application with its routes.
        secrets: the secret to sign with; several secrets give several signatures.
        path: the path of the receiver in the application.
        service: the sender's name in its own headers.

    Attributes:
        answers: every answer so far, in order of arrival.
    """

    __test__ = False  # without this, pytest would collect the class as a test

    def __init__(
        self,
        app: ASGIApp,
        *,
        secrets: str | Sequence[str],
        path: str = "/webhooks",
        service: str = "example",
    ) -> None:
        self._app = app
        self._secrets = secrets
        self._path = path
        self._service = service
        self._lifespan: Lifespan | None = None
        self.answers: list[Answer] = []

    async def __aenter__(self) -> Self:
        self._lifespan = Lifespan(self._app)
        await self._lifespan.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._lifespan is not None:
            await self._lifespan.__aexit__()

    async def send(
        self,
        payload: Payload,
        *,
        attempt: int = 1,
        skew: float | timedelta = 0.0,
        tamper: bool = False,
        secrets: str | Sequence[str] | None = None,
        message_id: str | None = None,
    ) -> Answer:
        """Deliver once and return the answer.

        Args:
            payload: an event, an envelope as a mapping, or raw bytes.
            attempt: the number in the delivery-attempt header, from 1.
            skew: how long ago it was signed (seconds or a ``timedelta``); negative for the future.
            tamper: change one byte of the body after signing.
            secrets: sign with other secrets.
            message_id: the webhook-id, if it differs from the payload's id.
        """
        request = signed_request(
            payload,
            self._secrets if secrets is None else secrets,
            message_id=message_id,
            attempt=attempt,
            skew=skew,
            service=self._service,
        )
        return await self.post(request.tampered() if tamper else request)

    async def send_copies(self, payload: Payload, copies: int) -> list[Answer]:
        """Deliver several copies at the same time and return their answers."""
        return list(await asyncio.gather(*(self.send(payload) for _ in range(copies))))

    async def send_until_accepted(self, payload: Payload) -> list[Answer]:
        """Deliver until a 2xx, up to nine times like the service, but without waiting in between.

        The ninth attempt is the last chance only if the event is old enough: make the event with
        ``created_at`` 21 hours ago.
        """
        answers = []
        for attempt in range(1, ATTEMPTS + 1):
            answers.append(await self.send(payload, attempt=attempt))
            if 200 <= answers[-1].status < 300:
                break
        return answers

    async def post(self, request: SignedRequest) -> Answer:
        """Deliver a request unchanged and return the answer."""
        headers = {"content-length": str(len(request.body)), **request.headers}
        answer = await exchange(self._app, self._path, headers.items(), whole(request.body))
        self.answers.append(answer)
        return answer
