"""Dead letters can be shown, replayed or discarded, and are never lost."""

import asyncio
import logging
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from support.deliveries import SECRET as DELIVERED_WITH
from support.deliveries import answer_of, deliver, long_ago, receiver_on
from support.handlers import Handlers, on
from support.processes import served_process
from support.stores import FaultyStore
from support.waiting import until, until_async

from hookonce import (
    Context,
    Inbox,
    Limits,
    Outcome,
    PayloadError,
    PayloadFault,
    Receiver,
    Reject,
    Retry,
    StoreError,
)
from hookonce.clock import utc
from hookonce.events import ChannelUnhealthy, CommentReceived, Event
from hookonce.inbox.waiting import WaitingEvents
from hookonce.stores import open_store
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    ClaimResult,
    DeadReason,
    DeliveryKey,
    Token,
    delivery_key,
    new_token,
)
from hookonce.testing import TestSender, event_body, make_event, signed_request
from hookonce.testing.pytest_plugin import SenderFactory
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(SQLiteStore(tmp_path / "hooks.db"))


@pytest.fixture
def receiver(webhook_secret: str, store: FaultyStore) -> Receiver:
    return Receiver(secrets=webhook_secret, store=store)


async def test_dead_letters_are_listed_oldest_first_without_bodies(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = Reject("no")
    async with webhook_sender(receiver) as sender:
        assert await receiver.dead.list() == []
        events: list[Event[Any]] = [
            make_event(CommentReceived),
            make_event(ChannelUnhealthy),
            make_event(CommentReceived),
        ]
        for event in events:
            (await sender.send(event)).expect(202, "rejected")
        letters = await receiver.dead.list()
        assert [letter.delivery.event_id for letter in letters] == [event.id for event in events]
        assert {letter.delivery.body for letter in letters} == {b""}
        comments = await receiver.dead.list(event_type="comment.received")
        assert [c.delivery.event_id for c in comments] == [events[0].id, events[2].id]
        assert await receiver.dead.list(event_type="post.target.failed") == []
        assert len(await receiver.dead.list(limit=2)) == 2


async def test_dead_letters_can_be_filtered_by_fields_of_their_bodies(durable_url: str) -> None:
    receiver = receiver_on(durable_url)
    Handlers(receiver, "a").raises["a"] = Reject("no")
    events: list[Event[Any]] = [
        make_event(CommentReceived, data={"platform": platform})
        for platform in ("instagram", "x", "instagram", "instagram")
    ]
    async with receiver, TestSender(receiver, secrets=DELIVERED_WITH) as sender:
        for event in events:
            (await sender.send(event)).expect(202, "rejected")
        where = "data.platform=instagram"
        first = await receiver.dead.list(where=where, limit=2)
        assert [one.delivery.event_id for one in first] == [events[0].id, events[2].id]
        assert {one.delivery.body for one in first} == {b""}
        [last] = await receiver.dead.list(where=[where], after=first[-1].place, limit=2)
        assert last.delivery.event_id == events[3].id
        both = await receiver.dead.list(where=[where, f"id={events[2].id}"], handler="a")
        assert [one.delivery.event_id for one in both] == [events[2].id]
        assert await receiver.dead.list(where=where, reason=DeadReason.UNREADABLE) == []
        with pytest.raises(ValueError, match="a condition is FIELD=VALUE"):
            await receiver.dead.list(where="instagram")


async def test_events_of_the_inbox_can_be_filtered_by_fields_of_their_bodies(
    durable_url: str,
) -> None:
    receiver = receiver_on(durable_url, inbox=Inbox(embedded=False))
    receiver.on(CommentReceived, name="a")(lambda _: None)
    events: list[Event[Any]] = [
        make_event(CommentReceived, data={"platform": platform}) for platform in ("x", "instagram")
    ]
    async with receiver, TestSender(receiver, secrets=DELIVERED_WITH) as sender:
        for event in events:
            (await sender.send(event)).expect(202, "stored")
        [found] = await receiver.waiting.list(where="data.platform=instagram")
        assert (found.delivery.event_id, found.delivery.body) == (events[1].id, b"")


async def test_an_unknown_filter_is_refused(receiver: Receiver, tmp_path: Path) -> None:
    """If an unknown filter were ignored, a user might discard all dead letters by mistake."""
    mistaken: Any = {"type": "comment.received"}
    waiting = WaitingEvents(store=SQLiteStore(tmp_path / "other.db"), endpoint="default")
    for listed in (receiver.dead.list, waiting.list):
        with pytest.raises(TypeError, match="unexpected keyword argument 'type'"):
            await listed(**mistaken)


async def test_a_dead_letter_shows_its_reason_history_and_body(
    webhook_secret: str, webhook_sender: SenderFactory, tmp_path: Path
) -> None:
    now = [1_800_000_000.123_456_9]
    receiver = Receiver(
        secrets=webhook_secret,
        store=SQLiteStore(tmp_path / "hooks.db", clock=lambda: now[0]),
        clock=lambda: now[0],
        tolerance=10**10,
        endpoint="bakery",
    )
    handlers = Handlers(receiver, "a", "b", "c")
    handlers.raises = {"a": ValueError("line one\nline two"), "c": KeyError("k")}
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived, created_at=long_ago())
        (await sender.send(event)).expect(500)
        now[0] += 100
        request = signed_request(event, webhook_secret, attempt=9)
        (await sender.post(request)).expect(202, "exhausted")
        letter = await receiver.dead.show(event.id)
        assert letter is not None
        assert len(await receiver.dead.list(since=letter.buried_at)) == 1
        assert not await receiver.dead.list(since=letter.buried_at + timedelta(seconds=1))
    assert letter.delivery.body == request.body
    assert (letter.delivery.endpoint, letter.delivery.event_id) == ("bakery", event.id)
    assert letter.delivery.event_type == "comment.received"
    assert letter.delivery.received_at == letter.buried_at == utc(now[0])
    assert letter.error == "a: ValueError: line one line two\nc: KeyError: 'k'"
    assert letter.attempts == 2
    assert letter.finished == {"b"}
    assert letter.reason is DeadReason.EXHAUSTED
    assert repr(letter.delivery.body) not in repr(letter)


