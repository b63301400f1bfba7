"""Sends the service's requests, and an attacker's replays and forgeries, to receivers."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from zlib import crc32

from ..senders import Sender
from ..verification.secrets import new_secret
from .chaos import UNDISTURBED, Disturbance, Plan
from .records import DeliveryAttempt, DeliveryRow, EndpointRow, OutgoingEvent
from .signing import delivery_headers
from .timeline import ServiceTime
from .transport import CALM, Network, OutgoingRequest, Transport

# The number of latest requests that an attacker can replay.
_RECORDED = 200
_LONGEST_BODY_SHARE = 0.6

# The form of Retry-After that receivers use (RFC 9110, 10.2.3: delay-seconds).
_SECONDS = re.compile("[0-9]{1,9}")

NO_ANSWER_IN_TIME = "no answer within {:g} s"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A signed request, and its attempt, which has no result yet.

    Attributes:
        key: names the request in random draws.
    """

    request: OutgoingRequest
    attempt: DeliveryAttempt
    key: str


class Wire:
    """Signs and sends requests, and records the result of each request.

    Args:
        sender: whose headers the requests have.
        service: the name in the service's own headers.
        answer_seconds: how long an answer may take.
        flows: whether time passes by itself; otherwise a slow connection takes no time.
        note: receives every request with its result.
    """

    def __init__(
        self,
        transport: Transport,
        time: ServiceTime,
        *,
        sender: Sender,
        service: str,
        answer_seconds: float,
        flows: bool,
        note: Callable[[DeliveryAttempt], None],
    ) -> None:
        self._transport = transport
        self._time = time
        self._sender = sender
        self._service = service
        self._answer_seconds = answer_seconds
        self._flows = flows
        self._note = note
        self._recorded: deque[_Prepared] = deque(maxlen=_RECORDED)

    async def deliver(
        self, row: DeliveryRow, endpoint: EndpointRow, plan: Plan = UNDISTURBED
    ) -> DeliveryAttempt:
        """Make an attempt of the delivery, and return its result."""
        sent = self._signed(row, endpoint, plan)
        if not plan.is_tampered:
            self._recorded.append(sent)
        return await self._post(sent, plan.network, loses_answer=plan.loses_answer)

    async def deliver_copy(self, row: DeliveryRow, endpoint: EndpointRow, plan: Plan) -> None:
        """Send an extra copy of an attempt: the service may deliver an event more than once."""
        sent = self._signed(row, endpoint, plan)
        await self._post(replace(sent, attempt=replace(sent.attempt, is_extra=True)))

    async def replay(self, random: Random) -> None:
        """Send an earlier request again, byte for byte."""
        if not self._recorded:
            return
        # Choose the request with the highest number. The number of a request does not depend on
        # other requests, so a simulation without some of these requests makes the same choice.
        draw = random.random()
        old = max(self._recorded, key=lambda sent: crc32(f"{draw}:{sent.key}".encode()))
        attempt = replace(
            old.attempt,
            at_unix=self._time.now(),
            disturbance=Disturbance.REPLAY,
            is_extra=True,
        )
        await self._post(replace(old, attempt=attempt))

    async def forge(self, row: DeliveryRow, endpoint: EndpointRow, random: Random) -> None:
        """Send a request with a wrong signature: an attacker does not have the secret."""
        event_id = f"evt_forged_{random.randbytes(8).hex()}"
        body = row.event.body.replace(row.event.id.encode(), event_id.encode())
        forged = replace(row, event=OutgoingEvent(event_id, row.event.type, body))
        stranger = replace(endpoint, secret=new_secret(), previous_secret=None)
        sent = self._signed(forged, stranger, UNDISTURBED)
        headers = dict(sent.request.headers)
        signature = f"{self._sender.headers[0]}-signature"
        match random.randrange(4):
            case 0:
                del headers[signature]
            case 1:
                headers[signature] = "v1,bm90aGluZw=="
            case 2:
                headers[f"{self._sender.headers[0]}-timestamp"] = "yesterday"
        request = replace(sent.request, headers=headers)
        attempt = replace(
            sent.attempt, disturbance=Disturbance.FLOOD, is_genuine=False, is_extra=True
        )
        await self._post(replace(sent, request=request, attempt=attempt))

    def _signed(self, row: DeliveryRow, endpoint: EndpointRow, plan: Plan) -> _Prepared:
        now = self._time.now()
        signed_at = self._time.signing() + plan.skew_seconds
        headers = delivery_headers(
            row.event,
            endpoint.secrets(now),
            attempt=row.attempts,
            signed_at=signed_at,
            sender=self._sender,
            service=self._service,
        )
        body = row.event.body
        if plan.is_tampered:
            body = _changed(body)
        attempt = DeliveryAttempt(
            delivery_id=row.id,
            endpoint_id=endpoint.id,
            event_id=row.event.id,
            event_type=row.event.type,
            number=row.attempts,
            at_unix=now,
            timestamp=int(signed_at),
            status=None,
            reason="",
            failure=None,
            milliseconds=0.0,
            disturbance=plan.disturbance,
            is_genuine=not plan.is_tampered,
        )
        request = OutgoingRequest(endpoint.url, headers, body)
        return _Prepared(request, attempt, f"{row.key}:{row.attempts}")

    async def _post(
        self, sent: _Prepared, network: Network = CALM, *, loses_answer: bool = False
    ) -> DeliveryAttempt:
        # A receiver cannot answer in time if the body itself takes longer than the sender waits.
        longest = _LONGEST_BODY_SHARE * self._answer_seconds if self._flows else 0.0
        if network.body_seconds > longest:
            network = replace(network, body_seconds=longest)
        loop = asyncio.get_running_loop()
        started = loop.time()
        status, reason, failure, retry_after = None, "", None, ""
        try:
            async with asyncio.timeout(self._answer_seconds):
                answer = await self._transport.post(sent.request, network)
        except TimeoutError:
            failure = NO_ANSWER_IN_TIME.format(self._answer_seconds)
        except ConnectionError as error:
            failure = str(error) or type(error).__name__
        else:
            if loses_answer:
                failure = NO_ANSWER_IN_TIME.format(self._answer_seconds)
            else:
                status, reason = answer.status, answer.reason
                failure = _failure(status)
                retry_after = answer.headers.get("retry-after", "")
        attempt = replace(
            sent.attempt,
            status=status,
            reason=reason,
            failure=failure,
            milliseconds=(loop.time() - started) * 1000,
            retry_after_seconds=float(retry_after) if _SECONDS.fullmatch(retry_after) else None,
        )
        self._note(attempt)
        return attempt


def _changed(body: bytes) -> bytes:
    """Return the body of an event with one letter of a value changed; the body stays valid JSON."""
    value = b'"workspaceId":"'
    index = body.find(value) + len(value) if value in body else len(body) - 1
    return body[:index] + bytes([body[index] ^ 1]) + body[index + 1 :]


def _failure(status: int) -> str | None:
    """Return why the sender counts a status as a failure; None for a 2xx (interface, Events)."""
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"answered {status}; redirects are not followed"
    return f"answered {status}"
