"""The way of a delivery: verify, read, claim, run, answer. No HTTP, no framework.

The invariant: a 2xx means handled, durably stored, or deliberately ignored; there is never a 3xx
and never a 410. The sender asks again after anything else, for about a day, and gives a receiver
ten seconds (interface, Events: Delivery behaviour), so every path ends within the answer budget.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Collection
from http import HTTPStatus
from typing import Protocol, TypeVar, cast

from ..clock import Clock
from ..errors import PayloadError, SecretError, StoreError, VerificationError
from ..events import Event, UnknownEvent
from ..stores.contract import Store
from ..stores.tokens import new_token
from ..stores.values import (
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    Full,
    InFlight,
    Ownership,
    PutResult,
    Stored,
    Waiting,
)
from ..verification.headers import DeliveryHeaders, DeliveryHints, RawHeaders, header_pairs
from ..verification.signature import VerifiedDelivery, Verifier
from .attempt import Attempt, is_last_chance, is_last_delivery
from .lease import within
from .limits import Limits
from .outcome import DUPLICATE, HANDLED, Outcome, Reason, later
from .records import (
    DeliveryAnswered,
    DeliveryReceived,
    DeliveryRefused,
    DeliveryVerified,
    EventBuried,
    EventClaimed,
    Observers,
)
from .router import Router
from .runs import Runs
from .time_limit import done_within

__all__ = ["Pipeline"]

_log = logging.getLogger("hookonce")

T = TypeVar("T")

# How often another process's claim is looked at: soon at first, since most handlers are quick.
_FIRST_LOOK_SECONDS = 0.05
_LONGEST_LOOK_SECONDS = 0.5
# A call to the store at the very end of the answer budget still gets time to be answered: there can
# be two, and they share what is left of the sender's ten seconds.
_SENDER_WAITS_SECONDS = 9.9

_STORED = Outcome(HTTPStatus.ACCEPTED, Reason.STORED)
_ALREADY_DEAD = Outcome(HTTPStatus.ACCEPTED, Reason.ALREADY_DEAD)


class Intake(Protocol):
    """Where deliveries are stored instead of handled."""

    async def put(self, delivery: Delivery) -> PutResult:
        """Store a delivery durably, unless its event is known or there is no room."""
        ...


class Pipeline:
    """Takes deliveries from bytes to an outcome.

    Args:
        verifier: tells genuine deliveries from others.
        router: the handlers.
        store: what remembers.
        runs: the attempts under way.
        intake: where deliveries are stored instead of handled, if there is an inbox.
        endpoint: the name that scopes the dedup keys.
        service: the sender's name in its own headers, if it is known.
        limits: time limits.
        clock: Unix time in seconds.
        observers: who is told of every step.

    """

    def __init__(
        self,
        *,
        verifier: Verifier,
        router: Router,
        store: Store,
        runs: Runs,
        intake: Intake | None,
        endpoint: str,
        service: str | None,
        limits: Limits,
        clock: Clock,
        observers: Observers,
    ) -> None:
        self._verifier = verifier
        self._router = router
        self._store = store
        self._runs = runs
        self._intake = intake
        self._endpoint = endpoint
        self._service = service
        self._limits = limits
        self._clock = clock
        self._observers = observers
        self._accepting = True
        self._unhandled: set[str] = set()

    def open(self) -> None:
        """Accept deliveries (again)."""
        self._accepting = True

    @property
    def accepting(self) -> bool:
        """Whether deliveries are accepted; they are not during and after a shutdown."""
        return self._accepting

    def close(self) -> None:
        """Accept nothing more; deliveries are answered 503 from now on."""
        self._accepting = False

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        """Return what to answer to a delivery.

        Args:
            body: the raw request body, exactly as received.
            headers: a mapping or (name, value) pairs, str or bytes, any case.
            started: when the request arrived, in the event loop's time; now by default.

        """
        loop = asyncio.get_running_loop()
        if started is None:
            started = loop.time()
        # The time of uvloop's loop has whole milliseconds.
        earlier, entered = loop.time() - started, time.perf_counter()
        headers = _readable_twice(headers)
        received = DeliveryReceived(self._endpoint, body, headers, self._clock())
        self._observers.tell(received)
        verified = event_type = hints = refusal = indexed = None
        try:
            indexed = DeliveryHeaders.indexed(headers, self._service)
            verified = self._verifier.verify_indexed(body, indexed)
        except VerificationError as error:
            # Its traceback leads back to this frame: a circle, with the body in it.
            refusal = error.with_traceback(None)
            self._observers.tell(DeliveryRefused(received, refusal))
            outcome = Outcome(error.status_hint, error.reason)
        except SecretError as error:
            _log.error("no delivery can be verified: %s", error)
            outcome = Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.SECRETS_UNAVAILABLE)
        else:
            hints = indexed.hints
            if self._observers.wants(DeliveryVerified):
                self._observers.tell(DeliveryVerified(received, verified, hints))
            deadline = started + self._limits.answer_seconds
            event_type, outcome = await self._receive(verified, hints, received.at, deadline)
        seconds = earlier + time.perf_counter() - entered
        self._observers.tell(
            DeliveryAnswered(
                self._endpoint,
                outcome,
                seconds,
                received,
                verified,
                event_type,
                hints,
                refusal,
                indexed,
            )
        )
        return outcome

    async def _receive(
        self, verified: VerifiedDelivery, hints: DeliveryHints, at: float, deadline: float
    ) -> tuple[str | None, Outcome]:
        """Return the event's type, if it could be read, and the outcome."""
        if not self._accepting:
            return None, later(Reason.SHUTTING_DOWN)
        try:
            event = self._router.parser.parse(verified.body, verified.id)
        except PayloadError as error:
            arrived = Delivery(self._endpoint, verified.id, None, at, verified.body)
            return None, await self._quarantine(arrived, error, deadline)
        arrived = Delivery(self._endpoint, verified.id, event.type, at, verified.body)
        return event.type, await self._once(event, arrived, hints, deadline)

    async def _once(
        self, event: Event[object], arrived: Delivery, hints: DeliveryHints, deadline: float
    ) -> Outcome:
        handlers = self._router.find(event)
        if not handlers:
            if isinstance(event, UnknownEvent):
                _log.warning("%s is of the unknown type %r; ignored", arrived.key, event.type)
                return Outcome(HTTPStatus.OK, Reason.UNKNOWN_TYPE)
            if event.type not in self._unhandled:
                self._unhandled.add(event.type)  # bounded: a type with a model
                _log.warning("there is no handler for %s; such events are ignored", event.type)
            return Outcome(HTTPStatus.OK, Reason.NO_HANDLER)
        if self._intake is not None:
            return await self._store_in(self._intake, arrived, deadline)
        claim = await self._claim(arrived, deadline)
        if isinstance(claim, Outcome):
            if claim.reason == Reason.IN_FLIGHT and is_last_delivery(hints.attempt):
                await self._keep_in_flight(arrived, deadline)
            return claim
        last_chance = is_last_chance(claim, hints.attempt)
        run = self._runs.begin(Attempt(claim, arrived, event, handlers, last_chance, hints.attempt))
        if await done_within(self._remaining(deadline), run.answer):
            return run.answer.result()
        if run.succeeded:
            return HANDLED
        return later(Reason.STILL_RUNNING)

    async def _store_in(self, intake: Intake, arrived: Delivery, deadline: float) -> Outcome:
        """Store the delivery for the workers, and return the answer that is true after that."""
        try:
            result = await self._in_time(deadline, intake.put(arrived))
        except StoreError as error:
            _log.error("cannot store %s: %s", arrived.key, error)
            return later(Reason.STORE_UNAVAILABLE)
        match result:
            case Stored():
                return _STORED
            case Waiting() | Done():
                return DUPLICATE
            case Dead():
                return _ALREADY_DEAD
            case Full():
                _log.error("the inbox is full, so %s is left to a retry", arrived.key)
                return later(Reason.INBOX_FULL)

    async def _claim(self, arrived: Delivery, deadline: float) -> Claimed | Outcome:
        """Return a claim, or the outcome where there is none to be had before the deadline."""
        try:
            return await self._runs.awaited(self._claim_or_wait(arrived, deadline))
        except StoreError as error:
            _log.error("cannot claim %s: %s", arrived.key, error)
            return later(Reason.STORE_UNAVAILABLE)

    async def _claim_or_wait(self, arrived: Delivery, deadline: float) -> Claimed | Outcome:
        key, token = arrived.key, new_token()
        look = _FIRST_LOOK_SECONDS
        while self._accepting:
            result = await self._in_time(
                deadline, self._store.claim(key, token, self._limits.lease_seconds)
            )
            if self._observers.wants(EventClaimed, arrived.event_id):
                self._observers.tell(EventClaimed(arrived, result))
            match result:
                case Claimed():
                    if self._accepting:
                        return result
                    await self._in_time(deadline, self._store.release(result, frozenset()))
                case Done():
                    return DUPLICATE
                case Dead():
                    return _ALREADY_DEAD
                case InFlight(until):
                    remaining = self._remaining(deadline)
                    if not remaining:
                        return later(Reason.IN_FLIGHT, until - self._clock())
                    await self._wait_for_owner(key, min(look, remaining))
                    look = min(2 * look, _LONGEST_LOOK_SECONDS)
        return later(Reason.SHUTTING_DOWN)

    async def _wait_for_owner(self, key: DeliveryKey, seconds: float) -> None:
        """Wait until the claim's owner settles, if it is in this process, or for a moment."""
        run = self._runs.find(key)
        if run is None or run.answer.done():
            await asyncio.sleep(seconds)
        else:
            await done_within(seconds, run.answer)

    async def _keep_in_flight(self, arrived: Delivery, deadline: float) -> None:
        """Keep the last delivery of an event that is in flight: its attempt may yet fail."""
        if not self._store.keeps_bodies:
            return
        try:
            await self._in_time(deadline, self._store.keep_in_flight(arrived))
        except StoreError as error:
            _log.error("could not keep the last delivery of %s: %s", arrived.key, error)

    async def _quarantine(self, arrived: Delivery, error: PayloadError, deadline: float) -> Outcome:
        """Bury a genuine delivery that cannot be read, with its bytes, for a person to look at."""
        if not self._store.keeps_bodies:
            _log.error("%s cannot be read, and the store keeps no bodies: %s", arrived.key, error)
            return Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.UNREADABLE)
        claim = await self._claim(arrived, deadline)
        if isinstance(claim, Outcome):
            return claim
        try:
            ownership = await self._in_time(
                deadline,
                self._store.bury(claim, DeadReason.UNREADABLE, error=str(error), delivery=arrived),
            )
        except StoreError as fault:
            _log.error("cannot bury %s: %s", arrived.key, fault)
            return later(Reason.STORE_UNAVAILABLE)
        if ownership is Ownership.LOST:
            return later(Reason.IN_FLIGHT)
        _log.error("%s cannot be read, and is a dead letter now: %s", arrived.key, error)
        self._observers.tell(EventBuried(arrived, claim.attempt, DeadReason.UNREADABLE, str(error)))
        return Outcome(HTTPStatus.ACCEPTED, Reason.QUARANTINED)

    async def _in_time(self, deadline: float, call: Awaitable[T]) -> T:
        """Return what a store's call returns, if it does so in time for the answer."""
        last_look = (_SENDER_WAITS_SECONDS - self._limits.answer_seconds) / 2
        left = max(self._remaining(deadline), last_look)
        return await within(min(self._limits.store_seconds, left), call)

    def _remaining(self, deadline: float) -> float:
        return max(0.0, deadline - asyncio.get_running_loop().time())


def _readable_twice(headers: RawHeaders) -> RawHeaders:
    """Return the headers in a form that can be read for the signature and again for the hints."""
    if headers.__class__ is list or isinstance(headers, Collection):
        return headers
    return cast("RawHeaders", list(header_pairs(headers)))
