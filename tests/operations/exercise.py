"""Sends every kind of delivery to real receivers, for the tests of observers."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.waiting import until_async

from hookonce import Backoff, Context, Inbox, Receiver, Reject, Retry
from hookonce.events import ChannelUnhealthy, CommentReceived, PostTargetFailed
from hookonce.operations.prometheus import PrometheusObserver
from hookonce.stores.values import Delivery
from hookonce.testing import SignedRequest, TestSender, event_body, make_event, signed_request
from hookonce.verification.secrets import new_secret
from hookonce.watching.records import (
    EventDeferred,
    HandlerSkipped,
    LoopBlocked,
    Observer,
    SkipReason,
)

__all__ = [
    "OLD_SECRET",
    "SECRET",
    "Sample",
    "deliver_everything",
    "samples",
    "unknown_event",
]

SECRET, OLD_SECRET = new_secret(), new_secret()


@dataclass(frozen=True)
class Sample:
    """One line of the metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(source: PrometheusObserver | str) -> list[Sample]:
    """Return the samples of an observer, or of metrics in text form."""
    text = source if isinstance(source, str) else generate_latest(source.registry).decode()
    return [
        Sample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def unknown_event(event_type: str, event_id: str) -> dict[str, Any]:
    return {
        "id": event_id,
        "type": event_type,
        "createdAt": "2026-01-01T00:00:00.000Z",
        "workspaceId": "ws_1",
        "data": {},
    }


LookOn: TypeAlias = Callable[[Receiver], Awaitable[object]]


async def _look_away(_: Receiver) -> None: ...


async def deliver_everything(
    observer: Observer, here: Path, at_the_end: LookOn = _look_away
) -> None:
    """Send every kind of delivery to two receivers, one of them with an inbox.

    ``at_the_end`` is called with each receiver before it shuts down.
    """
    await _inline(observer, here, at_the_end)
    await _through_an_inbox(observer, here, at_the_end)


async def _inline(observer: Observer, here: Path, at_the_end: LookOn) -> None:
    receiver = Receiver(
        secrets=[SECRET, OLD_SECRET],
        store=f"sqlite:///{here}/inline.db",
        endpoint="inline",
        observers=[observer],
    )

    @receiver.on(CommentReceived, name="fails-once")
    async def fails_once(_: CommentReceived, context: Context) -> None:
        if context.attempt == 1:
            raise ConnectionError("busy")

    @receiver.on(PostTargetFailed, name="asks-for-another")
    def asks_for_another(_: PostTargetFailed) -> None:
        raise Retry(after=5)

    @receiver.on(ChannelUnhealthy, name="rejects")
    async def rejects(_: ChannelUnhealthy) -> None:
        raise Reject("no such channel")

    async with TestSender(receiver, secrets=SECRET) as sender:
        comment = make_event(CommentReceived)
        (await sender.send(comment)).expect(500, "handler_failed")
        (await sender.send(comment, attempt=2)).expect(200, "handled")
        (await sender.send(comment, attempt=3)).expect(200, "duplicate")
        (await sender.send(make_event(PostTargetFailed))).expect(503, "retry_requested")
        (await sender.send(make_event(ChannelUnhealthy))).expect(202, "rejected")
        (await sender.send(event_body("webhook.test"), message_id="evt_t")).expect(202)
        (await sender.send(event_body("webhook.test", event_id="evt_t2"))).expect(200, "no_handler")
        (await sender.send(unknown_event("story.shared", "evt_u"))).expect(200, "unknown_type")
        (await sender.send(b"{", message_id="evt_b")).expect(202, "quarantined")
        (await sender.send(comment, tamper=True)).expect(401, "no_matching_signature")
        (await sender.send(comment, skew=4000)).expect(401, "timestamp_too_old")
        (await sender.send(comment, secrets=[OLD_SECRET])).expect(200, "duplicate")
        (await sender.send(comment, secrets=[OLD_SECRET, SECRET])).expect(200, "duplicate")
        bare = signed_request(comment, SECRET)
        headers = {n: v for n, v in bare.headers.items() if n != "webhook-id"}
        (await sender.post(SignedRequest(bare.body, headers))).expect(400, "missing_id")
        # Report a blocked loop without blocking one: that takes a second, and has its own test.
        observer.loop_blocked(LoopBlocked("inline", "fails-once", 1.0))
        await at_the_end(receiver)


async def _through_an_inbox(observer: Observer, here: Path, at_the_end: LookOn) -> None:
    receiver = Receiver(
        secrets=SECRET,
        store=f"sqlite:///{here}/inbox.db",
        endpoint="queued",
        inbox=Inbox(backoff=Backoff(first_seconds=0.01, jitter=0), max_attempts=2),
        observers=[observer],
    )

    @receiver.on(CommentReceived, name="works")
    async def works(_: CommentReceived, context: Context) -> None:
        if context.attempt == 1:
            raise ConnectionError("busy")

    @receiver.on(PostTargetFailed, name="never-works")
    async def never_works(_: PostTargetFailed) -> None:
        raise ConnectionError("always busy")

    async with TestSender(receiver, secrets=SECRET) as sender:
        comment = make_event(CommentReceived)
        (await sender.send(comment)).expect(202, "stored")
        (await sender.send(comment, attempt=2)).expect(200, "duplicate")
        (await sender.send(make_event(PostTargetFailed))).expect(202, "stored")

        # Report these two steps without causing them: that takes key locks, which have their own
        # tests.
        waits = Delivery("queued", comment.id, comment.type, 0.0, b"")
        observer.event_deferred(EventDeferred(waits, 1, 30.0))
        observer.handler_skipped(HandlerSkipped(waits, "works", 1, SkipReason.STALE))

        async def ended() -> bool:
            stats = await receiver.stats()
            return stats.depth == 0 and stats.dead == 1

        await until_async(ended, what="both events have ended")
        await at_the_end(receiver)
