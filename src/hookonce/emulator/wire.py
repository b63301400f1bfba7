"""Requests as they go over the wire: genuine ones, and those that somebody else sends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from ..verification.secrets import new_secret
from .chaos import UNDISTURBED, Disturbance, Plan
from .records import DeliveryAttempt, DeliveryRow, EndpointRow, OutgoingEvent
from .signing import delivery_headers
from .timeline import ServiceTime
from .transport import CALM, Network, OutgoingRequest, Transport

# What an eavesdropper remembers.
_RECORDED = 200

NO_ANSWER_IN_TIME = "no answer within {:g} s"


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request, and what is known of it before it is answered."""

    request: OutgoingRequest
    attempt: DeliveryAttempt


class Wire:
    """Signs requests, posts them, and notes what came of each.

    Args:
        transport: what takes them to their receivers.
        time: what time it is.
        service: the name in the service's own headers.
        answer_seconds: how long an answer may take.
        flows: whether time flows; where it stands still a slow connection takes none.
        note: told of every request once it is answered, or is not going to be.

    """

    def __init__(
        self,
        transport: Transport,
        time: ServiceTime,
        *,
        service: str,
        answer_seconds: float,
        flows: bool,
        note: Callable[[DeliveryAttempt], None],
    ) -> None:
        self._transport = transport
        self._time = time
        self._service = service
        self._answer_seconds = answer_seconds
        self._flows = flows
        self._note = note
        self._recorded: deque[_Sent] = deque(maxlen=_RECORDED)

    async def deliver(
        self, row: DeliveryRow, endpoint: EndpointRow, plan: Plan = UNDISTURBED
    ) -> DeliveryAttempt:
        """Make the attempt that counts, and return what came of it."""
        sent = self._signed(row, endpoint, plan)
        if not plan.is_tampered:
            self._recorded.append(sent)
        return await self._post(sent, plan.network, loses_answer=plan.loses_answer)

    async def deliver_copy(self, row: DeliveryRow, endpoint: EndpointRow, plan: Plan) -> None:
        """Deliver the same attempt once more, as a service does that is not sure."""
        sent = self._signed(row, endpoint, plan)
        await self._post(_Sent(sent.request, replace(sent.attempt, is_extra=True)))

    async def replay(self, random: Random) -> None:
        """Send something again that was sent before, byte for byte."""
        if not self._recorded:
            return
        old = random.choice(self._recorded)
        attempt = replace(
            old.attempt,
            at=self._time.now(),
            disturbance=Disturbance.REPLAY,
            is_extra=True,
        )
        await self._post(_Sent(old.request, attempt))

    async def forge(self, row: DeliveryRow, endpoint: EndpointRow, random: Random) -> None:
        """Send what somebody without the secret would send."""
        event_id = f"evt_forged_{random.randbytes(8).hex()}"
        body = row.event.body.replace(row.event.id.encode(), event_id.encode())
        forged = replace(row, event=OutgoingEvent(event_id, row.event.type, body))
        stranger = replace(endpoint, secret=new_secret(), previous_secret=None)
        sent = self._signed(forged, stranger, UNDISTURBED)
        headers = dict(sent.request.headers)
        match random.randrange(4):
            case 0:
                del headers["webhook-signature"]
            case 1:
                headers["webhook-signature"] = "v1,bm90aGluZw=="
            case 2:
                headers["webhook-timestamp"] = "yesterday"
        request = replace(sent.request, headers=headers)
        attempt = replace(
            sent.attempt, disturbance=Disturbance.FLOOD, is_genuine=False, is_extra=True
        )
        await self._post(_Sent(request, attempt))

    def _signed(self, row: DeliveryRow, endpoint: EndpointRow, plan: Plan) -> _Sent:
        now = self._time.now()
        signed_at = self._time.signing() + plan.skew_seconds
        headers = delivery_headers(
            row.event,
            endpoint.secrets(now),
            attempt=row.attempts,
            signed_at=signed_at,
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
            at=now,
            timestamp=int(signed_at),
            status=None,
            reason="",
            failure=None,
            milliseconds=0.0,
            disturbance=plan.disturbance,
            is_genuine=not plan.is_tampered,
        )
        return _Sent(OutgoingRequest(endpoint.url, headers, body), attempt)

    async def _post(
        self, sent: _Sent, network: Network = CALM, *, loses_answer: bool = False
    ) -> DeliveryAttempt:
        if not self._flows:
            network = replace(network, body_seconds=0.0)
        loop = asyncio.get_running_loop()
        started = loop.time()
        status, reason, failure = None, "", None
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
                failure = _fault(status)
        attempt = replace(
            sent.attempt,
            status=status,
            reason=reason,
            failure=failure,
            milliseconds=(loop.time() - started) * 1000,
        )
        self._note(attempt)
        return attempt


def _changed(body: bytes) -> bytes:
    """Return a body with another letter in a value: JSON still, and an event like any other."""
    value = b'"workspaceId":"'
    place = body.find(value) + len(value) if value in body else len(body) - 1
    return body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]


def _fault(status: int) -> str | None:
    """Return why a status is no success: any 2xx is one (interface, Events)."""
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"answered {status}; redirects are not followed"
    return f"answered {status}"