async def test_a_receiver_sees_the_dead_letters_of_its_own_endpoint_only(
    webhook_secret: str, webhook_sender: SenderFactory, tmp_path: Path
) -> None:
    event = make_event(CommentReceived)
    receivers = {}
    for endpoint in ("one", "two"):
        store = SQLiteStore(tmp_path / "hooks.db")
        receiver = Receiver(secrets=webhook_secret, store=store, endpoint=endpoint)
        Handlers(receiver, "a").raises["a"] = Reject(f"not at {endpoint}")
        receivers[endpoint] = receiver
    one, two = receivers["one"], receivers["two"]
    async with webhook_sender(one) as sender, webhook_sender(two):
        (await sender.send(event)).expect(202, "rejected")
        assert len(await one.dead.list()) == 1
        assert await two.dead.list() == []
        assert await two.dead.show(event.id) is None
        assert await two.dead.discard(event.id) is False
        with pytest.raises(LookupError, match="'two'"):
            await two.dead.replay(event.id)


async def test_nothing_is_shown_replayed_or_discarded_where_there_is_no_dead_letter(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(200, "handled")
        for event_id in (event.id, "evt_never_seen"):
            assert await receiver.dead.show(event_id) is None
            assert await receiver.dead.discard(event_id) is False
            with pytest.raises(LookupError, match=event_id):
                await receiver.dead.replay(event_id)
    assert handlers.ran() == ["a"]


# Replays of dead letters


async def test_a_replay_runs_only_the_outstanding_handlers_and_reports_it(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a", "b", "c")
    handlers.raises = {"b": ValueError("x"), "c": ValueError("y")}
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived, created_at=long_ago())
        request = signed_request(event, sender._secrets, attempt=9)
        (await sender.post(request)).expect(202, "exhausted")
        assert handlers.ran() == ["a", "b", "c"]
        handlers.raises.clear()
        outcome = await receiver.dead.replay(event.id)
        assert (outcome.status, outcome.reason) == (200, "handled")
        contexts = list(handlers.contexts)
        assert handlers.ran() == ["b", "c"]
        for context in contexts:
            assert context.is_replay
            assert context.last_chance
            assert context.event_id == event.id
            assert context.delivery_attempt is None
            assert context.body == request.body
        assert {c.idempotency_key for c in contexts} == {
            f"default:{event.id}:b",
            f"default:{event.id}:c",
        }


async def test_a_replay_that_succeeds_leaves_no_dead_letter_and_the_event_is_done(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = Reject("no")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(202, "rejected")
        handlers.raises.clear()
        assert (await receiver.dead.replay(event.id)).reason == "handled"
        assert await receiver.dead.list() == []
        (await sender.send(event)).expect(200, "duplicate")
        assert handlers.ran() == ["a", "a"]
        with pytest.raises(LookupError):
            await receiver.dead.replay(event.id)


@pytest.mark.parametrize(
    ("error", "reason", "dead_reason"),
    [
        (ValueError("still down"), "exhausted", DeadReason.EXHAUSTED),
        (Retry(after=5), "exhausted", DeadReason.EXHAUSTED),
        (Reject("never"), "rejected", DeadReason.REJECTED),
    ],
)
async def test_a_replay_that_fails_leaves_the_dead_letter_with_the_new_error(
    receiver: Receiver,
    webhook_sender: SenderFactory,
    error: Exception,
    reason: str,
    dead_reason: DeadReason,
) -> None:
    handlers = Handlers(receiver, "a", "b", "c")
    told: list[ExceptionGroup[Exception]] = []
    receiver.on_error(told.append)
    handlers.raises = {"b": ValueError("first"), "c": ValueError("first")}
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived, created_at=long_ago())
        request = signed_request(event, sender._secrets, attempt=9)
        (await sender.post(request)).expect(202, "exhausted")
        await until(lambda: len(told) == 1)
        handlers.ran()
        handlers.raises = {"b": error}
        outcome = await receiver.dead.replay(event.id)
        assert (outcome.status, outcome.reason) == (202, reason)
        assert handlers.ran() == ["b", "c"]
        letter = await receiver.dead.show(event.id)
        assert letter is not None
        assert letter.reason is dead_reason
        assert letter.error.startswith("b: ")
        assert "first" not in letter.error
        assert letter.finished == {"a", "c"}
        assert letter.delivery.body == request.body
        await until(lambda: len(told) == 2)
        assert told[1].exceptions == (error,)
        handlers.raises.clear()
        assert (await receiver.dead.replay(event.id)).reason == "handled"
        assert handlers.ran() == ["b"]


async def test_attempts_add_up_over_replays(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = ValueError("x")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived, created_at=long_ago())
        (await sender.send(event)).expect(500)
        (await sender.send(event, attempt=9)).expect(202, "exhausted")
        await receiver.dead.replay(event.id)
        letter = await receiver.dead.show(event.id)
        assert letter is not None
        assert letter.attempts == 3
        assert [context.attempt for context in handlers.contexts] == [1, 2, 3]


async def test_a_dead_letter_stays_one_while_its_replay_runs_and_is_replayed_once_at_a_time(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    key_lock, began = asyncio.Event(), list[str]()
    fail = [True]

    @receiver.on(CommentReceived)
    async def wait(event: CommentReceived) -> None:
        if fail.pop() if fail else False:
            raise Reject("at first")
        began.append(event.id)
        await key_lock.wait()

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(202, "rejected")
        first = asyncio.create_task(receiver.dead.replay(event.id))
        await until(lambda: began)
        assert [letter.delivery.event_id for letter in await receiver.dead.list()] == [event.id]
        second = await receiver.dead.replay(event.id)
        assert (second.status, second.reason) == (503, "in_flight")
        key_lock.set()
        assert (await first).reason == "handled"
        assert began == [event.id]
        assert await receiver.dead.list() == []


async def test_a_delivery_during_a_replay_waits_for_it(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    key_lock, runs = asyncio.Event(), list[str]()

    @receiver.on(CommentReceived)
    async def wait(event: CommentReceived, context: Context) -> None:
        runs.append(event.id)
        if not context.is_replay:
            raise Reject("at first")
        await key_lock.wait()

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(202, "rejected")
        replay = asyncio.create_task(receiver.dead.replay(event.id))
        await until(lambda: len(runs) == 2)
        delivery = asyncio.create_task(sender.send(event, attempt=2))
        done, _ = await asyncio.wait({delivery}, timeout=0.1)
        assert not done
        key_lock.set()
        assert (await replay).reason == "handled"
        (await delivery).expect(200, "duplicate")
    assert len(runs) == 2


async def test_a_replay_runs_although_a_copy_of_the_event_waits_for_it(durable_url: str) -> None:
    class Replaying(FaultyStore):
        async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
            result = await super().replay(key, token, lease)
            copies.append(asyncio.create_task(deliver(receiver, event, attempt=2)))
            calls = self.calls["claim"]
            await until(lambda: self.calls["claim"] > calls)
            return result

    copies = list[asyncio.Task[Outcome]]()
    receiver = receiver_on(Replaying(open_store(durable_url, clock=time.time)))
    rejects = [True]

    async def book(_: CommentReceived) -> None:
        if rejects:
            raise Reject("not this one")

    on(receiver, "book", book)
    async with receiver:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(receiver, event)) == (202, "rejected")
        rejects.clear()
        assert answer_of(await receiver.dead.replay(event.id)) == (200, "handled")
        assert [answer_of(await copy) for copy in copies] == [(200, "duplicate")]
    assert copies


class Tolerant(Event[dict[str, Any]]):
    type: Literal["comment.received"]


async def test_an_unreadable_dead_letter_can_be_replayed_once_it_can_be_read(
    receiver: Receiver, webhook_sender: SenderFactory, store: FaultyStore, webhook_secret: str
) -> None:
    handlers = Handlers(receiver, "a")
    body = event_body("comment.received", event_id="evt_1").replace(
        b'"isHidden":false', b'"isHidden":"perhaps"'
    )
    async with webhook_sender(receiver) as sender:
        (await sender.post(signed_request(body, webhook_secret))).expect(202, "quarantined")
        with pytest.raises(PayloadError) as caught:
            await receiver.dead.replay("evt_1")
        assert caught.value.fault is PayloadFault.WRONG_SHAPE
        assert await receiver.dead.show("evt_1") is not None
        assert handlers.ran() == []
        # a later version of the program can parse the new form
        next_version = Receiver(secrets=webhook_secret, store=store)

        seen: list[Any] = []

        @next_version.on(Tolerant)
        async def note(event: Tolerant) -> None:
            seen.append(event.data["isHidden"])

        assert (await next_version.dead.replay("evt_1")).reason == "handled"
        assert seen == ["perhaps"]
        assert await receiver.dead.list() == []


async def test_a_dead_letter_without_a_registered_handler_stays(
    receiver: Receiver, webhook_sender: SenderFactory, store: FaultyStore, webhook_secret: str
) -> None:
    Handlers(receiver, "a").raises["a"] = Reject("no")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(202, "rejected")
        nobody = Receiver(secrets=webhook_secret, store=store)
        assert (await nobody.dead.replay(event.id)).reason == "no_handler"
        assert await receiver.dead.show(event.id) is not None


@pytest.mark.parametrize("call", ["dead_letter", "replay"])
async def test_a_replay_that_cannot_reach_the_store_raises_and_runs_no_handler(
    receiver: Receiver, webhook_sender: SenderFactory, store: FaultyStore, call: str
) -> None:
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = Reject("no")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(202, "rejected")
        handlers.ran()
        store.failures[call] = 1
        with pytest.raises(StoreError):
            await receiver.dead.replay(event.id)
        assert handlers.ran() == []


async def test_a_replay_whose_success_is_recorded_late_ends_when_it_is_recorded(
    receiver: Receiver, webhook_sender: SenderFactory, store: FaultyStore
) -> None:
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = Reject("no")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(202, "rejected")
        handlers.raises.clear()
        store.failures["complete"] = 2
        assert (await receiver.dead.replay(event.id)).reason == "handled"
        assert await receiver.dead.list() == []


async def test_a_replay_whose_success_can_never_be_recorded_ends_too(
    webhook_secret: str,
    webhook_sender: SenderFactory,
    store: FaultyStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Receiver(secrets=webhook_secret, store=store, limits=Limits(lease_seconds=0.2))
    fail = [True]

    @receiver.on(CommentReceived)
    async def outlast(_: CommentReceived) -> None:
        if fail:
            fail.clear()
            raise Reject("at first")
        await until(lambda: store.calls["extend"] >= 1)
        await asyncio.sleep(0.3)  # until the lease has ended

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(202, "rejected")
        store.failures = {"complete": -1, "extend": -1}
        outcome = await receiver.dead.replay(event.id)
        assert outcome.reason == "handled"
        assert "its lease ended before the store recorded it" in caplog.text
        store.failures.clear()
        assert len(await receiver.dead.list()) == 1
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_a_replay_that_is_killed_leaves_the_dead_letter(tmp_path: Path) -> None:
    script = """
    from hookonce import Context
    receiver = Receiver(
        secrets=secret, store=f"sqlite:///{here}/hooks.db", limits=Limits(lease_seconds=0.3)
    )

    @receiver.on(CommentReceived, name="handler")
    async def handler(event, context):
        if not context.is_replay:
            raise Reject("at first")
        note("replaying")
        await gate("never")

    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    async def replay(request):
        await receiver.dead.replay(request.query_params["id"])
        return Response("done")

    serve(Starlette(
        routes=[*receiver.routes("/webhooks"), Route("/replay", replay)],
        lifespan=receiver.lifespan,
    ))
    """
    event = make_event(CommentReceived)
    request = signed_request(event, SECRET)
    async with served_process(tmp_path, script, SECRET) as server:
        (await server.sender.post(request)).expect(202, "rejected")
        client = server.sender.client
        replay = asyncio.create_task(client.get("/replay", params={"id": event.id}))
        await server.noted("replaying")
        await server.kill()
        await asyncio.gather(replay, return_exceptions=True)
    receiver = Receiver(secrets=SECRET, store=SQLiteStore(tmp_path / "hooks.db"))
    ran: list[str] = []

    @receiver.on(CommentReceived, name="handler")
    async def handler(event: CommentReceived) -> None:
        ran.append(event.id)

    async with receiver:
        letter = await receiver.dead.show(event.id)
        assert letter is not None
        assert letter.delivery.body == request.body

        async def replayed() -> bool:  # succeeds once the killed process's lease ends
            return (await receiver.dead.replay(event.id)).status == 200

        await until_async(replayed)
        assert ran == [event.id]
        assert await receiver.dead.list() == []


# Discarding dead letters


async def test_a_discarded_dead_letter_is_gone_and_its_event_counts_as_handled(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = Reject("no")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(202, "rejected")
        assert await receiver.dead.discard(event.id) is True
        assert await receiver.dead.list() == []
        assert await receiver.dead.discard(event.id) is False
        handlers.raises.clear()
        (await sender.send(event, attempt=2)).expect(200, "duplicate")
    assert handlers.ran() == ["a"]


# Dead letters of a store without bodies


async def test_the_memory_store_lists_rejections_and_says_that_it_cannot_replay_them(
    webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    memory: Store = MemoryStore()
    receiver = Receiver(secrets=webhook_secret, store=memory)
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = Reject("no")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(202, "rejected")
        [letter] = await receiver.dead.list()
        assert (letter.delivery.event_id, letter.delivery.body) == (event.id, b"")
        with pytest.raises(StoreError, match="keeps no bodies"):
            await receiver.dead.replay(event.id)
        assert handlers.ran() == ["a"]
        assert await receiver.dead.discard(event.id) is True
        (await sender.send(event)).expect(200, "duplicate")


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "succeeds"])
async def test_the_last_delivery_of_an_event_in_flight_is_kept_until_its_attempt_has_succeeded(
    tmp_path: Path, webhook_secret: str, webhook_sender: SenderFactory, *, fails: bool
) -> None:
    receiver = Receiver(
        secrets=webhook_secret,
        store=SQLiteStore(tmp_path / "hooks.db"),
        limits=Limits(answer_seconds=0.2),
    )
    key_lock = asyncio.Event()

    @receiver.on(CommentReceived, name="slow")
    async def slow(_: CommentReceived) -> None:
        await key_lock.wait()
        if fails:
            raise ValueError("too late to be brought again")

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived, created_at=long_ago())
        (await sender.send(event)).expect(503, "still_running")
        (await sender.send(event, attempt=9)).expect(503, "in_flight")
        assert await receiver.dead.list() == []
        key_lock.set()
        if fails:
            await until_async(lambda: is_a_dead_letter(receiver, event.id))
            letter = await receiver.dead.show(event.id)
            assert letter is not None
            assert letter.reason is DeadReason.EXHAUSTED
            assert "too late" in letter.error
            assert b"walnut" in letter.delivery.body
        else:
            await until_async(lambda: is_handled(sender, event))
            assert await receiver.dead.list() == []


async def is_a_dead_letter(receiver: Receiver, event_id: str) -> bool:
    return await receiver.dead.show(event_id) is not None


async def is_handled(sender: TestSender, event: CommentReceived) -> bool:
    return (await sender.send(event)).reason == "duplicate"


async def test_a_shutdown_while_the_last_delivery_is_being_kept_releases_the_event(
    tmp_path: Path, webhook_secret: str, webhook_sender: SenderFactory, store: FaultyStore
) -> None:
    limits = Limits(drain_seconds=0.05)
    receiver = Receiver(secrets=webhook_secret, store=store, limits=limits)
    ran = list[str]()

    @receiver.on(CommentReceived, name="handler")
    async def handle(event: CommentReceived) -> None:
        ran.append(event.id)

    store.hang("keep")
    event = make_event(CommentReceived, created_at=long_ago())
    async with webhook_sender(receiver) as sender:
        waiting = asyncio.create_task(sender.send(event, attempt=9))
        await until(lambda: store.calls["keep"])
    (await waiting).expect(503, "shutting_down")
    assert ran == []
    claim = await SQLiteStore(tmp_path / "hooks.db").claim(
        delivery_key("default", event.id), new_token(), 30
    )
    assert isinstance(claim, Claimed)
