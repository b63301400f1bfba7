"""New stores for a measurement, filled with many remembered events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from support.postgres import postgres_server
from support.redis_servers import redis_server

from hookonce.stores.memory import MemoryStore
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, Done, delivery_key, new_token

from .filling import ENDPOINT

__all__ = ["INBOX_PLACES", "PLACES", "remember"]

_LEASE_SECONDS = 30.0
_AT_ONCE = 1_000


async def remember(store: Store, number: int) -> None:
    """Complete this many events, so that the store remembers them as done."""
    claims = (_claim(one) for one in range(number))
    while some := list(islice(claims, _AT_ONCE)):
        # `complete` records a success even without a claim.
        await asyncio.gather(*map(store.complete, some))
    if await store.claim(_claim(0).key, new_token(), _LEASE_SECONDS) != Done():
        raise RuntimeError("what was completed is not remembered")


def _claim(number: int) -> Claimed:
    key = delivery_key(ENDPOINT, f"evt_remembered{number:012x}")
    return Claimed(key, new_token(), 1, frozenset(), _LEASE_SECONDS)


@contextmanager
def _memory() -> Iterator[Store]:
    # With the default limit the store would forget the oldest of a million events.
    yield MemoryStore(max_records=10_000_000)


@contextmanager
def _sqlite() -> Iterator[InboxStore]:
    with TemporaryDirectory(prefix="hookonce-benchmark-") as folder:
        yield SQLiteStore(Path(folder) / "hooks.db")


@contextmanager
def _redis() -> Iterator[InboxStore]:
    with redis_server() as server:
        yield RedisStore(server.url)


@contextmanager
def _postgres() -> Iterator[InboxStore]:
    with postgres_server(fsync="on", autovacuum="on", shared_buffers="128MB") as server:
        yield PostgresStore(server.url)


INBOX_PLACES: Mapping[str, Callable[[], AbstractContextManager[InboxStore]]] = {
    "SQLite": _sqlite,
    "Redis": _redis,
    "PostgreSQL": _postgres,
}
PLACES: Mapping[str, Callable[[], AbstractContextManager[Store]]] = {
    "memory": _memory,
    **INBOX_PLACES,
}
