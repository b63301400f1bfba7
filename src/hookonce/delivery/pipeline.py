"""The path of a delivery: verify, parse, begin an attempt, answer. No HTTP, no framework.

Invariant: a 2xx means handled, durably stored, or deliberately ignored; the answer is never a 3xx
and never a 410. After any other answer the sender tries again by its schedule. It waits a limited
time for an answer (`Rules.answer_seconds`), so every path ends within the answer budget.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import Any, Protocol, cast

from ..errors import PayloadError, SecretError, StoreError, VerificationError
from ..events import Event, UnknownEvent
from ..logs import event_fields, get_logger
from ..outcome import (
    ALREADY_DEAD,
    BROKEN,
    DUPLICATE,
    USUAL_WAIT,
    Outcome,
    Reason,
    later,
    wait_header,
)
from ..routing.handler import Handler
from ..senders.sender import Sender
from ..stores.time_limit import within
from ..stores.values import Dead, Delivery, Done, EnqueueResult, Full, KeyLock, Stored, Waiting
from ..verification.header_names import names_of
from ..verification.headers import DeliveryHints, RawHeaders, header_pairs, read_headers
from ..verification.signature import PartsVerifier, VerifiedDelivery
from ..watching.log import delivery_fields
from ..watching.records import (
    DeliveryAnswered,
    DeliveryAuthenticated,
    DeliveryReceived,
    DeliveryRefused,
)
from .attempt import Attempt
from .attempts import Attempts
from .dependencies import Dependencies
from .handshake import reply_to
from .ignored import IgnoredTypes
from .keeping import keep_in_flight
from .origin import Request
from .unhandled import Ignored, Unreadable
from .verdict import is_last_delivery, redelivered_until, store_failed

_log = get_logger("hookonce")

_STORED = Outcome(HTTPStatus.ACCEPTED, Reason.STORED)
_UNREADABLE = Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.UNREADABLE)
_UNKNOWN_TYPE = Outcome(HTTPStatus.OK, Reason.UNKNOWN_TYPE)
_NO_HANDLER = Outcome(HTTPStatus.OK, Reason.NO_HANDLER)
_NO_SECRETS = Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.SECRETS_UNAVAILABLE)


class Intake(Protocol):
    """Stores deliveries for the workers."""

    async def enqueue(self, delivery: Delivery, key_lock: KeyLock | None = None) -> EnqueueResult:
        """Store a delivery durably, unless its event is known or the inbox is full."""
        ...


class Pipeline:
    """Turns the bytes of a delivery into an outcome.

    Args:
        dependencies: what all attempts of the receiver share.
        verifier: checks signatures.
        sender: who sends.
        attempts: the attempts in flight.
        intake: where deliveries are stored instead of handled, if there is an inbox.
        ignored: records the event types that have no handler in this process.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        *,
        verifier: PartsVerifier,
        sender: Sender,
        attempts: Attempts,
        intake: Intake | None,
        ignored: IgnoredTypes,
    ) -> None:
        self._dependencies = dependencies
        self._verifier = verifier
        self._sender = sender
        self._header_names = names_of(sender)
        self._wait = wait_header(waits[0]) if (waits := sender.rules.retry_seconds) else USUAL_WAIT
        self._attempts = attempts
        self._intake = intake
        self._ignored_types = ignored
        self._logged_types: set[str] = set()
        # Choose once here: deliveries of a sender without a handshake then need no check.
        self._read = self._parse if sender.handshake is None else self._parse_or_reply

    async def handle(
        self,
        body: bytes,
        headers: RawHeaders,
        *,
        started: float | None = None,
        is_backfill: bool = False,
    ) -> Outcome:
        """Return the answer to a delivery.

        Args:
            body: the raw request body, exactly as received.
            headers: a mapping or (name, value) pairs, str or bytes, any case.
            started: when the request arrived, in the event loop's time; now by default.
            is_backfill: whether ``Receiver.backfill`` made this delivery.
        """
        now = asyncio.get_running_loop().time()
        if started is None:
            started = now
        since = time.perf_counter() - (now - started)  # more precise than uvloop's loop.time()
        dependencies = self._dependencies
        observers = dependencies.observers
        if not isinstance(headers, list):
            headers = _readable_twice(headers)
        received = DeliveryReceived(
            dependencies.endpoint, body, headers, dependencies.clock(), is_backfill, self._sender
        )
        if observers.look_closely:
            observers.notify(received)
        try:
            signed, hints = read_headers(headers, self._header_names)
            verified = self._verifier.verify_parts(body, signed, now=received.at_unix)
        except VerificationError as error:
            refusal = error.with_traceback(None)  # break a reference cycle: see calls.py
            observers.notify(DeliveryRefused(received, refusal))
            outcome = Outcome(error.status_hint, error.reason)
            return self._answer(received, since, outcome, refusal=refusal)
        except SecretError as error:
            _log.error("no delivery can be verified: %s", error)
            return self._answer(received, since, _NO_SECRETS)
        if observers.look_closely:
            observers.notify_of(DeliveryAuthenticated, received, verified, hints)
        event = self._read(verified)
        if isinstance(event, Outcome):
            return self._answer(received, since, event, verified=verified, hints=hints)
        arrived = Delivery(
            dependencies.endpoint, verified.id, event.type, received.at_unix, verified.body
        )
        answer_due = started + dependencies.limits.answer_seconds
        origin = Request(answer_due, hints.attempt, verified.timestamp)
        outcome = await self._process(arrived, event, origin)
        if (outcome is _NO_HANDLER or outcome is _UNKNOWN_TYPE) and not is_backfill:
            self._ignored_types.note(event.type or "", verified.timestamp, received.at_unix)
        return self._answer(
            received,
            since,
            outcome,
            verified=verified,
            event_type=event.type,
            hints=hints,
            unreadable=event.error if isinstance(event, Unreadable) else None,
        )

    def _answer(
        self,
        received: DeliveryReceived,
        since: float,
        outcome: Outcome,
        *,
        verified: VerifiedDelivery | None = None,
        event_type: str | None = None,
        hints: DeliveryHints | None = None,
        refusal: VerificationError | None = None,
        unreadable: PayloadError | None = None,
    ) -> Outcome:
        """Notify the observers of the answer, and return it."""
        if outcome.headers is USUAL_WAIT:
            outcome = Outcome(outcome.status, outcome.reason, self._wait)
        seconds = time.perf_counter() - since
        answered = DeliveryAnswered(
            received.endpoint,
            outcome,
            seconds,
            received,
            verified,
            event_type,
            hints,
            refusal,
            unreadable,
        )
        self._dependencies.observers.notify(answered)
        return outcome

    def _parse_or_reply(self, verified: VerifiedDelivery) -> Event[Any] | Unreadable | Outcome:
        """Return the answer to a sender's challenge, or the result of ``_parse``."""
        handshake, endpoint = self._sender.handshake, self._dependencies.endpoint
        reply = None if handshake is None else reply_to(verified, handshake, endpoint)
        return self._parse(verified) if reply is None else reply

    def _parse(self, verified: VerifiedDelivery) -> Event[Any] | Unreadable | Outcome:
        """Return the event or ``Unreadable``; return an outcome if no attempt may begin."""
        if not self._attempts.accepting:
            return later(Reason.SHUTTING_DOWN)
        try:
            return self._dependencies.handler_table.parser.parse(verified.body, verified.id)
        except PayloadError as error:
            error.__context__ = None  # an error of pydantic holds the body
            return Unreadable(error.with_traceback(None))
        except Exception:  # noqa: BLE001 - pydantic cannot build an event class, for example
            _log.exception(
                "cannot parse deliveries; the first is %s",
                verified.id,
                extra=event_fields(self._dependencies.endpoint, verified.id, None),
            )
            return BROKEN

    async def _process(
        self, arrived: Delivery, event: Event[Any] | Unreadable, origin: Request
    ) -> Outcome:
        """Handle, store or ignore a delivery, and return the outcome."""
        dependencies, attempts = self._dependencies, self._attempts
        if isinstance(event, Unreadable):
            if not dependencies.store.keeps_bodies:
                _log.error(
                    "%s cannot be read, and the store keeps no bodies: %s",
                    arrived.key,
                    event.fault,
                    extra=delivery_fields(arrived),
                )
                return _UNREADABLE
            attempt = Attempt(dependencies, arrived, origin, unhandled=event)
        elif handlers := dependencies.handler_table.find(event):
            if self._intake is not None:
                key_lock = self._key_lock_of(arrived, event, handlers)
                return await self._enqueue(self._intake, arrived, origin.answer_due, key_lock)
            attempt = Attempt(dependencies, arrived, origin, event, handlers)
        else:
            ignored = self._ignore(arrived, event)
            # At a later attempt, ask the store: a handler of another process may be outstanding.
            if origin.delivery_attempt == 1 or self._intake is not None:
                return ignored
            attempt = Attempt(dependencies, arrived, origin, event, unhandled=Ignored(ignored))
        if attempts.find(attempt.lease.key) is None:
            outcome = await attempts.begin(attempt).answer.future
        else:
            outcome = await self._join(attempt, origin.answer_due)
        if outcome.reason is Reason.IN_FLIGHT:
            rules = dependencies.rules
            if is_last_delivery(rules, origin.delivery_attempt):
                until = redelivered_until(rules, attempt.handling.event, origin.sent_at)
                await keep_in_flight(dependencies, arrived, until)
        return outcome

    async def _join(self, attempt: Attempt, answer_due: float) -> Outcome:
        """Wait for the attempt in flight; begin this attempt if the other one fails."""
        attempts = self._attempts
        while (other := attempts.find(attempt.lease.key)) is not None:
            left = answer_due - asyncio.get_running_loop().time()
            # An answered attempt has woken its waiters already; do not join it.
            if not other.answer.is_success and not await other.answer.wait_until_final(left):
                return later(Reason.IN_FLIGHT, other.lease.left)
            if other.has_succeeded:
                return DUPLICATE
            if not attempts.accepting:
                return later(Reason.SHUTTING_DOWN)
        return await attempts.begin(attempt).answer.future

    def _ignore(self, arrived: Delivery, event: Event[Any]) -> Outcome:
        """Log an event without a handler, and return the answer to it."""
        if isinstance(event, UnknownEvent):
            _log.warning(
                "%s is of the unknown type %r; ignored",
                arrived.key,
                event.type,
                extra=delivery_fields(arrived),
            )
            return _UNKNOWN_TYPE
        if event.type not in self._logged_types:
            self._logged_types.add(event.type)  # bounded: only types with an event class get here
            _log.warning(
                "there is no handler for %s; such events are ignored",
                event.type,
                extra=delivery_fields(arrived),
            )
        return _NO_HANDLER

    def _key_lock_of(
        self, arrived: Delivery, event: Event[Any], handlers: Sequence[Handler]
    ) -> KeyLock | None:
        """Return the key lock of an event with one handler; None if the event needs no lock.

        An error of the key function never refuses a delivery: the worker computes the key again,
        and then the error is a failure of the handler.
        """
        if len(handlers) != 1 or (keyed := handlers[0].keyed) is None:
            return None
        try:
            return keyed.key_lock(event, arrived.endpoint, handlers[0].name)
        except Exception as error:  # noqa: BLE001 - the key function is the user's
            _log.debug(
                "cannot compute the key of %s yet",
                arrived.key,
                exc_info=error,
                extra=delivery_fields(arrived),
            )
            return None

    async def _enqueue(
        self, intake: Intake, arrived: Delivery, answer_due: float, key_lock: KeyLock | None
    ) -> Outcome:
        """Store the delivery for the workers, and return the answer."""
        limits, left = self._dependencies.limits, answer_due - asyncio.get_running_loop().time()
        seconds = limits.store_seconds_within(left)
        try:
            result = await within(seconds, intake.enqueue(arrived, key_lock))
        except StoreError as error:
            _log.error("cannot store %s: %s", arrived.key, error, extra=delivery_fields(arrived))
            return store_failed(error)
        match result:
            case Stored():
                return _STORED
            case Waiting() | Done():
                return DUPLICATE
            case Dead():
                return ALREADY_DEAD
            case Full():
                _log.error(
                    "the inbox is full; the sender must deliver %s again",
                    arrived.key,
                    extra=delivery_fields(arrived),
                )
                return later(Reason.INBOX_FULL)


def _readable_twice(headers: RawHeaders) -> RawHeaders:
    """Return headers that can be iterated twice: for the signature and for observers."""
    if isinstance(headers, Collection):
        return headers
    return cast("RawHeaders", list(header_pairs(headers)))
