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
from ..events import Envelope, Event, Place
from ..events.writing import body_of
from ..http.app import ASGIApp
from ..http.inprocess import Answer, Lifespan, exchange, whole
from ..receiver.mounted import receivers_in
from ..samples.events import event_body, make_event, new_event_id
from ..samples.finite import non_finite
from ..senders.built_in import publishing
from ..senders.sender import Sender, check_sender
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
    sender: Sender = publishing,
) -> SignedRequest:
    """Return a request that delivers a payload, with its signature.

    Args:
        payload: an event, an envelope as a mapping, or raw bytes.
        secrets: the secret to sign with, or several, as during a rotation.
        message_id: the webhook-id; by default the id of an event, or the id in another payload if
            the sender's envelope has a place for it, or a new id.
        attempt: the number in the delivery-attempt header, from 1, if the sender has that header.
        skew: how long ago it was signed (seconds or a ``timedelta``); negative for the future.
        sender: the sender, which decides the headers, and where an event's fields are in the body.
            Without the name of a service the names of the hints begin with ``example``.

    Raises:
        TypeError: an event is given, and the sender's envelope has a function; give bytes.
        ValueError: a mapping holds NaN or an infinity, or the time is not a valid timestamp.
    """
    check_sender(sender)
    event_id, event_type = _names_in(payload, sender.envelope)
    if isinstance(payload, Event):
        body = body_of(payload, sender.envelope, exclude_unset=True)
    elif isinstance(payload, bytes):
        body = payload
    else:
        if (place := non_finite(payload)) is not None:
            raise ValueError(f"{place}: JSON has no NaN or infinity; to send it anyway, give bytes")
        body = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
    timestamp = system_clock() - span_seconds("skew", skew, signed=True)
    hints = sender.hints
    service = sender.name if hints is None else hints.service or "example"
    headers = {
        "content-type": "application/json",
        "user-agent": f"{service}-webhooks/1.0 (+https://docs.example/webhooks)",
    }
    if hints is not None:
        headers |= {
            f"{service}-{hints.event_type}": event_type or "unknown",
            f"{service}-{hints.attempt}": str(attempt),
        }
    headers |= sign(secrets, message_id or event_id, body, sender=sender, timestamp=timestamp)
    return SignedRequest(body, headers)


def _names_in(payload: Payload, envelope: Envelope) -> tuple[str, str | None]:
    """Return the id and the type of a payload; without an id, return a new one."""
    if isinstance(payload, Event):
        return payload.id, payload.type
    body: object = payload
    if isinstance(payload, bytes):
        try:
            body = json.loads(payload)
        except (ValueError, RecursionError):
            body = None
    return _text_at(envelope.id, body) or new_event_id(), _text_at(envelope.type, body)


def _text_at(place: Place | None, body: object) -> str | None:
    if not isinstance(place, str):
        return None
    for name in place.split("."):
        body = body.get(name) if isinstance(body, Mapping) else None
    return body if isinstance(body, str) else None


def _sender_of(app: ASGIApp, path: str) -> Sender:
    """Return the sender of the receiver at a path of an application."""
    found = receivers_in(app)
    at_path = [one for one in found if one.path.rstrip("/") == path.rstrip("/")]
    senders = [one.receiver.sender for one in at_path or found]
    if any(one != senders[0] for one in senders):
        raise ValueError(
            f"the application has receivers of several senders, and none at {path!r}; give path="
            " or sender="
        )
    return senders[0] if senders else publishing


class TestSender:
    """Sends signed deliveries to an ASGI application in this process.

    As an async context manager it runs the application's lifespan too.

    Args:
        app: a receiver, or an application with its routes.
        secrets: the secret to sign with; several secrets give several signatures.
        path: the path of the receiver in the application.
        sender: by default the sender of the receiver at ``path``, or else of all receivers of the
            application; the publishing service if there is none.

    Attributes:
        answers: every answer so far, in order of arrival.

    Raises:
        ValueError: the application has receivers of several senders, and none at ``path``.
    """

    __test__ = False  # without this, pytest would collect the class as a test

    def __init__(
        self,
        app: ASGIApp,
        *,
        secrets: str | Sequence[str],
        path: str = "/webhooks",
        sender: Sender | None = None,
    ) -> None:
        self._app = app
        self._secrets = secrets
        self._path = path
        self._sender = _sender_of(app, path) if sender is None else sender
        check_sender(self._sender)
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
            attempt: the number in the delivery-attempt header, from 1, if the sender has that
                header.
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
            sender=self._sender,
        )
        return await self.post(request.tampered() if tamper else request)

    async def send_copies(self, payload: Payload, copies: int) -> list[Answer]:
        """Deliver several copies at the same time and return their answers."""
        event_id, _ = _names_in(payload, self._sender.envelope)
        sending = (self.send(payload, message_id=event_id) for _ in range(copies))
        return list(await asyncio.gather(*sending))

    async def send_until_accepted(self, payload: Payload) -> list[Answer]:
        """Deliver until a 2xx answer, at most as often as the sender does, and without pauses.

        A sender that publishes no schedule delivers by the example of the specification. The last
        attempt is the last chance only if the event is old enough: for the publishing service, make
        the event with ``created_at`` 21 hours ago.
        """
        answers = []
        event_id, _ = _names_in(payload, self._sender.envelope)
        for attempt in range(1, len(self._sender.rules.tried_retry_seconds) + 2):
            answers.append(await self.send(payload, attempt=attempt, message_id=event_id))
            if 200 <= answers[-1].status < 300:
                break
        return answers

    async def post(self, request: SignedRequest) -> Answer:
        """Deliver a request unchanged and return the answer."""
        headers = {"content-length": str(len(request.body)), **request.headers}
        answer = await exchange(self._app, self._path, headers.items(), whole(request.body))
        self.answers.append(answer)
        return answer
