"""The demo of an inbox: deliveries are answered once they are stored, and a worker handles them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

from hookonce import Context, Event, Inbox, Receiver, Refusal, Reject
from hookonce.delivery.outcome import Reason
from hookonce.emulator.chaos import Plan
from hookonce.events import EVENT_CLASSES
from hookonce.stores.contract import Store
from hookonce.stores.values import DeadReason

from ..output import Output
from .log import Log
from .sender import Sender

_STORED = (HTTPStatus.ACCEPTED, Reason.STORED)
_DUPLICATE = (HTTPStatus.OK, Reason.DUPLICATE)

_FLAKY, _SLOW, _CUT = "evt_demo_flaky", "evt_demo_slow", "evt_demo_cut"
_POISON, _UNWANTED = "evt_poison", "evt_unwanted"

_SUCCEEDED, _FAILED, _REJECTED = "succeeded", "failed", "rejected"
_MAX_ATTEMPTS = 3
_RUNS = {
    _FLAKY: [_FAILED, _SUCCEEDED],
    _POISON: [*[_FAILED] * _MAX_ATTEMPTS, _SUCCEEDED],  # the last one is a replay
    _UNWANTED: [_REJECTED],
}
"""What becomes of the runs of these; every other event is handled at once."""

# What is left to the worker takes a second or two; a machine may have other things to do.
_PATIENCE_SECONDS = 20.0
_LOOK_SECONDS = 0.02


class InboxDemo:
    """A receiver with an inbox, and what is delivered to it.

    Args:
        secrets: the receiver's.
        store: the receiver's.
        endpoint: its name.
        log: where runs of the handler are printed.

    """

    def __init__(self, secrets: Sequence[str], store: Store, endpoint: str, log: Log) -> None:
        inbox = Inbox(max_attempts=_MAX_ATTEMPTS, backoff=0.2)
        self.receiver = Receiver(secrets=secrets, store=store, endpoint=endpoint, inbox=inbox)
        self.receiver.on(*EVENT_CLASSES, name="demo")(self._handle)
        self._log = log
        self._begun: set[str] = set()
        self._runs: defaultdict[str, list[str]] = defaultdict(list)
        self._is_repaired = False

    async def _handle(self, event: Event[object], context: Context) -> None:
        started = time.perf_counter()
        self._begun.add(event.id)
        outcome = _FAILED
        try:
            await self._work_on(event.id, context)
            outcome = _SUCCEEDED
        except Reject:
            outcome = _REJECTED
            raise
        finally:
            runs, expected = self._runs[event.id], _RUNS.get(event.id, [_SUCCEEDED])
            self._log.run(
                event.type,
                event.id,
                context.attempt,
                outcome=outcome,
                expected=expected[len(runs)] if len(runs) < len(expected) else "",
                milliseconds=(time.perf_counter() - started) * 1000,
            )
            runs.append(outcome)

    async def _work_on(self, event_id: str, context: Context) -> None:
        if event_id == _FLAKY and context.attempt == 1:
            raise ConnectionError("the handler's own database is away")
        if event_id == _POISON and not self._is_repaired:
            raise ZeroDivisionError("a fault in the handler")
        if event_id == _UNWANTED:
            raise Reject("nobody wants it")
        if event_id == _SLOW:
            await asyncio.sleep(0.2)

    async def play(self, sender: Sender) -> None:
        """Deliver everything an inbox must cope with, and state what each must lead to."""
        deliver, say, comment = sender.deliver, sender.log.say, "comment.received"
        say("each type of event: answered once it is stored, handled by a worker")
        await sender.deliver_each_type(_STORED)
        await self._all_settled()
        say("a duplicate: not stored again")
        event = await deliver(comment, _STORED)
        await self._all_settled()
        await deliver(event, _DUPLICATE)
        say("a duplicate of an event that is being handled")
        slow = await deliver("message.received", _STORED, event_id=_SLOW)
        await self._until(self._has_begun, "no worker takes what was stored")
        await deliver(slow, _DUPLICATE)
        await self._all_settled()
        say("a body changed on its way is not stored, and one nobody can read is a dead letter")
        forged = (HTTPStatus.UNAUTHORIZED, Refusal.NO_MATCHING_SIGNATURE)
        await sender.slip_in(comment, forged, plan=Plan(is_tampered=True))
        quarantined = (HTTPStatus.ACCEPTED, Reason.QUARANTINED)
        await sender.slip_in(comment, quarantined, event_id=_CUT, body=b'{"id":"evt_demo_c')
        say("a handler that fails: tried again a little later, without the sender")
        await deliver("post.target.failed", _STORED, event_id=_FLAKY)
        await self._all_settled()
        say(f"one that goes on failing, {_MAX_ATTEMPTS} attempts at the most, and one rejected")
        poison = await deliver("channel.disconnected", _STORED, event_id=_POISON)
        await deliver(comment, _STORED, event_id=_UNWANTED)
        await self._all_settled()
        await self._check_letters(
            {
                _CUT: DeadReason.UNREADABLE,
                _POISON: DeadReason.EXHAUSTED,
                _UNWANTED: DeadReason.REJECTED,
            }
        )
        say("both are dead letters; the fault is repaired, and one is replayed")
        await deliver(poison, (HTTPStatus.ACCEPTED, Reason.ALREADY_DEAD))
        self._is_repaired = True
        await self._replay(_POISON)
        await self._check_letters({_CUT: DeadReason.UNREADABLE, _UNWANTED: DeadReason.REJECTED})

    async def _replay(self, event_id: str) -> None:
        try:
            reason = (await self.receiver.dead.replay(event_id)).reason
        except LookupError as error:
            self._log.fault(str(error))
        else:
            if reason != Reason.HANDLED:
                self._log.fault(f"the replay of {event_id} led to {reason}")

    async def _has_begun(self) -> bool:
        return _SLOW in self._begun

    async def _is_worked_off(self) -> bool:
        return (await self.receiver.inbox.stats()).depth == 0

    async def _all_settled(self) -> None:
        await self._until(self._is_worked_off, "the inbox is not worked off")

    async def _until(self, condition: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while not await condition():  # noqa: ASYNC110 - the store has no event for it
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            self._log.fault(otherwise)

    async def _check_letters(self, expected: dict[str, DeadReason]) -> None:
        letters = await self.receiver.dead.list()
        found = {letter.delivery.event_id: letter.reason for letter in letters}
        if found != expected:
            self._log.fault(f"dead letters are {_text(found)}, not {_text(expected)}")

    async def summarise(self, sender: Sender, output: Output) -> bool:
        """Print the counts, and return whether all was right."""
        for event_id, expected in _RUNS.items():
            if (runs := self._runs[event_id]) != expected:
                self._log.fault(f"the runs for {event_id} were {runs}, not {expected}")
        handled = sum(runs[-1:] == [_SUCCEEDED] for runs in self._runs.values())
        count = sum(len(runs) for runs in self._runs.values())
        depth = (await self.receiver.inbox.stats()).depth
        letters = await self.receiver.dead.list()
        # All but the forged one, the unreadable one, and the one that was rejected.
        if (handled, depth) != (len(sender.events) - 3, 0):
            self._log.fault(f"{handled} events are handled, and {depth} left in the inbox")
        right = self._log.wrong == 0
        output.record(
            {
                "deliveries": sender.deliveries,
                "events": len(sender.events),
                "handled": handled,
                "handler_runs": count,
                "waiting": depth,
                "dead_letters": len(letters),
                "wrong_outcomes": self._log.wrong,
                "right": right,
            },
            f"{sender.deliveries} deliveries of {len(sender.events)} events: {handled} handled in"
            f" {count} runs (one after a retry, one by a replay), {len(letters)} dead letters kept"
            f" with their bytes, {depth} left in the inbox, {self._log.wrong} wrong outcomes",
            "bold green" if right else "bold red",
        )
        return right


def _text(letters: dict[str, DeadReason]) -> str:
    return ", ".join(f"{event_id} ({reason})" for event_id, reason in letters.items()) or "none"
