"""An id of the longest allowed length is handled once, listed and shown by every store."""

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest

from hookonce import Context, Inbox, Receiver, Reject
from hookonce.clock import Clock, system_clock
from hookonce.events import CommentReceived
from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.values import delivery_key
from hookonce.testing import SignedRequest, make_event, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()
LONGEST = 512


def request_named(event_id: str) -> SignedRequest:
    return signed_request(make_event(CommentReceived, event_id=event_id), SECRET)


@pytest.mark.parametrize("character", ["a", "\u00e9", "\U0001f600"])
async def test_an_event_with_a_long_id_is_handled_once(
    store: Store, character: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hookonce")
    handled: list[str] = []
    receiver = Receiver(secrets=SECRET, store=store)
    receiver.on(CommentReceived, name="handle")(lambda event: handled.append(event.id))
    names = [character * LONGEST, character * (LONGEST - 1), character * (LONGEST - 1) + "b"]
    for name in (*names, *names):
        request = request_named(name)
        assert (await receiver.handle(request.body, request.headers)).status == 200
    assert handled == names
    said = [record for record in caplog.records if hasattr(record, "event_id")]
    assert [vars(record)["event_id"] for record in said] == [*names, *names]


async def test_a_longer_id_is_refused_with_the_limit(store: Store) -> None:
    receiver = Receiver(secrets=SECRET, store=store)
    headers = dict(request_named("a" * LONGEST).headers)
    headers["webhook-id"] += "a"
    outcome = await receiver.handle(b"{}", headers)
    assert (outcome.status, outcome.reason) == (400, "malformed_id")


async def test_a_dead_letter_with_a_long_id_is_listed_shown_and_discarded(
    keeping_store: Store,
) -> None:
    receiver = Receiver(secrets=SECRET, store=keeping_store)

    @receiver.on(CommentReceived, name="reject")
    async def reject(_: CommentReceived) -> None:
        raise Reject("never")

    request = request_named("a" * LONGEST)
    assert (await receiver.handle(request.body, request.headers)).status == 202
    key = delivery_key("default", "a" * LONGEST)
    (letter,) = await keeping_store.dead_letters(endpoint="default", limit=10)
    assert letter.delivery.key == key
    assert await keeping_store.dead_letter(key) is not None
    assert await keeping_store.discard(key)


async def test_an_event_with_a_long_id_waits_in_the_inbox_once(
    keeping_store: Store,
) -> None:
    assert isinstance(keeping_store, InboxStore)
    receiver = Receiver(secrets=SECRET, store=keeping_store, inbox=Inbox(embedded=False))
    receiver.on(CommentReceived, name="handle")(lambda _: None)
    request = request_named("\u00e9" * LONGEST)
    for reason in ("stored", "duplicate"):
        assert (await receiver.handle(request.body, request.headers)).reason == reason
    assert await keeping_store.entry(delivery_key("default", "\u00e9" * LONGEST)) is not None


@pytest.mark.parametrize("event_id", ["\u00e9" * LONGEST, "evt:1 %25/\U0001f600"])
async def test_an_odd_handled_event_is_replayed_and_so_is_its_failed_replay(
    keeping_store: Store, clock: Clock, pass_time: Callable[[float], None], event_id: str
) -> None:
    name = "shop.book/1.2.3 " + "h" * 180
    generations: list[int] = []
    receiver = Receiver(
        secrets=SECRET, store=keeping_store, keep_handled=timedelta(days=365), clock=clock
    )

    @receiver.on(CommentReceived, name=name)
    async def book(event: CommentReceived, context: Context) -> None:
        assert event.id == event_id
        generations.append(context.generation)
        if len(generations) == 2:
            raise Reject("not yet")

    skew = system_clock() - clock()
    event = make_event(CommentReceived, event_id=event_id)
    request = signed_request(event, SECRET, skew=skew)
    assert (await receiver.handle(request.body, request.headers)).reason == "handled"
    pass_time(1)
    batch = await receiver.handled.open_batch(handler=name, late=True)
    assert [one.reason async for one in receiver.handled.replay_all(batch)] == ["rejected"]
    (letter,) = await receiver.dead.list(handler=name)
    assert letter.outstanding == {name}
    assert (await receiver.dead.replay(letter.delivery.event_id)).reason == "handled"
    assert generations == [0, 1, 1]
    assert await receiver.handled.remaining(batch) == []
    assert (await receiver.handle(request.body, request.headers)).reason == "duplicate"
