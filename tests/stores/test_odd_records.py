"""Records with numbers that no call writes; a fault or another program may have written them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import closing

import pytest
from support.redis_servers import RedisServer
from support.sqlite_files import sqlite_connection

from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    DeliveryKey,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
NONE: frozenset[str] = frozenset()
NUMBERS = [1e300, -1e300, -1.0, math.inf, -math.inf, math.nan]

PassTime = Callable[[float], None]


async def claim(store: Store, key: DeliveryKey) -> Claimed:
    result = await store.claim(key, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


def delivery(event_id: str, received_at: float = 1_700_000_000.0) -> Delivery:
    return Delivery("default", event_id, "post.target.failed", received_at, b"{}")


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> list[RedisServer]:
    """Return the Redis servers of the store; a SQLite or memory store has none."""
    backend = request.node.callspec.id
    if "valkey" in backend:
        return [request.getfixturevalue("valkey")]
    if "redis" in backend:
        return [request.getfixturevalue("redis_7")]
    return list(request.getfixturevalue("cluster")) if "cluster" in backend else []


async def look_at_all(store: Store) -> None:
    """List all records of a store, and show each record."""
    await store.stats()
    await store.stats(endpoint="default")
    for letter in await store.dead_letters():
        assert await store.dead_letter(letter.delivery.key) is not None
    if isinstance(store, InboxStore):
        for entry in await store.entries():
            assert await store.entry(entry.delivery.key) is not None


@pytest.mark.parametrize("number", NUMBERS)
async def test_no_number_in_a_record_breaks_a_listing(
    store: Store, servers: list[RedisServer], pass_time: PassTime, number: float
) -> None:
    for name in ("evt_live", "evt_failed", "evt_dead", "evt_kept", "evt_done", "evt_late"):
        owned = await claim(store, delivery_key("default", name))
        if name == "evt_failed":
            await store.release(owned, frozenset({"a"}), "it failed")
        elif name == "evt_dead":
            await store.bury(owned, DeadReason.REJECTED, error="it failed", delivery=delivery(name))
        elif name == "evt_kept" and store.keeps_bodies:
            await store.keep(owned, delivery(name))
        elif name == "evt_done":
            await store.complete(owned)
    if isinstance(store, InboxStore):
        for name in ("evt_waits", "evt_taken"):
            await store.enqueue(delivery(name), new_token())
        await store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token())
    if isinstance(store, SQLiteStore):
        damage_file(store, number)
    if servers:
        damage_keys(servers, number)
    await look_at_all(store)
    pass_time(LEASE)
    await look_at_all(store)


def damage_file(store: SQLiteStore, number: float) -> None:
    """Replace every number in a file by this number."""
    is_finite = math.isfinite(number)
    whole = max(-(2**63), min(2**63 - 1, int(number))) if is_finite else 2**63 - 1
    values = {"REAL": whole if math.isnan(number) else number, "INTEGER": whole}
    history = json.dumps([[number, number, "it failed"]])
    with closing(sqlite_connection(store.path)) as connection:
        columns = connection.execute(
            "SELECT m.name, c.name, c.type FROM sqlite_schema AS m, pragma_table_info(m.name) AS c"
            " WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%'"
            " AND NOT (c.type = 'INTEGER' AND c.pk)"
        ).fetchall()
        for table, name, kind in columns:
            if kind in values:
                connection.execute(f"UPDATE {table} SET {name} = ?", (values[kind],))
            elif name == "history":
                connection.execute(f"UPDATE {table} SET history = ?", (history,))
    assert {"attempts", "dead", "done", "entries", "workers"} <= {table for table, _, _ in columns}


DAMAGE = """
local number = tonumber(ARGV[1]) or (ARGV[1] == 'nan' and 0/0)
local records = redis.call('KEYS', '{*:a:*')
for _, name in ipairs(records) do
  local found = {cmsgpack.unpack(redis.call('GET', name))}
  local is_done = type(found[1]) == 'number'
  for place, value in ipairs(found) do
    if type(value) == 'number' then found[place] = number end
  end
  if not is_done then found[7] = '1 ' .. ARGV[1] .. ' "it failed"' end -- the history
  redis.call('SET', name, cmsgpack.pack(unpack(found)), 'KEEPTTL')
end
local damaged = 0
local function damage(pattern, field)
  for _, name in ipairs(redis.call('KEYS', pattern)) do
    damaged = damaged + redis.call('HEXISTS', name, field)
    redis.call('HSET', name, field, ARGV[1])
  end
end
damage('{*:l:*', 'received')
damage('{*:l:*', 'at')
damage('{*:n:*', 'bytes')
damage('{*:n:*', 'seen')
return {#records, damaged}
"""


def damage_keys(servers: list[RedisServer], number: float) -> None:
    """Replace every number in the servers' records by this number."""
    records, fields = 0, 0
    for server in servers:
        with server.client() as client:
            found, damaged = client.eval(DAMAGE, 0, repr(number))
        records, fields = records + found, fields + damaged
    assert records >= 8
    assert fields >= 4
