"""An unreadable record becomes a dead letter: it blocks no other event, and an operator decides."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial

import pytest
from support.deliveries import answer_of, comment, deliver, receiver_on
from support.redis_servers import RedisServer
from support.sqlite_files import sqlite_connection

from hookonce.clock import Clock
from hookonce.events import CommentReceived
from hookonce.stores.formats import DamagedError
from hookonce.stores.protocols import InboxStore
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.sqlite.records import digest_of
from hookonce.stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    Known,
    Ownership,
    Stored,
    delivery_key,
    new_token,
)

pytestmark = [pytest.mark.anyio, pytest.mark.sample(25, of="file")]

LEASE = 30.0
ENDPOINT = "default"
NONE: frozenset[str] = frozenset()

Damage = Callable[[DeliveryKey], bytes]
"""Damages an event's record; returns bytes that the store must still show to an operator."""

# Damaged contents: each replaces a record in Redis, or each text in SQLite.
RECORDS = {
    "no bytes": "return ''",
    "text": "return 'garbled'",
    "a number": "return cmsgpack.pack(65)",
    "a half": "return string.sub(known, 1, #known / 2)",
    "one field less": "fields[#fields] = nil return cmsgpack.pack(unpack(fields))",
    "one field more": "fields[#fields + 1] = 'x' return cmsgpack.pack(unpack(fields))",
    "a later format": "return cmsgpack.pack({format = 2})",
    "names that are no JSON": "fields[6] = '{\"a' return cmsgpack.pack(unpack(fields))",
    "a bad escape": "fields[6] = '\"a\\\\xa\"' return cmsgpack.pack(unpack(fields))",
    "a history of another form": "fields[7] = '?' return cmsgpack.pack(unpack(fields))",
}
REPLACE = """
local known = redis.call('GET', KEYS[1])
local fields = {cmsgpack.unpack(known)}
local function damaged() %s end
local bytes = damaged()
redis.call('SET', KEYS[1], bytes)
return bytes
"""


def damage_in_redis(servers: list[RedisServer], change: str, key: DeliveryKey) -> bytes:
    for server in servers:
        with server.client() as client:
            for name in client.scan_iter(f"{{*:a:{key}"):
                return bytes(client.eval(REPLACE % change, 1, name))
    raise AssertionError(f"there is no record of {key}")


def damage_in_sqlite(store: SQLiteStore, column: str, key: DeliveryKey) -> bytes:
    with closing(sqlite_connection(store.path)) as connection:
        found = 0
        for table in ("attempts", "dead"):
            change = f"UPDATE {table} SET {column} = '{{broken' WHERE key = ?"
            connection.execute(change, (digest_of(key),))
            found += connection.changes()
    assert found, key
    return b"{broken"


CASES = [
    *(("sqlite", name) for name in ("finished", "outstanding", "history")),
    *(("valkey", name) for name in RECORDS),
    ("redis", "text"),
    ("cluster", "a half"),
]


@pytest.fixture(params=CASES, ids="-".join)
async def case(
    request: pytest.FixtureRequest, clock: Clock
) -> AsyncIterator[tuple[InboxStore, Damage]]:
    """Return an empty store and a function that damages a record in it."""
    backend, change = request.param
    store: SQLiteStore | RedisStore
    damage: Damage
    if backend == "sqlite":
        store = SQLiteStore(request.getfixturevalue("tmp_path") / "hooks.db", clock=clock)
        damage = partial(damage_in_sqlite, store, change)
    else:
        url, servers = "", []
        if backend == "cluster":
            servers = request.getfixturevalue("cluster")
            url = servers[0].url.replace("redis://", "redis+cluster://")
        else:
            servers = [request.getfixturevalue("valkey" if backend == "valkey" else "redis_7")]
            url = servers[0].url
        store = RedisStore(url, shards=1, clock=clock)
        damage = partial(damage_in_redis, servers, RECORDS[change])
    yield store, damage
    await store.aclose()


Case = tuple[InboxStore, Damage]


def delivery(event_id: str) -> Delivery:
    return Delivery(ENDPOINT, event_id, "comment.received", 1.0, event_id.encode())


def key(event_id: str) -> DeliveryKey:
    return delivery_key(ENDPOINT, event_id)


