"""Records that are odd: ids of great length, and numbers that no call of today would write."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import closing, suppress

import apsw
import pytest
from support.redis_servers import RedisServer

from hookonce.errors import StoreError
from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    Ownership,
    Stored,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
NONE: frozenset[str] = frozenset()
LONG = Delivery("default", "msg_" + "é1" * 254, "post.target.failed", 1_700_000_000.0, b"{}")
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
    """Return the servers behind the store."""
    backend = request.node.callspec.id
    if "valkey" in backend:
        return [request.getfixturevalue("valkey")]
    if "redis" in backend:
        return [request.getfixturevalue("redis_7")]
    return list(request.getfixturevalue("cluster")) if "cluster" in backend else []


async def look_at_all(store: Store) -> None:
    """Ask for everything that a store shows."""
    await store.stats()
    await store.stats(endpoint="default")
    for letter in await store.dead_letters():
        assert await store.dead_letter(letter.delivery.key) is not None
    if isinstance(store, InboxStore):
        for entry in await store.entries():
            assert await store.entry(entry.delivery.key) is not None


class TestLongIds:
    async def test_an_id_of_512_characters_is_handled_once(self, store: Store) -> None:
        assert len(LONG.event_id) == 512
        other = LONG._replace(event_id=LONG.event_id[:-1] + "2")
        owned = await claim(store, LONG.key)
        await claim(store, other.key)
        assert await store.extend(owned, frozenset({"a"})) is Ownership.HELD
        await store.release(owned, NONE, "it failed")
        again = await claim(store, LONG.key)
        assert (again.attempt, again.finished) == (2, frozenset({"a"}))
        await store.complete(again)
        assert await store.claim(LONG.key, new_token(), LEASE) == Done()

    async def test_an_id_of_512_characters_is_listed_among_the_dead(self, store: Store) -> None:
        owned = await claim(store, LONG.key)
        await store.bury(owned, DeadReason.REJECTED, error="it failed", delivery=LONG)
        [listed] = await store.dead_letters()
        assert listed.delivery.event_id == LONG.event_id
        assert await store.discard(LONG.key)

    async def test_an_id_of_512_characters_waits_in_the_inbox(self, store: Store) -> None:
        if not isinstance(store, InboxStore):
            pytest.skip("this store has no inbox")
        assert await store.enqueue(LONG, new_token()) == Stored()
        batch = await store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token())
        assert [taken.delivery for taken in batch.fetched] == [LONG]
        assert [entry.delivery.event_id for entry in await store.entries()] == [LONG.event_id]


class TestAbsurdNumbers:
    @pytest.mark.parametrize("number", NUMBERS)
    async def test_no_delay_or_time_of_arrival_that_is_taken_breaks_a_listing(
        self, store: Store, pass_time: PassTime, number: float
    ) -> None:
        dead = delivery("evt_dead", number)
        with suppress(StoreError):
            owned = await claim(store, dead.key)
            await store.bury(owned, DeadReason.REJECTED, error="it failed", delivery=dead)
        if isinstance(store, InboxStore):
            with suppress(StoreError):
                await store.enqueue(delivery("evt_odd", number), new_token())
            await store.enqueue(delivery("evt_put_off"), new_token())
            batch = await store.fetch(9, LEASE, endpoint="default", worker="w", token=new_token())
            for taken in batch.fetched:
                assert await store.retry(taken.claim, number) is Ownership.HELD
        await look_at_all(store)
        pass_time(LEASE)
        await look_at_all(store)

    @pytest.mark.parametrize("number", NUMBERS)
    async def test_no_number_that_stands_in_a_record_breaks_a_listing(
        self, store: Store, servers: list[RedisServer], pass_time: PassTime, number: float
    ) -> None:
        for name in ("evt_live", "evt_failed", "evt_dead", "evt_kept", "evt_done", "evt_late"):
            owned = await claim(store, delivery_key("default", name))
            if name == "evt_failed":
                await store.release(owned, frozenset({"a"}), "it failed")
            elif name == "evt_dead":
                await store.bury(
                    owned, DeadReason.REJECTED, error="it failed", delivery=delivery(name)
                )
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
    """Write a number in the place of every number of a file."""
    is_finite = math.isfinite(number)
    whole = max(-(2**63), min(2**63 - 1, int(number))) if is_finite else 2**63 - 1
    values = {"REAL": whole if math.isnan(number) else number, "INTEGER": whole}
    history = json.dumps([[number, number, "it failed"]])
    with closing(apsw.Connection(str(store.path))) as connection:
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
    """Write a number in the place of every number of the servers' records."""
    records, fields = 0, 0
    for server in servers:
        with server.client() as client:
            found, damaged = client.eval(DAMAGE, 0, repr(number))
        records, fields = records + found, fields + damaged
    assert records >= 8
    assert fields >= 4
