"""The contents of a release's files: each store has the same events, one in each state."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from support.postgres import PostgresServer

from hookonce.effects.ledger import Effect, Latest
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.stores.applications import Application
from hookonce.stores.handled import Keeping
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.postgres.schema import schema_sql
from hookonce.stores.reconciling import Span
from hookonce.stores.redis import RedisStore
from hookonce.stores.replays import ReplayBatch, ReplayPlan
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Acquired,
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    InFlight,
    KeyLock,
    Known,
    Stale,
    Token,
    Waiting,
    Watermark,
    delivery_key,
)

__all__ = [
    "NOW",
    "check_ledger",
    "check_store",
    "fill_ledger",
    "fill_store",
    "read_keys",
    "read_rows",
    "write_keys",
]

AnyStore: TypeAlias = SQLiteStore | RedisStore | PostgresStore

NOW = 1_800_000_000.0
"""The time at which the files were written, and are read."""

ENDPOINT = "default"
_LEASE = 600.0
_FINISHED, _OUTSTANDING = frozenset({"shop.answer"}), frozenset({"shop.greet"})
_LOCK = KeyLock(ENDPOINT, "shop.sync", "chan_1")
_HELD = KeyLock(ENDPOINT, "shop.sync", "chan_2")
_WATERMARK = Watermark(1_799_999_000_000_000, "evt_newest")
_APPLICATION = Application(frozenset({"shop.greet"}), frozenset({"mark"}))
_SPAN = Span(1_799_999_000, 1_799_999_500)
_EFFECT = Effect(ENDPOINT, "evt_done", "shop.greet")
_LATEST = Latest(_LOCK, _WATERMARK)
_KEEPING = Keeping(3 * 86_400.0)
_PLAN = ReplayPlan(since_seconds=3600.0, where=("data.platform=x",), late=True)


def _key(event_id: str) -> DeliveryKey:
    return delivery_key(ENDPOINT, event_id)


def _delivery(event_id: str) -> Delivery:
    return Delivery(ENDPOINT, event_id, "comment.received", NOW - 5, f"{event_id}\0\xff".encode())


async def _claim(store: AnyStore, event_id: str) -> Claimed:
    claim = await store.claim(_key(event_id), Token(f"claim of {event_id}"), _LEASE)
    assert isinstance(claim, Claimed), claim
    return claim


async def fill_store(store: AnyStore) -> None:
    """Write one event in each state, key locks, and the records for operators."""
    await store.complete(await _claim(store, "evt_done"))
    await _claim(store, "evt_claimed")
    await store.release(
        await _claim(store, "evt_failed"), _FINISHED, "it failed", outstanding=_OUTSTANDING
    )
    await store.bury(
        await _claim(store, "evt_dead"),
        DeadReason.REJECTED,
        error="the shop is closed",
        finished=_FINISHED,
        outstanding=_OUTSTANDING,
        delivery=_delivery("evt_dead"),
    )
    kept = await _claim(store, "evt_kept")
    await store.keep(kept, _delivery("evt_kept"), dead_unix=NOW + 3600)
    await store.release(kept, frozenset(), "it failed")
    await store.enqueue(_delivery("evt_fetched"), Token("enqueue 1"))
    batch = await store.fetch(1, _LEASE, endpoint=ENDPOINT, worker="w1", token=Token("fetch"))
    assert [one.delivery for one in batch.fetched] == [_delivery("evt_fetched")]
    await store.enqueue(_delivery("evt_waiting"), Token("enqueue 2"))
    await store.acquire_key_lock(_LOCK, Token("lock 1"), _LEASE)
    await store.release_key_lock(_LOCK, Token("lock 1"), watermark=_WATERMARK)
    await store.acquire_key_lock(_HELD, Token("lock 2"), _LEASE)
    await store.acquire_key_lock(_HELD, Token("lock 3"), _LEASE, waiting=_key("evt_waiting"))
    await store.register(ENDPOINT, _APPLICATION)
    await store.note_ignored(ENDPOINT, {"message.received": [_SPAN]})
    await store.accept(ENDPOINT, ["evt_gap"])
    handled = await _claim(store, "evt_handled")
    await store.complete_and_keep(handled, _delivery("evt_handled"), _FINISHED, _KEEPING)
    await store.begin_replay_batch(ENDPOINT, "shop.answer", 2, _PLAN)


async def check_store(store: AnyStore) -> None:
    """Check that the store knows everything that ``fill_store`` has written, and still works."""
    await store.open()
    events = ["done", "claimed", "failed", "dead", "kept", "fetched", "waiting", "unknown"]
    assert await store.known(ENDPOINT, [f"evt_{name}" for name in events]) == {
        "evt_done": Known.DONE,
        "evt_claimed": Known.IN_FLIGHT,
        "evt_failed": Known.FAILED,
        "evt_dead": Known.DEAD,
        "evt_kept": Known.FAILED,
        "evt_fetched": Known.WAITING,
        "evt_waiting": Known.WAITING,
    }
    stats = await store.stats()
    assert (stats.in_flight, stats.dead, stats.kept, stats.depth) == (2, 1, 1, 2)
    for event_id, kind in (("evt_done", Done), ("evt_dead", Dead), ("evt_claimed", InFlight)):
        assert isinstance(await store.claim(_key(event_id), Token("new"), _LEASE), kind)
    again = await _claim(store, "evt_claimed")  # the same token gets the claim again
    await store.complete(again)
    failed = await store.claim(_key("evt_failed"), Token("new"), _LEASE)
    assert isinstance(failed, Claimed)
    assert (failed.attempt, failed.finished) == (2, _FINISHED)
    assert failed.outstanding == _OUTSTANDING
    dead = await store.dead_letter(_key("evt_dead"))
    assert dead is not None
    assert (dead.delivery, dead.reason) == (_delivery("evt_dead"), DeadReason.REJECTED)
    assert (dead.error, dead.finished) == ("the shop is closed", _FINISHED)
    assert [one.error for one in dead.history] == ["the shop is closed"]
    kept = await store.dead_letter(_key("evt_kept"))
    assert kept is not None
    assert kept.is_kept
    assert await store.enqueue(_delivery("evt_fetched"), Token("new")) == Waiting()
    batch = await store.fetch(9, _LEASE, endpoint=ENDPOINT, worker="w2", token=Token("next"))
    assert [one.delivery for one in batch.fetched] == [_delivery("evt_waiting")]
    asked = Watermark(_WATERMARK.created_unix_us - 1, "evt_older")
    late = await store.acquire_key_lock(_LOCK, Token("lock 4"), _LEASE, watermark=asked)
    assert late == Stale(_WATERMARK)
    assert await store.acquire_key_lock(_HELD, Token("lock 2"), _LEASE) == Acquired()
    assert await store.release_key_lock(_HELD, Token("lock 2")) == _key("evt_waiting")
    assert await store.register(ENDPOINT, None) == (_APPLICATION,)
    assert await store.ignored(ENDPOINT, ["message.received"]) == {"message.received": (_SPAN,)}
    assert await store.accepted(ENDPOINT, ["evt_gap", "evt_1"]) == frozenset({"evt_gap"})
    assert await store.discard(_key("evt_dead"))
    handled = await store.handled_event(_key("evt_handled"))
    assert handled is not None
    assert handled.delivery == _delivery("evt_handled")
    assert (handled.finished, handled.handled_unix) == (_FINISHED, NOW)
    assert handled.expires_unix == NOW + _KEEPING.seconds
    batch_of_replays = ReplayBatch(ENDPOINT, "shop.answer", 2, _PLAN, NOW)
    assert await store.replay_batches(ENDPOINT) == [batch_of_replays]


def fill_ledger(path: Path) -> None:
    """Write the tables of a ledger, with one effect and one watermark."""
    ledger = SQLiteLedger(path)
    ledger.create_table()
    with ledger.transaction() as transaction:
        assert ledger.insert(transaction, _EFFECT)
        assert ledger.holds(transaction, _EFFECT)
        assert ledger.advance(transaction, _LATEST)
    ledger.close()


def check_ledger(path: Path) -> None:
    """Check that a ledger knows its effect and its watermark."""
    ledger = SQLiteLedger(path)
    older = Latest(_LOCK, Watermark(_WATERMARK.created_unix_us - 1, "evt_older"))
    with ledger.transaction() as transaction:
        assert not ledger.insert(transaction, _EFFECT)
        assert not ledger.advance(transaction, older)
        assert ledger.insert(transaction, _EFFECT._replace(event_id="evt_new"))
        assert ledger.holds(transaction, _EFFECT._replace(event_id="evt_new"))
    ledger.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(
            "SELECT DISTINCT generation FROM hookonce_effects"
        ).fetchall() == [(0,)]


def read_keys(client: Any) -> list[list[str]]:
    """Return a server's keys as commands that write them again, on any server version."""
    return [_command(client, name) for name in sorted(client.scan_iter("*"))]


