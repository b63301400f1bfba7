"""The PostgreSQL store under pressure: other transactions, and many events behind a locked key.

`pressure` has the transactions. Each subject gets an empty schema of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice

from support.postgres import PostgresServer, postgres_server

from hookonce.stores.postgres import PostgresStore
from hookonce.stores.values import KeyLock, new_token

from .draining import Drained, Work, drain_store
from .filling import ENDPOINT, deliveries
from .measuring import AtLeast, Part, Result
from .pressure import AT_ONCE, Pressure, Under, measure, open_transaction, scanners
from .rounds import compared, in_rounds

__all__ = ["PARTS"]

_EVENTS, _QUICK_EVENTS = 1_000_000, 20_000
_ROUNDS, _QUICK_ROUNDS = 3, 3
_DRAINED, _QUICK_DRAINED = 20_000, 5_000
_DRAINS, _QUICK_DRAINS = 10, 3
_BEHIND, _QUICK_BEHIND = 1_000_000, 10_000
_FILLED_AT_ONCE = 512
_LOCK_SECONDS, _LEASE_SECONDS = 24 * 3600.0, 30.0
_OPEN_TARGET, _BEHIND_TARGET = AtLeast(0.8), AtLeast(0.85)
_SETTINGS = {"fsync": "on", "autovacuum": "on", "shared_buffers": "128MB"}

_CLEAN, _OPEN = "clean", "beside an open transaction"
_UNITS = {
    "per_second": ("throughput", "/s"),
    "last_tenth": ("throughput of the last tenth, to the first", "x"),
    "blocks": ("blocks that the server reads for an event", ""),
    "last_blocks": ("blocks for an event of the last tenth, to the first", "x"),
    "after": ("throughput when the other transactions have ended", "/s"),
    "wal": ("write-ahead log for an event", "bytes"),
    "dead": ("dead rows for an event", ""),
    "tables": ("tables", "MB"),
    "indexes": ("indexes", "MB"),
    "read_ms": ("a bystander's read", "ms"),
    "slow_read_ms": ("99th percentile of a bystander's reads", "ms"),
}


def _flow(is_quick: bool, *, is_inbox: bool) -> list[Result]:
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    events = _QUICK_EVENTS if is_quick else _EVENTS
    rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
    with postgres_server(**_SETTINGS) as server:
        return _beside_transactions(server, events, rounds, is_inbox=is_inbox)


def _key(is_quick: bool) -> list[Result]:
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    work = Work(_QUICK_DRAINED if is_quick else _DRAINED, AT_ONCE, 0.0)
    drains = _QUICK_DRAINS if is_quick else _DRAINS
    with postgres_server(**_SETTINGS) as server:
        return _behind_a_locked_key(server, work, drains, _QUICK_BEHIND if is_quick else _BEHIND)


@asynccontextmanager
async def _nothing(_: PostgresServer, __: str) -> AsyncIterator[None]:
    yield


def _beside_transactions(
    server: PostgresServer, events: int, rounds: int, *, is_inbox: bool
) -> list[Result]:
    def run(pressure: Pressure) -> Under:
        return asyncio.run(measure(server, pressure, events, is_inbox=is_inbox))

    pressures: Mapping[str, Pressure] = {
        _CLEAN: _nothing,
        _OPEN: open_transaction,
        "beside four repeatable-read scanners": scanners,
    }
    found = in_rounds({name: partial(run, one) for name, one in pressures.items()}, rounds)
    case = f"{'inbox' if is_inbox else 'inline'}, {events:,} events, {AT_ONCE} at once"
    return [result for field in Under._fields for result in _of_field(case, field, found)]


def _of_field(case: str, field: str, found: Mapping[str, Sequence[Under]]) -> list[Result]:
    what, unit = _UNITS[field]
    values = {name: [getattr(one, field) for one in own] for name, own in found.items()}
    targets = {_OPEN: _OPEN_TARGET} if field == "per_second" else {}
    return compared(f"{case}: {what}", values, unit, targets)


def _behind_a_locked_key(
    server: PostgresServer, work: Work, rounds: int, behind: int
) -> list[Result]:
    alone, beside = "no other events", f"{behind:,} events behind a locked key"
    schemas = {alone: "drain_alone", beside: "drain_beside"}
    asyncio.run(_fill_behind_a_locked_key(server, schemas[beside], behind))

    def drain(name: str, remaining: int) -> Drained:
        store = PostgresStore(server.url, schema=schemas[name])
        return asyncio.run(drain_store(store, work, remaining=remaining))

    def wait(name: str) -> float:
        return asyncio.run(_next_event_ms(PostgresStore(server.url, schema=schemas[name])))

    subjects = {alone: partial(drain, alone, 0), beside: partial(drain, beside, behind)}
    drains = in_rounds(subjects, rounds)
    waits = in_rounds({name: partial(wait, name) for name in schemas}, rounds)
    for schema in schemas.values():
        server.execute(f"DROP SCHEMA {schema} CASCADE")
    rates = {name: [drained.per_second for drained in own] for name, own in drains.items()}
    case = f"{work.events:,} events, {work.at_once} at once, {work.handlers}"
    return [
        *compared(case, rates, "/s", {beside: _BEHIND_TARGET}),
        *compared("the first fetch of a process, with one other event", waits, "ms"),
    ]


async def _next_event_ms(store: PostgresStore) -> float:
    """Return how long the first fetch of a process takes that returns a new event."""
    [event] = deliveries(1)
    await store.enqueue(event, new_token())
    started = time.perf_counter()
    batch = await store.fetch(
        AT_ONCE, _LEASE_SECONDS, endpoint=ENDPOINT, worker="worker", token=new_token()
    )
    seconds = time.perf_counter() - started
    [fetched] = batch.fetched
    await store.complete(fetched.claim)
    await store.aclose()
    return seconds * 1000


async def _fill_behind_a_locked_key(server: PostgresServer, schema: str, number: int) -> None:
    store = PostgresStore(server.url, schema=schema)
    key_lock = KeyLock(ENDPOINT, "drain", "locked")
    await store.acquire_key_lock(key_lock, new_token(), _LOCK_SECONDS)
    given = deliveries(number)
    while some := list(islice(given, _FILLED_AT_ONCE)):
        await asyncio.gather(*(store.enqueue(one, new_token(), key_lock=key_lock) for one in some))
    await store.aclose()


PARTS = (
    Part(
        "postgres-inbox",
        "events through the inbox of a PostgreSQL store, beside other transactions",
        partial(_flow, is_inbox=True),
    ),
    Part(
        "postgres-inline",
        "claims and completions of a PostgreSQL store, beside other transactions",
        partial(_flow, is_inbox=False),
    ),
    Part("postgres-key", "a PostgreSQL store with many events behind a locked key", _key),
)
