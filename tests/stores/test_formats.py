"""Two versions of hookonce on one store, and the format number that the store records.

Store classes with 2 in ``formats`` simulate a later format; their records do not differ.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import answer_of, comment, deliver, receiver_on
from support.postgres import PostgresServer
from support.redis_servers import RedisServer
from support.sqlite_files import sqlite_connection

from hookonce.errors import StoreError
from hookonce.stores.formats import OLD_SECONDS, FormatError, Upgrade
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    Delivery,
    DeliveryKey,
    Done,
    InFlight,
    Known,
    Stored,
    Waiting,
    delivery_key,
    new_token,
)

pytestmark = [pytest.mark.anyio, pytest.mark.sample(3, of="file")]

LEASE = 30.0
ENDPOINT = "default"

PassTime = Callable[[float], None]
AnyStore = SQLiteStore | RedisStore | PostgresStore


class LaterSQLite(SQLiteStore):
    """A store of the next version, which also writes the old format."""

    formats = (1, 2)


class NextSQLite(SQLiteStore):
    """A store of a version that writes only the new format."""

    formats = (2,)


class LaterRedis(RedisStore):
    """Like ``LaterSQLite``, but in Redis."""

    formats = (1, 2)


class NextRedis(RedisStore):
    """Like ``NextSQLite``, but in Redis."""

    formats = (2,)


class LaterPostgres(PostgresStore):
    """Like ``LaterSQLite``, but in PostgreSQL."""

    formats = (1, 2)


class NextPostgres(PostgresStore):
    """Like ``NextSQLite``, but in PostgreSQL."""

    formats = (2,)


@dataclass
class Place:
    """Opens the same store with each version."""

    old: Callable[[], AnyStore]
    later: Callable[[], AnyStore]
    next: Callable[[], AnyStore]
    content: Callable[[], Any]
    """Return all that is stored."""


def file_content(path: Path) -> Any:
    return path.read_bytes() if path.exists() else None


def schema_content(server: PostgresServer) -> Any:
    tables = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'hookonce'")
    return {table: server.execute(f"TABLE hookonce.{table}") for (table,) in tables}


@pytest.fixture(params=["sqlite", "postgresql", "valkey", "valkey with shards"])
def place(request: pytest.FixtureRequest, clock: Any) -> Place:
    if request.param == "sqlite":
        path: Path = request.getfixturevalue("tmp_path") / "hooks.db"
        stores = (SQLiteStore, LaterSQLite, NextSQLite)
        old, later, following = (lambda kind=kind: kind(path, clock=clock) for kind in stores)
        return Place(old, later, following, lambda: file_content(path))
    if request.param == "postgresql":
        database: PostgresServer = request.getfixturevalue("shared_postgres")
        database.execute("DROP SCHEMA IF EXISTS hookonce CASCADE")
        versions = (PostgresStore, LaterPostgres, NextPostgres)
        old, later, following = (
            lambda kind=kind: kind(database.url, clock=clock) for kind in versions
        )
        return Place(old, later, following, lambda: schema_content(database))
    server: RedisServer = request.getfixturevalue("valkey")
    shards = 3 if "shards" in request.param else 1
    kinds = (RedisStore, LaterRedis, NextRedis)
    old, later, following = (
        lambda kind=kind: kind(server.url, shards=shards, clock=clock) for kind in kinds
    )

    def content() -> Any:
        with server.client() as client:
            return {name: client.dump(name) for name in sorted(client.scan_iter("*"))}

    return Place(old, later, following, content)


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[AnyStore], AnyStore]]:
    """Return a function that registers a store to be closed after the test."""
    async with AsyncExitStack() as stack:

        def closed_later(store: AnyStore) -> AnyStore:
            stack.push_async_callback(store.aclose)
            return store

        yield closed_later


Opened = Callable[[AnyStore], AnyStore]


def delivery(event_id: str) -> Delivery:
    return Delivery(ENDPOINT, event_id, "comment.received", 1.0, b"{}")


def key(event_id: str) -> DeliveryKey:
    return delivery_key(ENDPOINT, event_id)


IDS = [f"evt_{number}" for number in range(6)]
"""Ids of so many events that each of three shards has an event."""


async def fetch(store: AnyStore) -> set[str]:
    batch = await store.fetch(9, LEASE, endpoint=ENDPOINT, worker="w", token=new_token())
    return {taken.delivery.event_id for taken in batch.fetched}


async def use(store: AnyStore) -> None:
    for event_id in IDS:
        assert isinstance(await store.claim(key(event_id), new_token(), LEASE), Claimed | InFlight)


async def test_versions_share_a_store_in_the_old_format(place: Place, opened: Opened) -> None:
    old, later = opened(place.old()), opened(place.later())
    await old.open()
    await later.open()
    claim = await old.claim(key("done by the old"), new_token(), LEASE)
    assert isinstance(claim, Claimed)
    await later.complete(claim)
    assert await old.claim(claim.key, new_token(), LEASE) == Done()
    for event_id in IDS[:3]:
        assert await old.enqueue(delivery(event_id), new_token()) == Stored()
    for event_id in IDS[3:]:
        assert await later.enqueue(delivery(event_id), new_token()) == Stored()
        assert await old.enqueue(delivery(event_id), new_token()) == Waiting()
    found = await fetch(later)
    assert found | await fetch(old) == set(IDS)
    assert not any("format" in text for text in await old.warnings())
    [warning] = [text for text in await later.warnings() if "format" in text]
    assert "the store has format 1" in warning
    assert "raise it to 2: `hookonce store upgrade`" in warning


async def test_a_later_version_logs_that_it_writes_the_old_format(
    place: Place, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    await opened(place.old()).open()
    with caplog.at_level(logging.WARNING):
        later = opened(place.later())
        await later.open()
        await later.open()
    assert caplog.text.count("hookonce store upgrade") == 1


async def test_a_version_that_cannot_write_the_old_format_changes_nothing(
    place: Place, opened: Opened
) -> None:
    old = opened(place.old())
    await use(old)
    await old.aclose()
    before = place.content()
    following = opened(place.next())
    for call in (
        following.open,
        lambda: use(following),
        lambda: fetch(following),
        following.upgrade,
    ):
        with pytest.raises(FormatError, match=r"has format 1, and .* knows formats from 2 on"):
            await call()
    await following.aclose()
    assert place.content() == before
    await use(opened(place.old()))


async def test_an_upgrade_is_refused_while_an_old_process_was_seen_lately(
    place: Place, opened: Opened, pass_time: PassTime
) -> None:
    old, later = opened(place.old()), opened(place.later())
    await use(old)
    await later.open()
    pass_time(OLD_SECONDS - 5)
    with pytest.raises(StoreError, match=r"older version of hookonce used the store 35 s ago"):
        await later.upgrade()
    await use(old)
    assert await later.claim(key("still"), new_token(), LEASE)


async def test_a_running_attempt_of_an_old_process_counts_for_its_whole_lease(
    place: Place, opened: Opened, pass_time: PassTime
) -> None:
    old, later = opened(place.old()), opened(place.later())
    for event_id in IDS:
        assert await old.claim(key(event_id), new_token(), 300.0)
    pass_time(290.0)
    with pytest.raises(StoreError, match="290 s ago"):
        await later.upgrade()
    pass_time(20.0)
    assert await later.upgrade() == Upgrade(1, 2)


async def test_after_an_upgrade_old_processes_do_nothing_and_say_what_to_do(
    place: Place, opened: Opened, pass_time: PassTime
) -> None:
    old, later = opened(place.old()), opened(place.later())
    await old.open()
    for event_id in IDS:
        await old.enqueue(delivery(event_id), new_token())
    pass_time(OLD_SECONDS)
    assert await opened(place.later()).upgrade() == Upgrade(1, 2)
    assert await later.upgrade() == Upgrade(2, 2)
    assert not any("format" in text for text in await later.warnings())
    for call in (
        old.warnings,
        lambda: old.claim(key("evt_new"), new_token(), LEASE),
        lambda: old.enqueue(delivery("evt_new"), new_token()),
        lambda: fetch(old),
        lambda: opened(place.old()).open(),
    ):
        with pytest.raises(FormatError, match=r"has format 2, .*upgrade hookonce here"):
            await call()
    assert await later.known(ENDPOINT, ["evt_new"]) == {}
    assert await fetch(later) == set(IDS)


async def test_a_running_process_of_the_new_version_goes_on_over_an_upgrade(
    place: Place, opened: Opened, pass_time: PassTime
) -> None:
    await opened(place.old()).open()
    later = opened(place.later())
    claims = [await later.claim(key(event_id), new_token(), LEASE) for event_id in IDS]
    pass_time(OLD_SECONDS)
    async with aclosing(place.later()) as other:
        assert await other.upgrade() == Upgrade(1, 2)
    for claim in claims:
        assert isinstance(claim, Claimed)
        await later.complete(claim)
    assert await opened(place.next()).known(ENDPOINT, IDS) == dict.fromkeys(IDS, Known.DONE)


async def test_a_new_store_gets_the_newest_format(place: Place, opened: Opened) -> None:
    assert await opened(place.later()).upgrade() == Upgrade(2, 2)
    with pytest.raises(FormatError):
        await opened(place.old()).open()


async def test_the_receiver_answers_503_and_is_not_ready_once_the_format_is_unknown(
    place: Place, pass_time: PassTime
) -> None:
    async with receiver_on(place.old()) as receiver:
        receiver.on("comment.received", name="note")(lambda _: None)
        assert answer_of(await deliver(receiver, comment())) == (200, "handled")
        assert (await receiver.check()).ready
        pass_time(OLD_SECONDS)
        async with aclosing(place.later()) as later:
            await later.upgrade()
        assert answer_of(await deliver(receiver, comment())) == (503, "store_unavailable")
        check = await receiver.check()
        assert not check.ready
        assert any(
            "format 2, " in text and "upgrade hookonce here" in text for text in check.problems
        )


class Deployment:
    """A new store, on which two versions make calls in a given order."""

    def __init__(
        self,
        order: Sequence[str],
        folder: Path,
        server: RedisServer | PostgresServer | None,
        clock: Any,
    ) -> None:
        self.order = order
        self.accepted: set[str] = set()
        self._name = "-".join(order)
        self._path = folder / f"{self._name}.db"
        self._server = server
        self._clock = clock

    def opened(self, *, is_later: bool) -> AnyStore:
        if self._server is None:
            kind = LaterSQLite if is_later else SQLiteStore
            return kind(self._path, clock=self._clock)
        if isinstance(self._server, PostgresServer):
            kind_of_postgres = LaterPostgres if is_later else PostgresStore
            return kind_of_postgres(self._server.url, clock=self._clock)
        kind_of_redis = LaterRedis if is_later else RedisStore
        return kind_of_redis(self._server.url, prefix=self._name, clock=self._clock)

    @property
    def format(self) -> int:
        """The format number in the store."""
        if self._server is None:
            with closing(sqlite_connection(self._path)) as connection:
                return int(connection.pragma("user_version"))
        if isinstance(self._server, PostgresServer):
            [(number,)] = self._server.execute("SELECT number FROM hookonce.format")
            return int(number)
        with self._server.client() as client:
            return int(client.hget(f"{{{self._name}:0}}:m", "format"))

    async def enqueue_by_old(self, old: AnyStore, event_id: str) -> None:
        try:
            answer = await old.enqueue(delivery(event_id), new_token())
        except FormatError:
            assert self.format == 2, self.order
        else:
            assert (answer, self.format) == (Stored(), 1), self.order
            self.accepted.add(event_id)

    async def enqueue_by_later(self, later: AnyStore, event_id: str) -> None:
        assert await later.enqueue(delivery(event_id), new_token()) == Stored(), self.order
        self.accepted.add(event_id)

    async def upgrade(self) -> None:
        async with aclosing(self.opened(is_later=True)) as store:
            try:
                await store.upgrade()
            except StoreError:
                assert self.format == 1, self.order
            else:
                assert self.format == 2, self.order


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "valkey"])
@pytest.mark.parametrize("first", ["old", "later", "upgrade", "time"])
async def test_in_every_order_of_calls_the_later_version_sees_each_accepted_event(
    backend: str, first: str, request: pytest.FixtureRequest, clock: Any, pass_time: PassTime
) -> None:
    """A step is a call of a version, an upgrade, a pause, or in Valkey the loss of all data."""
    server: RedisServer | PostgresServer | None = None
    steps = ["old", "later", "upgrade", "time"]
    if backend == "valkey":
        server = request.getfixturevalue("valkey")
        steps.append("empty")
    if backend == "postgresql":
        server = request.getfixturevalue("shared_postgres")
    folder: Path = request.getfixturevalue("tmp_path")
    for rest in itertools.product(steps, repeat=3):
        if isinstance(server, PostgresServer):
            server.empty_store()
        deployment = Deployment((first, *rest), folder, server, clock)
        async with (
            aclosing(deployment.opened(is_later=False)) as old,
            aclosing(deployment.opened(is_later=True)) as later,
        ):
            for event_id, step in zip(IDS, deployment.order, strict=False):
                match step:
                    case "old":
                        await deployment.enqueue_by_old(old, event_id)
                    case "later":
                        await deployment.enqueue_by_later(later, event_id)
                    case "upgrade":
                        await deployment.upgrade()
                    case "time":
                        pass_time(OLD_SECONDS)
                    case _:
                        assert isinstance(server, RedisServer)
                        server.flush()
                        deployment.accepted.clear()
            assert set(await later.known(ENDPOINT, IDS)) == deployment.accepted, deployment.order


async def test_two_processes_with_different_numbers_of_shards_do_not_share_a_prefix(
    valkey: RedisServer, opened: Opened
) -> None:
    four, sixteen = (opened(RedisStore(valkey.url, shards=number)) for number in (4, 16))
    await four.open()
    before = valkey_keys(valkey)
    with pytest.raises(FormatError, match=r"has 4 shards, .* set to 16; set shards=4"):
        await sixteen.open()
    for event_id in IDS:
        with pytest.raises(FormatError, match="has 4 shards"):
            await sixteen.enqueue(delivery(event_id), new_token())
    assert valkey_keys(valkey) == before
    one = opened(RedisStore(valkey.url))
    with pytest.raises(FormatError, match="has 4 shards"):
        await one.claim(key("evt_1"), new_token(), LEASE)
    await use(four)


def valkey_keys(server: RedisServer) -> set[bytes]:
    with server.client() as client:
        return set(client.scan_iter("*"))


async def test_a_server_that_has_lost_its_data_gets_the_format_of_the_running_processes(
    valkey: RedisServer, opened: Opened
) -> None:
    old, later = opened(RedisStore(valkey.url, shards=3)), opened(LaterRedis(valkey.url, shards=3))
    await use(old)
    await use(later)
    valkey.flush()
    for event_id in IDS:
        assert await later.enqueue(delivery(event_id), new_token()) == Stored()
    assert await fetch(old) == set(IDS)


async def test_a_shard_whose_server_is_full_is_used_in_the_format_that_it_has(
    valkey: RedisServer, clock: Any, pass_time: PassTime
) -> None:
    async with aclosing(RedisStore(valkey.url, clock=clock)) as store:
        claim = await store.claim(key("evt_1"), new_token(), LEASE)
        assert isinstance(claim, Claimed)
        pass_time(15.0)  # so that the next call records this process again
        with valkey.client() as client:
            client.config_set("maxmemory", 1)
            try:
                await store.complete(claim)
            finally:
                client.config_set("maxmemory", 0)
        assert await store.claim(claim.key, new_token(), LEASE) == Done()


async def test_an_upgrade_of_some_shards_is_finished_by_the_next(
    valkey: RedisServer, clock: Any, pass_time: PassTime, opened: Opened
) -> None:
    old = opened(RedisStore(valkey.url, shards=3, clock=clock))
    await old.open()
    pass_time(OLD_SECONDS - 1)
    with valkey.client() as client:  # an old process has called only the last shard
        client.hset("{hookonce:2}:m", "seen:1", repr(clock()))
    later = opened(LaterRedis(valkey.url, shards=3, clock=clock))
    pass_time(1.0)
    with pytest.raises(StoreError, match="1 s ago"):
        await later.upgrade()
    for event_id in IDS:
        assert await later.enqueue(delivery(event_id), new_token()) == Stored()
    assert await fetch(later) == set(IDS)
    assert any("has format 1" in text for text in await later.warnings())
    pass_time(OLD_SECONDS)
    assert await later.upgrade() == Upgrade(1, 2)
    with pytest.raises(FormatError):
        await old.open()