async def claim(store: InboxStore, event_id: str) -> Claimed:
    result = await store.claim(key(event_id), new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def tried(store: InboxStore, event_id: str) -> None:
    """Fail an attempt at an event, so that every field of the record has a value."""
    owned = await claim(store, event_id)
    names = frozenset({"a", 'quoted "\\" \n \u00e9 \ud800'})
    await store.release(owned, names, "it failed", outstanding=frozenset({"b"}))


async def fetched(store: InboxStore) -> set[str]:
    batch = await store.fetch(9, LEASE, endpoint=ENDPOINT, worker="w", token=new_token())
    return {taken.delivery.event_id for taken in batch.fetched}


async def waiting(store: InboxStore) -> set[str]:
    return {entry.delivery.event_id for entry in await store.entries()}


async def test_a_damaged_event_of_the_inbox_blocks_no_fetch_and_no_listing(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    store, damage = case
    for event_id in ("evt_1", "evt_2", "evt_3"):
        await tried(store, event_id)
        assert await store.enqueue(delivery(event_id), new_token()) == Stored()
    written = damage(key("evt_2"))
    with caplog.at_level(logging.ERROR):
        assert await fetched(store) == {"evt_1", "evt_3"}
    assert f"the record of {key('evt_2')} cannot be read" in caplog.text
    assert await waiting(store) == {"evt_1", "evt_3"}
    stats = await store.stats()
    assert (stats.depth, stats.dead) == (2, 1)
    [letter] = await store.dead_letters(reason=DeadReason.DAMAGED)
    assert letter.delivery.event_id == "evt_2"
    shown = await store.dead_letter(key("evt_2"))
    assert shown is not None
    assert shown.delivery.body == delivery("evt_2").body
    assert written in shown.record
    with pytest.raises(DamagedError, match="hookonce dead show"):
        await store.enqueue(delivery("evt_2"), new_token())
    assert await store.known(ENDPOINT, ["evt_2"]) == {"evt_2": Known.DEAD}
    assert await store.discard(key("evt_2"))
    assert await store.enqueue(delivery("evt_2"), new_token()) == Done()
    assert not any("cannot be read" in text for text in await store.warnings())


async def test_a_listing_of_the_inbox_leaves_a_damaged_event_out(case: Case) -> None:
    store, damage = case
    for event_id in ("evt_1", "evt_2"):
        await tried(store, event_id)
        await store.enqueue(delivery(event_id), new_token())
    damage(key("evt_1"))
    assert await waiting(store) == {"evt_2"}
    assert await store.entries(handler="b") != []
    assert await store.entry(key("evt_1")) is None
    shown = await store.dead_letter(key("evt_1"))
    assert shown is not None
    assert shown.delivery.body == delivery("evt_1").body
    assert await fetched(store) == {"evt_2"}


async def test_a_damaged_event_is_refused_until_a_person_replays_it(case: Case) -> None:
    store, damage = case
    await tried(store, "evt_1")
    written = damage(key("evt_1"))
    for _ in range(2):
        with pytest.raises(DamagedError):
            await store.claim(key("evt_1"), new_token(), LEASE)
    assert any("1 records of events cannot be read" in text for text in await store.warnings())
    shown = await store.dead_letter(key("evt_1"))
    assert shown is not None
    assert (shown.reason, shown.delivery.body) == (DeadReason.DAMAGED, b"")
    assert written in shown.record
    await store.keep_in_flight(delivery("evt_1"))
    await store.keep_in_flight(delivery("evt_1")._replace(body=b"later"))
    shown = await store.dead_letter(key("evt_1"))
    assert shown is not None
    assert shown.delivery == delivery("evt_1")
    owned = await store.replay(key("evt_1"), new_token(), LEASE)
    assert isinstance(owned, Claimed)
    await store.release(owned, NONE, "it failed again")
    with pytest.raises(DamagedError):
        await store.claim(key("evt_1"), new_token(), LEASE)
    owned = await store.replay(key("evt_1"), new_token(), LEASE)
    assert isinstance(owned, Claimed)
    await store.complete(owned)
    assert await store.claim(key("evt_1"), new_token(), LEASE) == Done()
    assert not any("cannot be read" in text for text in await store.warnings())


async def test_a_delivery_of_a_damaged_event_is_kept_for_the_operator(case: Case) -> None:
    store, damage = case
    await tried(store, "evt_1")
    damage(key("evt_1"))
    for _ in range(2):
        with pytest.raises(DamagedError):
            await store.enqueue(delivery("evt_1"), new_token())
    shown = await store.dead_letter(key("evt_1"))
    assert shown is not None
    assert shown.delivery == delivery("evt_1")


async def test_a_success_is_recorded_although_the_record_is_damaged(case: Case) -> None:
    store, damage = case
    await tried(store, "evt_1")
    owned = await claim(store, "evt_1")
    damage(key("evt_1"))
    assert await store.extend(owned) is Ownership.LOST
    assert await store.release(owned, NONE, "late") is Ownership.LOST
    await store.complete(owned)
    assert await store.claim(key("evt_1"), new_token(), LEASE) == Done()
    assert await store.dead_letters() == []


async def test_a_damaged_dead_letter_keeps_its_body_and_hides_no_other(case: Case) -> None:
    store, damage = case
    for event_id in ("evt_1", "evt_2", "evt_3"):
        await tried(store, event_id)
        owned = await claim(store, event_id)
        await store.bury(owned, DeadReason.REJECTED, delivery=delivery(event_id))
    damage(key("evt_2"))
    for wanted in ({}, {"endpoint": ENDPOINT}, {"handler": "b"}):
        listed = {one.delivery.event_id for one in await store.dead_letters(**wanted)}  # type: ignore[arg-type]  # mypy cannot check keywords from a dictionary
        assert {"evt_1", "evt_3"} <= listed
    [letter] = await store.dead_letters(reason=DeadReason.DAMAGED)
    shown = await store.dead_letter(letter.delivery.key)
    assert shown is not None
    assert shown.delivery == delivery("evt_2")


async def test_the_receiver_answers_503_and_a_replay_handles_the_event(case: Case) -> None:
    store, damage = case
    runs: list[str] = []
    receiver = receiver_on(store)

    @receiver.on(CommentReceived, name="note")
    def note(event: CommentReceived) -> None:
        runs.append(event.id)
        if len(runs) == 1:
            raise ValueError("the first attempt fails")

    sent = comment()
    async with receiver:
        assert answer_of(await deliver(receiver, sent)) == (500, "handler_failed")
        owned = await claim(store, sent.id)
        await store.release(owned, frozenset({"a"}), "it failed", outstanding=frozenset({"note"}))
        damage(key(sent.id))
        assert answer_of(await deliver(receiver, sent)) == (503, "store_unavailable")
        warnings = (await receiver.check()).warnings
        assert any("hookonce dead list --reason damaged" in text for text in warnings)
        assert len(runs) == 1
        assert (await receiver.dead.replay(sent.id)).status == 200
        assert runs == [sent.id, sent.id]
        assert answer_of(await deliver(receiver, sent)) == (200, "duplicate")
