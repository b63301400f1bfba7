"""Receivers and handlers with one bug each, of kinds that occur in real applications."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from hookonce import Event, Outcome, Reason, Receiver
from hookonce.client import Client
from hookonce.events import ChannelDisconnected, ChannelUnhealthy, CommentReceived
from hookonce.http.app import Receive, Scope, Send
from hookonce.simulation import Breach, Check, Source
from hookonce.verification.headers import DeliveryHeaders, RawHeaders
from hookonce.verification.secrets import new_secret

__all__ = ["PLANTED", "Planted"]

SECRET = new_secret()
NAME = "handler"


@dataclass(frozen=True, slots=True)
class Planted:
    """A receiver with a bug that a test can switch off.

    Attributes:
        make: returns the receiver, and a check of its effects if the bug shows only there. The
            argument says whether the bug is fixed.
        breach: the rule that the receiver breaks.
        events: a number of events in which the bug shows.
    """

    make: Callable[[bool], tuple[Source, Check | None]]
    breach: Breach
    events: int = 100


def receiving(receiver_class: type[Receiver] = Receiver) -> Receiver:
    """Return a receiver with a handler without a bug."""
    receiver = receiver_class(secrets=SECRET, store="memory://")

    @receiver.on(CommentReceived, name=NAME)
    async def handler(event: CommentReceived) -> None: ...

    return receiver


def empty(**settings: Any) -> Receiver:
    return Receiver(secrets=SECRET, store="memory://", **settings)


def each_once(effects: Counter[str]) -> Check:
    """Return a check that each comment has had its effect exactly once."""

    def check(events: Sequence[Event[Any]]) -> None:
        wrong = {
            event.id: effects[event.id]
            for event in events
            if event.type == "comment.received" and effects[event.id] != 1
        }
        assert not wrong, f"{len(wrong)} comments with 0 or several effects"

    return check


def double_effect(fixed: bool) -> tuple[Source, Check | None]:
    """A crash between the effect and the record of the success repeats the effect."""
    receiver, effects = empty(), Counter[str]()

    @receiver.on(CommentReceived, name=NAME)
    async def pay(event: CommentReceived) -> None:
        if not (fixed and effects[event.id]):
            effects[event.id] += 1

    return receiver, each_once(effects)


def answers_twice(fixed: bool) -> tuple[Source, Check | None]:
    """A bot answers a comment without checking whether the comment has an answer already."""
    receiver = empty()

    @receiver.on(CommentReceived, name=NAME)
    async def answer(event: CommentReceived) -> None:
        async with Client() as client:
            if fixed:
                channels = [event.data.channel_id]
                listed = client.comments.list(status="open", channels=channels)
                if event.data.id not in [comment.id async for comment in listed]:
                    return
            await client.comments.reply(event.data.id, "Thank you!")

    return receiver, None


def forgets_ids(fixed: bool) -> tuple[Source, Check | None]:
    """The receiver runs the handlers again for duplicates."""

    class Forgetful(Receiver):
        async def handle(
            self, body: bytes, headers: RawHeaders, *, started: float | None = None
        ) -> Outcome:
            outcome = await super().handle(body, headers, started=started)
            if outcome.reason is Reason.DUPLICATE and not fixed:
                (handler,) = self.handlers
                await handler.function(CommentReceived.model_validate_json(body))
            return outcome

    return receiving(Forgetful), None


def overwrites(fixed: bool) -> tuple[Source, Check | None]:
    """A handler stores the status of the last event to arrive, even if another event is newer."""
    receiver = empty()
    statuses: dict[str, str] = {}
    newest: dict[str, datetime] = {}

    @receiver.on(ChannelUnhealthy, ChannelDisconnected, name=NAME)
    async def follow(event: ChannelUnhealthy | ChannelDisconnected) -> None:
        known = newest.get(event.data.id)
        if not fixed or known is None or known <= event.created_at:
            newest[event.data.id] = event.created_at
            statuses[event.data.id] = event.id

    def check(events: Sequence[Event[Any]]) -> None:
        by_channel: defaultdict[str, list[Event[Any]]] = defaultdict(list)
        for event in events:
            if event.type.startswith("channel."):
                by_channel[event.data.id].append(event)
        for channel, own in by_channel.items():
            last = max(event.created_at.timestamp() for event in own if event.created_at)
            right = {
                event.id
                for event in own
                if event.created_at and event.created_at.timestamp() == last
            }
            assert statuses.get(channel) in right, f"{channel} has an old status"

    return receiver, check


def answers_200_on_failure(fixed: bool) -> tuple[Source, Check | None]:
    """The receiver answers 200 although a handler failed, so the sender does not retry."""

    class Swallowing(Receiver):
        async def handle(
            self, body: bytes, headers: RawHeaders, *, started: float | None = None
        ) -> Outcome:
            outcome = await super().handle(body, headers, started=started)
            if outcome.status == HTTPStatus.INTERNAL_SERVER_ERROR and not fixed:
                return Outcome(HTTPStatus.OK, Reason.HANDLED)
            return outcome

    return receiving(Swallowing), None


def marks_too_soon(fixed: bool) -> tuple[Source, Check | None]:
    """The receiver marks an event as seen before it handles the event."""
    seen: set[str] = set()

    class Shortcut(Receiver):
        async def handle(
            self, body: bytes, headers: RawHeaders, *, started: float | None = None
        ) -> Outcome:
            event_id = DeliveryHeaders.parse(headers).message_id
            if event_id in seen and not fixed:
                return Outcome(HTTPStatus.OK, Reason.DUPLICATE)
            seen.add(event_id)
            return await super().handle(body, headers, started=started)

    return receiving(Shortcut), None


def swallows(fixed: bool) -> tuple[Source, Check | None]:
    """A handler catches the exception of its own connection, and the effect is missing."""
    receiver, effects = empty(), Counter[str]()
    tried: set[str] = set()

    def write(event: CommentReceived) -> None:
        if event.id not in tried:  # only the second attempt gets a working connection
            tried.add(event.id)
            raise ConnectionError("the connection is broken")
        effects[event.id] = 1

    @receiver.on(CommentReceived, name=NAME)
    async def store(event: CommentReceived) -> None:
        if fixed:
            write(event)
            return
        with suppress(ConnectionError):
            write(event)

    return receiver, each_once(effects)


def accepts_in_flight(fixed: bool) -> tuple[Source, Check | None]:
    """The receiver answers an event in flight as a duplicate, and then its handler fails."""

    class Hasty(Receiver):
        async def handle(
            self, body: bytes, headers: RawHeaders, *, started: float | None = None
        ) -> Outcome:
            outcome = await super().handle(body, headers, started=started)
            if outcome.reason is Reason.IN_FLIGHT and not fixed:
                return Outcome(HTTPStatus.OK, Reason.DUPLICATE)
            return outcome

    return receiving(Hasty), None


def answers_late(fixed: bool) -> tuple[Source, Check | None]:
    """The receiver answers duplicates after the sender's time limit."""

    class Dawdling(Receiver):
        async def handle(
            self, body: bytes, headers: RawHeaders, *, started: float | None = None
        ) -> Outcome:
            outcome = await super().handle(body, headers, started=started)
            if outcome.reason is Reason.DUPLICATE and not fixed:
                await asyncio.sleep(11)
            return outcome

    return receiving(Dawdling), None


