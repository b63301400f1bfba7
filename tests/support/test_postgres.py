from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from hookonce.stores.postgres import PostgresStore
from hookonce.stores.values import Claimed, DeadReason, Delivery, KeyLock, new_token

from .postgres import PostgresServer

pytestmark = pytest.mark.anyio


def contents(server: PostgresServer) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of every table of a store, and the state of its sequences."""
    names = server.execute(
        "SELECT relname FROM pg_class"
        " WHERE relnamespace = 'hookonce'::regnamespace AND relkind IN ('r', 'S')"
    )
    return {name: server.execute(f"SELECT * FROM hookonce.{name}") for (name,) in names}


def without_times(found: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    """Leave out creation times of tables and log counters of sequences, which may differ."""
    return {
        name: [row[:1] for row in rows] if name == "body_part" else rows
        for name, rows in found.items()
        if name != "pruned" and not name.endswith("_seq")
    } | {name: [(row[0], row[2]) for row in rows] for name, rows in found.items() if "_seq" in name}


async def fill(server: PostgresServer) -> None:
    """Write rows into the tables of events, entries, dead letters and key locks."""
    async with aclosing(PostgresStore(server.url)) as store:
        for number in range(3):
            event = Delivery("default", f"evt_{number}", None, 1.0, b"{}")
            await store.enqueue(event, new_token())
        claim = await store.claim(
            Delivery("default", "evt_9", None, 1.0, b"{}").key, new_token(), 30
        )
        assert isinstance(claim, Claimed)
        dead = Delivery("default", "evt_9", None, 1.0, b"{}")
        await store.bury(claim, DeadReason.REJECTED, delivery=dead)
        lock = KeyLock("default", "shop.sync", "chan_1")
        await store.acquire_key_lock(lock, new_token(), 30)
        await store.acquire_key_lock(lock, new_token(), 30, waiting=dead.key)


async def test_an_emptied_store_is_as_it_was_created(postgres: PostgresServer) -> None:
    postgres.definitions.clear()
    postgres.empty_store()
    created = without_times(contents(postgres))
    await fill(postgres)
    assert without_times(contents(postgres)) != created
    postgres.empty_store()
    assert without_times(contents(postgres)) == created
    async with aclosing(PostgresStore(postgres.url)) as store:
        assert (await store.stats()).depth == 0


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE hookonce.ids ADD COLUMN more text",
        "DROP TABLE hookonce.seen",
        "DROP INDEX hookonce.entries_due",
        "DROP FUNCTION hookonce.finish",
        "DROP SCHEMA hookonce CASCADE",
    ],
)
async def test_what_a_test_has_changed_is_created_again(
    postgres: PostgresServer, change: str
) -> None:
    postgres.empty_store()
    created = postgres.definitions
    postgres.execute(change)
    postgres.empty_store()
    assert postgres.definitions == created
    await fill(postgres)
