"""The way of a delivery: verify, read, claim, run, answer. No HTTP, no framework.

The invariant: a 2xx means handled, durably stored, or deliberately ignored; there is never a 3xx
and never a 410. The sender asks again after anything else, for about a day, and gives a receiver
ten seconds (interface, Events: Delivery behaviour), so every path ends within the answer budget.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from .attempt import Attempt, Attempts
from .errors import PayloadError, SecretError, StoreError, VerificationError
from .events import Event, UnknownEvent
from .headers import DeliveryHints, RawHeaders
from .lease import within
from .limits import Limits
from .outcome import Outcome, Reason, later
from .routing import Router
from .signature import VerifiedDelivery, Verifier
from .stores.base import (
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    Done,
    InFlight,
    Ownership,
    Store,
)
from .types import Clock, DeliveryKey, new_token

__all__ = ["Pipeline"]

_log = logging.getLogger("hookonce")

# How often another process's claim is looked at: soon at first, since most handlers are quick.
_FIRST_LOOK_SECONDS = 0.05
_LONGEST_LOOK_SECONDS = 0.5
# A look at the very end of the answer budget still gets time to be answered.
_LAST_LOOK_SECONDS = 1.0

_DUPLICATE = Outcome(HTTPStatus.OK, Reason.DUPLICATE)
_ALREADY_DEAD = Outcome(HTTPStatus.ACCEPTED, Reason.ALREADY_DEAD)


class _Run:
    """An attempt under way in this process; it may outlive the request that began it.

    Attributes:
        answer: the outcome, once it stands.
        succeeded: whether every handler has succeeded, recorded or not.

    """

    __slots__ = ("answer", "succeeded")

    def __init__(self) -> None:
        self.answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.succeeded = False

    def has_succeeded(self) -> None:
        self.succeeded = True

    def settle(self, outcome: Outcome) -> None:
        if not self.answer.done():
            self.answer.set_result(outcome)


class Pipeline:
    """Takes deliveries from bytes to an outcome.

    Args:
        verifier: tells genuine deliveries from others.
        router: the handlers.
        store: what remembers.
        attempts: runs and settles.
        endpoint: the name that scopes the dedup keys.
        service: the sender's name in its own headers, if it is known.
        limits: time limits.
        clock: Unix time in seconds.

    """

    def __init__(
        self,
        *,
        verifier: Verifier,
        router: Router,
        store: Store,
        attempts: Attempts,
        endpoint: str,
        service: str | None,
        limits: Limits,
        clock: Clock,
    ) -> None:
        self._verifier = verifier
        self._router = router
        self._store = store
        self._attempts = attempts
        self._endpoint = endpoint
        self._service = service
        self._limits = limits
        self._clock = clock
        self._runs: dict[DeliveryKey, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = True

    def open(self) -> None:
        """Accept deliveries (again)."""
        self._accepting = True

    @property
    def accepting(self) -> bool:
        """Whether deliveries are accepted; they are not during and after a shutdown."""
        return self._accepting

    async def drain(self) -> None:
        """Accept nothing more, wait for running handlers, then cancel and release the rest."""
        self._accepting = False
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=self._limits.drain_seconds)
        if late:
            _log.warning(
                "%d events are still being handled after %g s; they are left to a retry",
                len(late),
                self._limits.drain_seconds,
            )
            for task in late:
                task.cancel()
            await asyncio.wait(late)

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
        deadline = started + self._limits.answer_seconds
        try:
            delivery = self._verifier.verify(body, headers)
        except VerificationError as error:
            _log.warning("refused a delivery: %s", error, extra={"reason": error.reason})
            return Outcome(error.status_hint, error.reason)
        except SecretError as error:
            _log.error("no delivery can be verified: %s", error)
            return Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.SECRETS_UNAVAILABLE)
        hints = DeliveryHints.parse(headers, self._service)
        event_type, outcome = await self._receive(delivery, hints, deadline)
        if _log.isEnabledFor(logging.INFO):
            _log.info(
                "%s %s at %s: %d %s",
                event_type or f"an event said to be {hints.event_type!r}",
                delivery.id,
                self._endpoint,
                outcome.status,
                outcome.reason,
                extra={
                    "endpoint": self._endpoint,
                    "event_id": delivery.id,
                    "event_type": event_type,
                    "delivery_attempt": hints.attempt,
                    "status": int(outcome.status),
                    "reason": str(outcome.reason),
                    "milliseconds": round((loop.time() - started) * 1000, 1),
                },
            )
        return outcome

    async def _receive(
        self, delivery: VerifiedDelivery, hints: DeliveryHints, deadline: float
    ) -> tuple[str | None, Outcome]:
        """Return the event's type, if it could be read, and the outcome."""
        if not self._accepting:
            return None, later(Reason.SHUTTING_DOWN)
        try:
            event = self._router.parser.parse(delivery.body, delivery.id)
        except PayloadError as error:
            return None, await self._quarantine(self._arrived(delivery, None), error, deadline)
        return event.type, await self._once(
            event, self._arrived(delivery, event.type), hints, deadline
        )

    def _arrived(self, delivery: VerifiedDelivery, event_type: str | None) -> Delivery:
        return Delivery(self._endpoint, delivery.id, event_type, self._clock(), delivery.body)

    async def _once(
        self, event: Event[object], arrived: Delivery, hints: DeliveryHints, deadline: float
    ) -> Outcome:
        handlers = self._router.find(event)
        if not handlers:
            if isinstance(event, UnknownEvent):
                _log.warning("%s is of the unknown type %r; ignored", arrived.key, event.type)
                return Outcome(HTTPStatus.OK, Reason.UNKNOWN_TYPE)
            return Outcome(HTTPStatus.OK, Reason.NO_HANDLER)
        claim = await self._claim(arrived.key, deadline)
        if isinstance(claim, Outcome):
            return claim
        run = self._begin(Attempt(claim, arrived, event, handlers, hints.attempt))
        await asyncio.wait({run.answer}, timeout=self._remaining(deadline))
        if run.answer.done():
            return run.answer.result()
        if run.succeeded:
            return Outcome(HTTPStatus.OK, Reason.HANDLED)
        return later(Reason.STILL_RUNNING)

    def _begin(self, attempt: Attempt) -> _Run:
        """Start an attempt in a task of its own, which no lost connection can cancel."""
        run, key = _Run(), attempt.claim.key
        task = asyncio.get_running_loop().create_task(
            self._attempts.make(attempt, succeeded=run.has_succeeded, settled=run.settle)
        )
        self._tasks.add(task)
        self._runs[key] = run

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._runs.get(key) is run:
                del self._runs[key]
            if task.cancelled():
                run.settle(later(Reason.SHUTTING_DOWN))
            elif (error := task.exception()) is not None:
                _log.error("an attempt at %s broke off", key, exc_info=error)
                run.settle(Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.INTERNAL_ERROR))

        task.add_done_callback(ended)
        return run

    async def _claim(self, key: DeliveryKey, deadline: float) -> Claimed | Outcome:
        """Return a claim, or the outcome where there is none to be had before the deadline."""
        token = new_token()
        look = _FIRST_LOOK_SECONDS
        while True:
            remaining = self._remaining(deadline)
            try:
                result = await within(
                    min(self._limits.store_seconds, max(remaining, _LAST_LOOK_SECONDS)),
                    self._store.claim(key, token, self._limits.lease_seconds),
                )
            except StoreError as error:
                _log.error("cannot claim %s: %s", key, error)
                return later(Reason.STORE_UNAVAILABLE)
            match result:
                case Claimed():
                    return result
                case Done():
                    return _DUPLICATE
                case Dead():
                    return _ALREADY_DEAD
                case InFlight(until):
                    if remaining <= 0:
                        return later(Reason.IN_FLIGHT, until - self._clock())
                    await self._wait_for_owner(key, min(look, remaining))
                    look = min(2 * look, _LONGEST_LOOK_SECONDS)

    async def _wait_for_owner(self, key: DeliveryKey, seconds: float) -> None:
        """Wait until the claim's owner settles, if it is in this process, or for a moment."""
        run = self._runs.get(key)
        if run is None or run.answer.done():
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait({run.answer}, timeout=seconds)

    async def _quarantine(self, arrived: Delivery, error: PayloadError, deadline: float) -> Outcome:
        """Bury a genuine delivery that cannot be read, with its bytes, for a person to look at."""
        _log.error("%s cannot be read: %s", arrived.key, error)
        if not self._store.keeps_bodies:
            return Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.UNREADABLE)
        claim = await self._claim(arrived.key, deadline)
        if isinstance(claim, Outcome):
            return claim
        try:
            ownership = await within(
                self._limits.store_seconds,
                self._store.bury(claim, DeadReason.UNREADABLE, error=str(error), delivery=arrived),
            )
        except StoreError as fault:
            _log.error("cannot bury %s: %s", arrived.key, fault)
            return later(Reason.STORE_UNAVAILABLE)
        if ownership is Ownership.LOST:
            return later(Reason.IN_FLIGHT)
        return Outcome(HTTPStatus.ACCEPTED, Reason.QUARANTINED)

    def _remaining(self, deadline: float) -> float:
        return max(0.0, deadline - asyncio.get_running_loop().time())
