"""Counts the effects of a receiver that runs in its own process, in any language.

The receiver posts the ``webhook-id`` of an event here, in place of the effect. The answer 204 means
that the effect is done; any other answer, or no answer, means that it is not done. So this port can
let an effect fail, take long, or never return because the receiver is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus

from ..clock import system_clock
from ..http.app import Message, Receive, Scope, Send
from .calls import CallLog, CallOutcome, HandlerCall
from .faults import LONGEST_SLEEP_SECONDS, Fault, FaultPlan, Injection

EFFECT = "effect"
"""The name of the effect in findings, in place of a handler's name."""

# Before a kill, the receiver has this long to record the effects that are done: it would repeat an
# effect that it has not recorded.
_RECORDING_SECONDS = 1.0

# The longest slow effect takes the sender's time limit for an answer, times this factor.
_SLOWEST = 1.3

# Every effect succeeds at its third call at the latest, well before the sender gives up.
_MOST_FAULTS = 2

_LONGEST_ID = 1024


class EffectsPort:
    """An ASGI application that counts effects and injects faults into them.

    Args:
        seed: the same seed gives the same faults.
        rate: the probability of a fault at each call, from 0 to 1.
        patience_seconds: how long the sender waits for an answer.
        numbers: the number of each event in the order of drawing, by event id; faults belong to
            numbers, because ids are new in each run.
        restart: kills the receiver and starts it again.
        kills: the numbers of the events whose first effect calls ``restart``.

    Attributes:
        log: the calls.
        restarts: the number of times the receiver was killed.
    """

    def __init__(
        self,
        *,
        seed: int,
        rate: float,
        patience_seconds: float,
        numbers: Mapping[str, int],
        restart: Callable[[], Awaitable[None]] | None = None,
        kills: Collection[int] = (),
    ) -> None:
        kinds = (Fault.FAILS_BEFORE, Fault.SLOW)
        self._plan = FaultPlan(seed=seed, rate=rate, kinds=kinds, most=_MOST_FAULTS)
        self._slowness = _SLOWEST * patience_seconds / LONGEST_SLEEP_SECONDS
        self._numbers = numbers
        self._restart = restart
        self._kills = set(kills)
        self._running: list[str] = []
        self._interrupted: set[str] = set()
        self._opened = asyncio.Event()
        self._opened.set()
        self.log: CallLog = CallLog()
        self.restarts: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more and len(body) <= _LONGEST_ID:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        event_id = body.decode("utf-8", "replace").strip()
        status = HTTPStatus.BAD_REQUEST
        if scope["method"] == "POST" and 0 < len(event_id) <= _LONGEST_ID:
            disconnected = asyncio.ensure_future(receive())
            self._running.append(event_id)
            try:
                status = await self._answer(event_id, disconnected)
            finally:
                self._running.remove(event_id)
                disconnected.cancel()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body"})

    async def _answer(self, event_id: str, disconnected: asyncio.Future[Message]) -> HTTPStatus:
        """Make a call of the effect, and return the status of the answer."""
        number, started, restarts = self.log.start(event_id, EFFECT), system_clock(), self.restarts
        start_order = self.log.next_position()
        injection = self._injection(event_id, number)
        fault = None if injection is None else injection.fault
        if injection is not None and fault is Fault.SLOW:
            await asyncio.sleep(injection.seconds * self._slowness)
        if self._numbers.get(event_id) in self._kills and not disconnected.done():
            await self._kill(event_id)
        await self._opened.wait()
        error = None
        if restarts != self.restarts:
            outcome, error = CallOutcome.CANCELLED, "the receiver was killed"
        elif disconnected.done():
            outcome, error = CallOutcome.CANCELLED, "the receiver closed the connection"
        elif fault is Fault.FAILS_BEFORE:
            outcome = CallOutcome.FAILED
        else:
            outcome = CallOutcome.SUCCEEDED
        self.log.record(
            HandlerCall(
                event_id=event_id,
                handler=EFFECT,
                number=number,
                started_unix=started,
                ended_unix=system_clock(),
                outcome=outcome,
                fault=fault,
                failure_injected=outcome is not CallOutcome.SUCCEEDED,
                error=error,
                start_order=start_order,
                end_order=self.log.next_position(),
            )
        )
        if outcome is CallOutcome.SUCCEEDED:
            return HTTPStatus.NO_CONTENT
        return HTTPStatus.SERVICE_UNAVAILABLE

    def _injection(self, event_id: str, number: int) -> Injection | None:
        event = self._numbers.get(event_id)
        if event is None:
            return None
        injection = self._plan.injection(str(event), EFFECT, number)
        if injection is not None and injection.fault is Fault.FAILS_BEFORE:
            # Inject no failure after a kill: the event may have waited for the end of a lease, and
            # the sender has only one or two attempts left.
            return None if event_id in self._interrupted else injection
        return injection

    async def _kill(self, event_id: str) -> None:
        """Give the receiver time to record every effect, then kill and restart the receiver."""
        restarts = self.restarts
        await self._opened.wait()
        if self._restart is None or restarts != self.restarts:
            # The receiver was killed for another event in the meantime.
            return
        self._kills.discard(self._numbers[event_id])
        self._opened.clear()
        try:
            await asyncio.sleep(_RECORDING_SECONDS)
            self.restarts += 1
            self._interrupted.update(self._running)
            await self._restart()
        finally:
            self._opened.set()
