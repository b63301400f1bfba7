"""Handlers with ``latest_by`` within a ledger: their transaction also sets the watermark.

A watermark is the newest event of a key that has succeeded. The handler skips older events.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import aiosqlite
import asyncpg  # type: ignore[import-untyped] # asyncpg has no annotations that a checker could read
import pytest
from support.deliveries import SECRET, answer_of, deliver, receiver_on
from support.postgres import PostgresServer

from hookonce import Receiver
from hookonce.effects.aiosqlite import AioSQLiteLedger
from hookonce.effects.asyncpg import AsyncpgLedger
from hookonce.effects.ledger import Effect
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import ChannelUnhealthy, CommentReceived, UnknownEvent
from hookonce.operations import HandlerFailed, HandlerSkipped, Observer
from hookonce.stores.memory import MemoryStore
from hookonce.stores.values import Acquired, KeyLock, new_token
from hookonce.testing import event_body, make_event, signed_request

from .shops import Shop

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.ledger.close()


class Skipped(Observer):
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.failed: list[str] = []

    def handler_skipped(self, record: HandlerSkipped) -> None:
        self.reasons.append(record.reason)

    def handler_failed(self, record: HandlerFailed) -> None:
        self.failed.append(record.handler)


def channel_event(minute: float) -> ChannelUnhealthy:
    return make_event(
        ChannelUnhealthy, created_at=NOON + timedelta(minutes=minute), data={"id": "chan_1"}
    )


async def test_a_late_event_is_stale_and_not_run_even_if_the_store_has_forgotten_the_newer_one(
    shop: Shop,
) -> None:
    older, newer = channel_event(1), channel_event(2)
    for event, reason in ((newer, "handled"), (older, "stale"), (older, "handled")):
        receiver, skipped = receiver_on("memory://"), Skipped()
        receiver.observe(skipped)

        @receiver.on(
            "channel.unhealthy", name="sync", within=shop.ledger, latest_by=lambda e: e.data.id
        )
        def sync(event: ChannelUnhealthy, connection: sqlite3.Connection) -> None:
            shop.book(connection, event.id)

        assert answer_of(await deliver(receiver, event)) == (200, reason)
        assert skipped.reasons == ["stale"] * (reason == "stale")
        assert skipped.failed == []
    assert shop.orders() == [(newer.id, "book")]
    assert shop.recorded() == ["sync", "sync"]  # the late event is done, so it has a row, too


async def test_a_rollback_undoes_the_advance_of_the_watermark(shop: Shop) -> None:
    receiver, fails = receiver_on(), [True]

    @receiver.on(
        "channel.unhealthy",
        name="sync",
        within=AioSQLiteLedger(shop.file),
        latest_by=lambda event: event.data.id,
    )
    async def sync(_: ChannelUnhealthy, __: aiosqlite.Connection) -> None:
        if fails:
            raise ValueError(fails.pop())

    older, newer = channel_event(1), channel_event(2)
    assert answer_of(await deliver(receiver, newer)) == (500, "handler_failed")
    assert answer_of(await deliver(receiver, older)) == (200, "handled")
    assert answer_of(await deliver(receiver, newer, 2)) == (200, "handled")


async def test_ledgers_treat_ties_and_events_without_a_key_as_stores_do(shop: Shop) -> None:
    receiver, keys = receiver_on(), {"evt_c": None}

    @receiver.on(
        ChannelUnhealthy,
        name="sync",
        within=shop.ledger,
        latest_by=lambda event: keys.get(event.id, event.data.id),
        ties="drop",
    )
    def sync(event: ChannelUnhealthy, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id)

    for event_id, reason in (("evt_a", "handled"), ("evt_b", "stale"), ("evt_c", "handled")):
        event = make_event(
            ChannelUnhealthy, event_id=event_id, created_at=NOON, data={"id": "chan_1"}
        )
        assert answer_of(await deliver(receiver, event)) == (200, reason)


async def test_a_database_holds_any_key_and_distinguishes_it_from_others(
    postgres: PostgresServer,
) -> None:
    """PostgreSQL rejects NUL and lone surrogates, and MySQL ignores spaces at the end.

    A key that is the digest of another key is a different key.
    """
    keys = ["a", "a ", "a\0b", "half \ud83d of a pair", "a\n", "k" * 10_000, ""]
    digests = [sha256(key.encode("utf-8", "surrogatepass")).hexdigest() for key in keys]
    keys += [*digests, *(f"sha256:{digest}" for digest in digests)]
    receiver, seen = receiver_on(), list[str]()
    async with asyncpg.create_pool(postgres.url, min_size=1, max_size=1) as pool:
        ledger = AsyncpgLedger(pool)
        await ledger.create_table()

        @receiver.on(
            ChannelUnhealthy, name="keyed", within=ledger, latest_by=lambda _: keys[len(seen)]
        )
        async def keyed(event: ChannelUnhealthy, _: object) -> None:
            seen.append(event.id)

        for minute in range(len(keys), 0, -1):
            assert answer_of(await deliver(receiver, channel_event(minute))) == (200, "handled")
        rows = await pool.fetch("SELECT resource FROM hookonce_watermarks")
    assert len({resource.rstrip(" ") for (resource,) in rows}) == len(keys)


async def test_an_error_of_the_key_function_rolls_back(shop: Shop) -> None:
    receiver = receiver_on()

    def no_key(_: ChannelUnhealthy) -> str:
        raise LookupError("no key")

    @receiver.on(ChannelUnhealthy, name="sync", within=shop.ledger, latest_by=no_key)
    def sync(event: ChannelUnhealthy, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id)

    assert answer_of(await deliver(receiver, channel_event(1))) == (500, "handler_failed")
    assert (shop.orders(), shop.recorded()) == ([], [])


async def test_serial_by_within_a_ledger_takes_the_key_lock_of_the_store(shop: Shop) -> None:
    store, key_lock, token = MemoryStore(), KeyLock("default", "book", "post_1"), new_token()
    hasty, patient = receiver_on(store, answer_seconds=0.2), receiver_on(store)

    def book(event: CommentReceived, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id)

    for receiver in (hasty, patient):
        receiver.on(
            CommentReceived, name="book", within=shop.ledger, serial_by=lambda e: e.data.post_id
        )(book)
    event = make_event(CommentReceived, data={"postId": "post_1"})
    assert await store.acquire_key_lock(key_lock, token, 60.0) == Acquired()
    assert answer_of(await deliver(hasty, event)) == (503, "in_flight")
    assert shop.orders() == []
    await store.release_key_lock(key_lock, token)
    assert answer_of(await deliver(patient, event, 2)) == (200, "handled")
    assert shop.orders() == [(event.id, "book")]


async def test_unknown_types_can_be_handled_within_a_ledger(shop: Shop) -> None:
    receiver = receiver_on()

    @receiver.on_unknown(name="note", within=shop.ledger, latest_by=lambda event: event.type)
    def note(event: UnknownEvent, connection: sqlite3.Connection) -> None:
        shop.book(connection, event.id)

    for minute, reason in ((2, "handled"), (1, "stale")):
        body = event_body("post.boosted", created_at=NOON + timedelta(minutes=minute))
        request = signed_request(body, SECRET)
        outcome = await receiver.handle(request.body, request.headers)
        assert answer_of(outcome) == (200, reason)
    assert len(shop.orders()) == 1


class WithoutWatermarks:
    """A user's ledger that keeps no watermarks."""

    def __init__(self, inner: SQLiteLedger) -> None:
        self._inner = inner

    @property
    def retention_seconds(self) -> float:
        return self._inner.retention_seconds

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._inner.transaction()

    def insert(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        return self._inner.insert(transaction, effect)

    def holds(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        return self._inner.holds(transaction, effect)

    def prune(self, transaction: sqlite3.Connection, limit: int) -> int:
        return self._inner.prune(transaction, limit)


def test_a_ledger_that_keeps_no_watermarks_is_refused_when_the_handler_is_registered(
    shop: Shop,
) -> None:
    receiver, ledger = Receiver(secrets=SECRET, store="memory://"), WithoutWatermarks(shop.ledger)

    def sync(event: ChannelUnhealthy, connection: sqlite3.Connection) -> None: ...

    with pytest.raises(TypeError, match="WithoutWatermarks keeps no watermarks"):
        receiver.on(ChannelUnhealthy, within=ledger, latest_by=lambda event: event.data.id)(sync)
    receiver.on(ChannelUnhealthy, within=ledger, serial_by=lambda event: event.data.id)(sync)
