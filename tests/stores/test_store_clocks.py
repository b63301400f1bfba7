"""Stores without a server use the machine's clock by default; a test can pass another clock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from freezegun import freeze_time

from hookonce.clock import Clock
from hookonce.stores.activity import WATCHED_SECONDS
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, InFlight, delivery_key, new_token

pytestmark = pytest.mark.anyio

LEASE = 30.0


@pytest.mark.parametrize("kind", [MemoryStore, SQLiteStore])  # other stores use a server's clock
async def test_the_default_clock_is_the_machines_looked_up_at_the_call(
    kind: type[Store], tmp_path: Path
) -> None:
    async def claim() -> type[object]:
        return type(await store.claim(delivery_key("default", "evt_1"), new_token(), LEASE))

    with freeze_time("2026-01-01 12:00:00", real_asyncio=True) as frozen:
        made = MemoryStore() if kind is MemoryStore else SQLiteStore(tmp_path / "hooks.db")
        async with aclosing(made) as store:
            assert await claim() is Claimed
            frozen.tick(LEASE - 1)
            assert await claim() is InFlight
            frozen.tick(1)
            assert await claim() is Claimed


async def test_publishing_ends_when_no_operator_watches_any_more(
    tmp_path: Path, clock: Clock, pass_time: Callable[[float], None]
) -> None:
    async with aclosing(SQLiteStore(tmp_path / "hooks.db", clock=clock)) as store:
        place, _ = await store.follow("default", None)
        pass_time(WATCHED_SECONDS / 2 - 1)
        assert await store.publish("default", [b"seen"])
        assert (await store.follow("default", place)).lines == (b"seen",)
        pass_time(WATCHED_SECONDS + 1)
        assert not await store.publish("default", [b"lost"])
