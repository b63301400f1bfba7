"""The sender of the demo: the emulated service, and deliveries that its schedule does not know."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Self

from hookonce import Event
from hookonce.delivery.handler import TEST_TYPE
from hookonce.emulator import Attempt, EmulatedService
from hookonce.emulator.chaos import UNDISTURBED, Plan
from hookonce.emulator.over_http import OverHttp
from hookonce.emulator.records import DeliveryRow, OutgoingEvent
from hookonce.emulator.timeline import ServiceTime
from hookonce.emulator.wire import Wire
from hookonce.events import EVENT_CLASSES
from hookonce.sender import ANSWER_SECONDS
from hookonce.testing.samples import event_body, new_event_id
from hookonce.verification.clock import system_clock

from .log import Answer, Log

PATH = "/webhooks"

# Ten percent more than the first wait (interface, Events: Delivery behaviour).
_FIRST_RETRY = timedelta(seconds=33)


class Sender:
    """Delivers to a receiver over HTTP, and has each answer checked; an async context manager.

    Args:
        url: where to.
        secret: what it signs with in the end.
        old_secret: what it signs with until that is rotated.
        log: where each attempt is printed.

    Attributes:
        deliveries: how many attempts there were.
        events: the ids that were delivered.

    """

    def __init__(self, url: str, secret: str, old_secret: str, log: Log) -> None:
        self.log = log
        self._secret = secret
        self.deliveries = 0
        self.events: set[str] = set()
        self._service = EmulatedService(url, secret=old_secret, on_attempt=self._note)
        self._http = OverHttp()
        self._wire = Wire(
            self._http,
            ServiceTime(system_clock),
            service=self._service.workspace.service,
            answer_seconds=ANSWER_SECONDS,
            flows=True,
            note=self._note,
        )
        self._expected: list[Answer] = []
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._service)
        await self._open.enter_async_context(self._http)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def deliver(
        self, event: str | Event[Any], expected: Answer, *, event_id: str | None = None
    ) -> Event[Any]:
        """Let the service deliver an event of a type, or the same one again, and return it."""
        self._expected.append(expected)
        if isinstance(event, Event):
            return await self._service.emit(event)
        return await self._service.emit(event, event_id=event_id)

    async def deliver_each_type(self, expected: Answer) -> None:
        """Let the service deliver an event of every type, and what it sends when a test is due."""
        for event_type in EVENT_CLASSES:
            if event_type != TEST_TYPE:
                await self.deliver(event_type, expected)
        self._expected.append(expected)
        await self._service.test()

    async def retry(self, expected: Answer) -> None:
        """Let so much time pass that the service tries again what has failed."""
        self._expected.append(expected)
        await self._service.advance(_FIRST_RETRY)
        if self._expected:
            self._expected.clear()
            self.log.fault("there was nothing to try again")

    def rotate_secret(self) -> None:
        """Let the service sign with the other secret too, from now on."""
        self._service.rotate_secret(secret=self._secret)

    async def slip_in(
        self,
        event_type: str,
        expected: Answer,
        *,
        event_id: str | None = None,
        body: bytes | None = None,
        plan: Plan = UNDISTURBED,
    ) -> None:
        """Deliver what the service would not, or in a way that it would not."""
        self._expected.append(expected)
        event_id = event_id or new_event_id()
        body = event_body(event_type, event_id=event_id) if body is None else body
        (endpoint,) = self._service.workspace.endpoints.values()
        row = DeliveryRow(
            id="dlv_demo",
            number=0,
            endpoint_id=endpoint.id,
            event=OutgoingEvent(event_id, event_type, body),
            is_test=False,
            created_at=self._service.now,
            attempts=1,
        )
        await self._wire.deliver(row, endpoint, plan)

    def _note(self, attempt: Attempt) -> None:
        """Have it printed, beside one of the answers that are expected at the moment."""
        self.deliveries += 1
        self.events.add(attempt.event_id)
        answer = (attempt.status, attempt.reason)
        expected = next((one for one in self._expected if one == answer), None)
        if self._expected:
            expected = expected or self._expected[0]
            self._expected.remove(expected)
        self.log.delivery(attempt, expected)