def _command(client: Any, name: bytes) -> list[str]:
    words: Iterable[bytes]
    match client.type(name):
        case b"string":
            words = [b"SET", name, client.get(name)]
        case b"hash":
            pairs = sorted(client.hgetall(name).items())
            words = [b"HSET", name, *(word for pair in pairs for word in pair)]
        case b"zset":
            scores = client.zrange(name, 0, -1, withscores=True)
            pairs = [(repr(score).encode(), member) for member, score in scores]
            words = [b"ZADD", name, *(word for pair in pairs for word in pair)]
        case b"list":
            words = [b"RPUSH", name, *client.lrange(name, 0, -1)]
        case b"set":
            words = [b"SADD", name, *sorted(client.smembers(name))]
        case kind:
            raise AssertionError(kind)
    return [word.decode("latin-1") for word in words]


def write_keys(client: Any, commands: list[list[str]]) -> None:
    """Write the keys that ``read_keys`` has read."""
    for words in commands:
        client.execute_command(*(word.encode("latin-1") for word in words))


def read_rows(server: PostgresServer) -> list[str]:
    """Return the rows of a store's tables as statements that write them into new tables."""
    statements = []
    for table in re.findall(r"CREATE TABLE (\S+) \(", schema_sql()):
        [(rows,)] = server.execute(f"SELECT quote_literal(json_agg(t)::text) FROM {table} AS t")
        statements.append(f"DELETE FROM {table}")
        if rows is not None:
            statements.append(
                f"INSERT INTO {table} OVERRIDING SYSTEM VALUE"
                f" SELECT * FROM json_populate_recordset(NULL::{table}, {rows})"
            )
    for sequence, last in server.execute(
        "SELECT schemaname || '.' || sequencename, last_value FROM pg_sequences"
        " WHERE last_value IS NOT NULL ORDER BY 1"
    ):
        statements.append(f"SELECT setval('{sequence}', {last})")
    return statements
