"""The demo of handlers that run inside the request: all that a receiver must cope with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus

from hookonce import Context, Event, Receiver, Refusal
from hookonce.delivery.outcome import Reason
from hookonce.emulator.chaos import Plan
from hookonce.events import EVENT_CLASSES
from hookonce.stores.contract import Store
from hookonce.testing.samples import make_event

from ..output import Output
from .sender import Sender

_HANDLED = (HTTPStatus.OK, Reason.HANDLED)
_DUPLICATE = (HTTPStatus.OK, Reason.DUPLICATE)
_FLAKY, _SLOW, _CUT = "evt_demo_flaky", "evt_demo_slow", "evt_demo_cut"


class InlineDemo:
    """A receiver without an inbox, and what is delivered to it.

    Args:
        secrets: the receiver's.
        store: the receiver's.
        endpoint: its name.

    """

    def __init__(self, secrets: Sequence[str], store: Store, endpoint: str) -> None:
        self.receiver = Receiver(secrets=secrets, store=store, endpoint=endpoint)
        self.receiver.on(*EVENT_CLASSES, name="demo")(self._handle)
        self._runs: Counter[str] = Counter()

    async def _handle(self, event: Event[object], context: Context) -> None:
        self._runs[event.id] += 1
        if event.id == _FLAKY and context.attempt == 1:
            raise ConnectionError("the handler's own database is away")
        if event.id == _SLOW:
            await asyncio.sleep(0.2)

    async def play(self, sender: Sender) -> None:
        """Deliver everything a receiver must cope with, and state what each must lead to."""
        deliver, say, comment = sender.deliver, sender.log.say, "comment.received"
        say("each type of event")
        await sender.deliver_each_type(_HANDLED)
        say("a duplicate: not handled again")
        event = await deliver(comment, _HANDLED)
        await deliver(event, _DUPLICATE)
        say("a handler that fails: the retry is no duplicate")
        failed = (HTTPStatus.INTERNAL_SERVER_ERROR, Reason.HANDLER_FAILED)
        await deliver("post.target.failed", failed, event_id=_FLAKY)
        await sender.retry(_HANDLED)
        say("two copies at the same time: one is handled, the other waits for it")
        slow = make_event("message.received", event_id=_SLOW)
        async with asyncio.TaskGroup() as copies:
            copies.create_task(deliver(slow, _HANDLED))
            copies.create_task(deliver(slow, _DUPLICATE))
        say("a body changed on its way, and a delivery recorded and replayed")
        forged = (HTTPStatus.UNAUTHORIZED, Refusal.NO_MATCHING_SIGNATURE)
        await sender.slip_in(comment, forged, plan=Plan(is_tampered=True))
        too_old = (HTTPStatus.UNAUTHORIZED, Refusal.TIMESTAMP_TOO_OLD)
        await sender.slip_in(comment, too_old, plan=Plan(skew_seconds=-302))
        say("a secret being rotated: two signatures from now on")
        sender.rotate_secret()
        await deliver("channel.unhealthy", _HANDLED)
        say("a type nobody knows yet, and a body nobody can read")
        await sender.slip_in("post.target.boosted", (HTTPStatus.OK, Reason.UNKNOWN_TYPE))
        quarantined = (HTTPStatus.ACCEPTED, Reason.QUARANTINED)
        await sender.slip_in(comment, quarantined, event_id=_CUT, body=b'{"id":"evt_demo_c')

    async def summarise(self, sender: Sender, output: Output) -> bool:
        """Print the counts, and return whether all was right."""
        runs, wrong = self._runs, sender.log.wrong
        letters = await self.receiver.dead.list()
        # The one that failed ran once more; every other event that was handled ran once.
        twice = [event_id for event_id, count in runs.items() if count != 1]
        right = wrong == 0 and twice == [_FLAKY] and len(letters) == 1
        output.record(
            {
                "deliveries": sender.deliveries,
                "events": len(sender.events),
                "handled": len(runs),
                "handler_runs": runs.total(),
                "dead_letters": len(letters),
                "wrong_outcomes": wrong,
                "right": right,
            },
            f"{sender.deliveries} deliveries of {len(sender.events)} events: {len(runs)} handled in"
            f" {runs.total()} runs (one had failed first), {len(letters)} dead letter kept with its"
            f" bytes, {wrong} wrong outcomes",
            "bold green" if right else "bold red",
        )
        return right