def wrong_key(fixed: bool) -> tuple[Source, Check | None]:
    """Handlers count the comments of a post, but lock only the comment, so updates get lost."""
    receiver = empty()
    counts: Counter[str] = Counter()
    counted: set[str] = set()

    def key(event: CommentReceived) -> str:
        return str(event.data.post_id if fixed else event.data.id)

    @receiver.on(CommentReceived, name=NAME, serial_by=key)
    async def count(event: CommentReceived) -> None:
        if event.id in counted:
            return
        before = counts[f"{event.data.post_id}"]
        for _ in range(5):  # another handler can read the same number in the meantime
            await asyncio.sleep(0)
        counts[f"{event.data.post_id}"] = before + 1
        counted.add(event.id)

    def check(events: Sequence[Event[Any]]) -> None:
        comments = [event for event in events if event.type == "comment.received"]
        counted_now = dict(counts)
        counts.clear()
        for post, own in Counter(f"{event.data.post_id}" for event in comments).items():
            assert counted_now[post] >= own, f"{own} comments, {counted_now[post]} counted"

    return receiver, check


def keeps_in_memory(fixed: bool) -> tuple[Source, Check | None]:
    """A handler keeps the ids of finished events in memory, and a restart loses them."""
    effects: Counter[str] = Counter()

    def make() -> Receiver:
        receiver = empty()
        done: set[str] = set()

        @receiver.on(CommentReceived, name=NAME)
        async def pay(event: CommentReceived) -> None:
            if event.id in done or (fixed and effects[event.id]):
                return
            effects[event.id] += 1
            done.add(event.id)

        return receiver

    return make, each_once(effects)


def accepts_forgeries(fixed: bool) -> tuple[Source, Check | None]:
    """The receiver answers 200 to requests that fail verification."""

    class Trusting(Receiver):
        async def handle(
            self, body: bytes, headers: RawHeaders, *, started: float | None = None
        ) -> Outcome:
            outcome = await super().handle(body, headers, started=started)
            if outcome.status == HTTPStatus.UNAUTHORIZED and not fixed:
                return Outcome(HTTPStatus.OK, Reason.HANDLED)
            return outcome

    return receiving(Trusting), None


def redirects(fixed: bool) -> tuple[Source, Check | None]:
    """The receiver redirects the second attempt."""

    class Redirecting(Receiver):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            is_second = (b"example-delivery-attempt", b"2") in scope.get("headers", ())
            if scope["type"] == "http" and is_second and not fixed:
                headers = [(b"location", b"/elsewhere")]
                await send({"type": "http.response.start", "status": 307, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
            else:
                await super().__call__(scope, receive, send)

    return receiving(Redirecting), None


PLANTED = {
    "an effect is repeated after a crash": Planted(double_effect, Breach.WRONG_EFFECT),
    "a comment is answered twice": Planted(answers_twice, Breach.REPLIED_TWICE, events=40),
    "duplicates run again": Planted(forgets_ids, Breach.TWICE),
    "an old status overwrites a new status": Planted(overwrites, Breach.WRONG_EFFECT),
    "a failure is answered 200": Planted(answers_200_on_failure, Breach.LOST),
    "an event is marked before it is handled": Planted(marks_too_soon, Breach.LOST),
    "an exception is swallowed": Planted(swallows, Breach.WRONG_EFFECT),
    "an event in flight is answered 200": Planted(accepts_in_flight, Breach.LOST, events=300),
    "an answer is late": Planted(answers_late, Breach.LATE),
    "serial_by has the wrong key": Planted(wrong_key, Breach.WRONG_EFFECT),
    "a restart loses what is in memory": Planted(keeps_in_memory, Breach.WRONG_EFFECT, events=300),
    "a forgery is accepted": Planted(accepts_forgeries, Breach.FORGED),
    "a retry is redirected": Planted(redirects, Breach.PUNISHED),
}
