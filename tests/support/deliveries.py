"""A receiver with one secret, and deliveries to it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hookonce import Inbox, Limits, Outcome, Receiver
from hookonce.clock import system_clock
from hookonce.events import CommentReceived, Event
from hookonce.stores import open_store
from hookonce.stores.protocols import Store
from hookonce.testing import TestSender, make_event, signed_request
from hookonce.verification.secrets import new_secret

from .servers import HttpSender
from .waiting import until_async

__all__ = [
    "COMMENT_TEXT",
    "SECRET",
    "answer_of",
    "comment",
    "deliver",
    "empty_inbox",
    "is_done",
    "is_unready",
    "long_ago",
    "nothing_in_flight",
    "receiver_on",
    "shuts_down",
    "sqlite_url",
]

SECRET = new_secret()
COMMENT_TEXT = "the words somebody wrote to the bakery"


def receiver_on(
    store: Store | str = "memory://", *, inbox: Inbox | None = None, **limits: Any
) -> Receiver:
    return Receiver(secrets=SECRET, store=store, inbox=inbox, limits=Limits(**limits))


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'hooks.db'}"


def comment(event_id: str | None = None, *, created_at: datetime | None = None) -> CommentReceived:
    return make_event(
        CommentReceived, event_id=event_id, created_at=created_at, data={"text": COMMENT_TEXT}
    )


def long_ago() -> datetime:
    """Return a creation time so long ago that the sender's last attempt is due now."""
    return datetime.now(UTC) - timedelta(hours=21)


async def deliver(receiver: Receiver, event: Event[Any], attempt: int = 1) -> Outcome:
    """Hand an event to a receiver in this process, without a server."""
    request = signed_request(event, SECRET, attempt=attempt)
    return await receiver.handle(request.body, request.headers)


def answer_of(outcome: Outcome) -> tuple[int, str]:
    return int(outcome.status), str(outcome.reason)


async def is_done(sender: TestSender | HttpSender, event: Event[Any]) -> bool:
    """Send an event again; return whether the receiver calls it a duplicate."""
    return (await sender.send(event)).reason == "duplicate"


async def nothing_in_flight(store_url: str) -> None:
    """Return once no event of a store is claimed."""
    store = open_store(store_url, clock=system_clock)

    async def is_free() -> bool:
        return (await store.stats()).in_flight == 0

    try:
        await until_async(is_free, what="nothing in flight")
    finally:
        await store.aclose()


async def empty_inbox(receiver: Receiver) -> None:
    """Return once no event waits or runs."""

    async def is_empty() -> bool:
        stats = await receiver.waiting.stats()
        return stats.depth == stats.in_flight == 0

    await until_async(is_empty, what="an empty inbox")


async def is_unready(receiver: Receiver) -> bool:
    return not (await receiver.check()).ready


async def shuts_down(receiver: Receiver) -> None:
    """Return once a receiver has begun to shut down."""
    await until_async(lambda: is_unready(receiver), what="it has begun to shut down")
