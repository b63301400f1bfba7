"""``keep_handled``: a receiver keeps the deliveries of handled events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET, answer_of, comment, deliver, sqlite_url
from support.waiting import until_async

from hookonce import Inbox, Receiver, Reject
from hookonce.clock import ManualClock, system_clock
from hookonce.events import CommentReceived, MessageReceived
from hookonce.stores.handled import HandledStats
from hookonce.stores.memory import MemoryStore
from hookonce.stores.record_store import RecordStore
from hookonce.testing import make_event, signed_request

pytestmark = pytest.mark.anyio

DAYS = timedelta(days=3)


@pytest.fixture(params=["sqlite", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return sqlite_url(tmp_path) if request.param == "sqlite" else "memory://"


def keeping(url: str, **settings: Any) -> Receiver:
    receiver = Receiver(secrets=SECRET, store=url, **{"keep_handled": DAYS, **settings})

    @receiver.on(CommentReceived, name="first")
    async def first(_: CommentReceived) -> None: ...

    @receiver.on(CommentReceived, name="second")
    def second(_: CommentReceived) -> None: ...

    return receiver


async def test_a_handled_delivery_is_kept_with_its_body_and_its_handlers(url: str) -> None:
    receiver, event = keeping(url), comment("evt_1")
    request = signed_request(event, SECRET)
    async with receiver:
        assert answer_of(await deliver(receiver, event)) == (200, "handled")
        [listed] = await receiver.handled.list()
        shown = await receiver.handled.show("evt_1")
        assert shown is not None
        assert shown.delivery.body == request.body
        assert (shown.delivery.event_id, shown.delivery.event_type) == ("evt_1", "comment.received")
        assert shown.finished == {"first", "second"}
        assert shown.expires_unix - shown.handled_unix == pytest.approx(DAYS.total_seconds())
        assert (listed.finished, listed.delivery.body) == (shown.finished, b"")
        assert await receiver.handled.stats() == HandledStats(1, len(request.body))
        assert await receiver.handled.show("evt_2") is None
        assert answer_of(await deliver(receiver, event)) == (200, "duplicate")
        assert len(await receiver.handled.list()) == 1


async def test_only_a_success_is_kept_with_the_handlers_of_all_attempts(url: str) -> None:
    receiver, broken = keeping(url), [True]

    @receiver.on(CommentReceived, name="third")
    async def third(_: CommentReceived) -> None:
        if broken:
            broken.pop()
            raise RuntimeError

    async with receiver:
        assert answer_of(await deliver(receiver, comment("evt_1"))) == (500, "handler_failed")
        assert await receiver.handled.list() == []
        assert answer_of(await deliver(receiver, comment("evt_1"))) == (200, "handled")
        [kept] = await receiver.handled.list()
        assert kept.finished == {"first", "second", "third"}


async def test_an_ignored_event_is_not_kept(url: str) -> None:
    receiver = keeping(url)
    async with receiver:
        event = make_event(MessageReceived)
        assert answer_of(await deliver(receiver, event)) == (200, "no_handler")
        assert await receiver.handled.list() == []


async def test_an_event_of_the_inbox_is_kept_when_a_worker_has_handled_it(tmp_path: Path) -> None:
    receiver = keeping(sqlite_url(tmp_path), inbox=Inbox())
    async with receiver:
        assert answer_of(await deliver(receiver, comment("evt_1"))) == (202, "stored")

        async def is_kept() -> bool:
            return await receiver.handled.show("evt_1") is not None

        await until_async(is_kept)
        kept = await receiver.handled.show("evt_1")
        assert kept is not None
        assert kept.finished == {"first", "second"}


async def test_a_replayed_dead_letter_is_kept(tmp_path: Path) -> None:
    receiver, broken = keeping(sqlite_url(tmp_path)), [True]

    @receiver.on(CommentReceived, name="third")
    async def third(_: CommentReceived) -> None:
        if broken:
            raise Reject("the shop is closed")

    async with receiver:
        assert answer_of(await deliver(receiver, comment("evt_1"))) == (202, "rejected")
        assert await receiver.handled.list() == []
        broken.clear()
        assert answer_of(await receiver.dead.replay("evt_1")) == (200, "handled")
        [kept] = await receiver.handled.list()
        assert kept.finished == {"first", "second", "third"}


async def test_nothing_older_than_the_setting_is_shown(tmp_path: Path) -> None:
    """A lower setting also applies to deliveries that were stored before."""
    clock = ManualClock(datetime.now(UTC).timestamp())
    receiver = keeping(sqlite_url(tmp_path), clock=clock)
    async with receiver:
        for event_id in ("evt_1", "evt_2"):
            request = signed_request(comment(event_id), SECRET, skew=system_clock() - clock())
            outcome = await receiver.handle(request.body, request.headers)
            assert answer_of(outcome) == (200, "handled")
            clock.advance(7200)
        lowered = receiver.copy(keep_handled=timedelta(hours=3))
        assert [one.delivery.event_id for one in await receiver.handled.list()] == [
            "evt_1",
            "evt_2",
        ]
        assert [one.delivery.event_id for one in await lowered.handled.list()] == ["evt_2"]
        assert await lowered.handled.show("evt_1") is None
        clock.advance(DAYS.total_seconds() - 7201)
        assert [one.delivery.event_id for one in await receiver.handled.list()] == ["evt_2"]


async def test_the_bytes_are_limited(url: str) -> None:
    size = len(signed_request(comment("evt_0"), SECRET).body)
    receiver = keeping(url, keep_handled_bytes=2 * size + size // 2)
    async with receiver:
        for number in range(4):
            await deliver(receiver, comment(f"evt_{number}"))
        kept = await receiver.handled.list()
        assert [one.delivery.event_id for one in kept] == ["evt_2", "evt_3"]


async def test_handled_events_are_filtered(url: str) -> None:
    receiver = keeping(url)
    async with receiver:
        for number in range(3):
            await deliver(receiver, comment(f"evt_{number}"))
        handled = receiver.handled
        since = datetime.now(UTC) + timedelta(minutes=1)
        assert len(await handled.list(handler="first", event_type="comment.received")) == 3
        assert await handled.list(handler="other") == []
        assert await handled.list(event_type="message.received") == []
        assert await handled.list(since=since) == []
        [found] = await handled.list(where="id=evt_1")
        assert found.delivery.event_id == "evt_1"
        [_, second, *_] = await handled.list()
        assert len(await handled.list(after=second.place)) == 1
        assert len(await handled.list(limit=2)) == 2


async def test_a_receiver_keeps_nothing_unless_told_to(url: str) -> None:
    receiver = keeping(url, keep_handled=None)
    async with receiver:
        await deliver(receiver, comment("evt_1"))
        with pytest.raises(AttributeError, match=r"keep_handled=timedelta\(days=3\)"):
            _ = receiver.handled
        assert await receiver.copy(keep_handled=DAYS).handled.list() == []


class Plain(RecordStore):
    """A store of our own that keeps no handled events."""

    keeps_bodies = False

    async def change_event(self, *_: Any, **__: Any) -> Any: ...

    async def change_key_lock(self, *_: Any, **__: Any) -> Any: ...

    async def held_events(self, *_: Any) -> Any: ...

    async def prune(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep_handled": 0}, "keep_handled takes a finite number of seconds above 0"),
        ({"keep_handled": timedelta(days=-1)}, "above 0"),
        ({"keep_handled_bytes": 0}, "keep_handled_bytes must be a whole number of bytes from 1"),
        ({"keep_handled_bytes": 1.5}, "not 1.5"),
        ({"keep_handled_bytes": True}, "not True"),
        ({"keep_handled": None, "keep_handled_bytes": 5}, "keep_handled_bytes needs keep_handled"),
        ({"store": Plain()}, "Plain cannot keep handled events"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Receiver(**{"secrets": SECRET, "store": MemoryStore(), "keep_handled": DAYS, **settings})


def test_a_span_that_is_no_time_is_refused() -> None:
    with pytest.raises(TypeError, match="keep_handled takes seconds or a timedelta"):
        Receiver(secrets=SECRET, store="memory://", keep_handled="3d")  # type: ignore[arg-type] # the test passes a wrong type
