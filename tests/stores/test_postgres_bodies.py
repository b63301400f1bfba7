"""The partitions of bodies: handled events free their disk space, and no waiting event loses its
body, whatever else happens at the same time."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

import psycopg
import pytest
from support.postgres import PostgresServer
from support.waiting import until

from hookonce.errors import StoreError
from hookonce.stores.formats import DamagedError
from hookonce.stores.postgres import PostgresStore, bodies, upkeep
from hookonce.stores.postgres.bodies import BodyRotation
from hookonce.stores.postgres.connection import exchange
from hookonce.stores.postgres.schema import BODY_PARTS, schema_sql
from hookonce.stores.values import DeadReason, Delivery, Done, Fetched, Stored, new_token

pytestmark = pytest.mark.anyio

LEASE = 600.0
FULL_BYTES = 50_000
TURNS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"


@pytest.fixture(autouse=True)
def _without_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent rotations in the background, so that only the tests rotate."""
    monkeypatch.setattr(upkeep, "_FIRST_SECONDS", 3_600.0)


def delivery(number: int, size: int = 1_500) -> Delivery:
    body = f"{number}:".encode() + os.urandom(size)  # PostgreSQL cannot compress it
    return Delivery("default", f"evt_{number}", "post.target.failed", 1_700_000_000.0, body)


def rotation(store: PostgresStore) -> BodyRotation:
    return BodyRotation(store._session, "hookonce", full_bytes=FULL_BYTES)


async def put(store: PostgresStore, *deliveries: Delivery) -> None:
    answers = await asyncio.gather(*(store.enqueue(one, new_token()) for one in deliveries))
    assert set(answers) == {Stored()}


async def fetch(store: PostgresStore, limit: int = 1_000) -> list[Fetched]:
    batch = await store.fetch(limit, LEASE, endpoint="default", worker="w", token=new_token())
    return list(batch.fetched)


async def handle(store: PostgresStore, limit: int = 1_000) -> list[Delivery]:
    fetched = await fetch(store, limit)
    await asyncio.gather(*(store.complete(one.claim) for one in fetched))
    return [one.delivery for one in fetched]


def disk_bytes(server: PostgresServer) -> int:
    tables = ", ".join(f"('hookonce.bodies_{part}')" for part in range(BODY_PARTS))
    [(size,)] = server.execute(
        f"SELECT sum(pg_table_size(name::regclass))::int8 FROM (VALUES {tables}) AS t (name)"
    )
    return int(size)


def parts_with_bodies(server: PostgresServer) -> list[int]:
    return [
        part
        for part in range(BODY_PARTS)
        if server.execute(f"SELECT EXISTS (SELECT FROM hookonce.bodies_{part})") == [(True,)]
    ]


def current_part(server: PostgresServer) -> int:
    [(part,)] = server.execute("SELECT part FROM hookonce.body_part")
    return int(part)


async def test_disk_use_stops_growing(postgres: PostgresServer) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        largest = []
        for round_ in range(24):
            await put(store, *(delivery(100 * round_ + number) for number in range(100)))
            assert len(await handle(store)) == 100
            await rotation(store).turn()
            largest.append(disk_bytes(postgres))
        assert max(largest[12:]) <= max(largest[:12])
        assert max(largest) < 4 * 100 * 2_048
        for _ in range(2):
            await rotation(store).turn()
        assert parts_with_bodies(postgres) in ([], [current_part(postgres)])


async def test_an_old_partition_is_left_even_if_it_is_small(postgres: PostgresServer) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, delivery(1))
        await rotation(store).turn()
        assert current_part(postgres) == 0
        postgres.execute("UPDATE hookonce.body_part SET since = since - 7200")
        await rotation(store).turn()
        assert current_part(postgres) == 1
        await handle(store)
        await rotation(store).turn()
        assert parts_with_bodies(postgres) == []
        assert current_part(postgres) == 1  # a rotation keeps an empty part as the current part


async def test_the_bodies_of_few_waiting_events_are_moved(postgres: PostgresServer) -> None:
    given = [delivery(number) for number in range(60)]
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, *given)
        await rotation(store).turn()
        assert len(await handle(store, 58)) == 58
        await rotation(store).turn()
        assert parts_with_bodies(postgres) == [1]
        assert await handle(store) == given[58:]


async def test_the_bodies_of_many_waiting_events_are_not_moved(postgres: PostgresServer) -> None:
    given = [delivery(number) for number in range(60)]
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, *given)
        for _ in range(3):
            await rotation(store).turn()
        assert parts_with_bodies(postgres) == [0]
        assert await handle(store) == given


async def test_without_an_empty_partition_half_full_ones_are_emptied(
    postgres: PostgresServer,
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        given = [delivery(number) for number in range(60 * BODY_PARTS)]
        for first in range(0, len(given), 60):
            await put(store, *given[first : first + 60])
            await rotation(store).turn()
        assert parts_with_bodies(postgres) == list(range(BODY_PARTS))
        assert current_part(postgres) == BODY_PARTS - 1
        fetched = {one.delivery.event_id: one for one in await fetch(store)}
        for first in range(0, len(given), 60):
            third = given[first : first + 20]
            done = [one for one in given[first : first + 60] if one not in third]
            await asyncio.gather(*(store.complete(fetched[one.event_id].claim) for one in done))
        before = disk_bytes(postgres)
        await rotation(store).turn()
        assert disk_bytes(postgres) < 0.6 * before
        left = [one for one in given if await store.entry(one.key)]
        assert len(left) == 20 * BODY_PARTS
        for one in left:
            entry = await store.entry(one.key)
            assert entry is not None
            assert entry.delivery.body == one.body


@pytest.mark.parametrize("has_body", [False, True])
async def test_a_transaction_from_before_the_switch_loses_no_body(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, *, has_body: bool
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, *(delivery(number) for number in range(60)))
        await handle(store)
        late = delivery(99)
        with psycopg.connect(postgres.url) as connection:
            row = connection.execute(
                "INSERT INTO hookonce.entries (key, endpoint, event_id, event_type, received_at,"
                " size, part, enqueue_token, due, delay) SELECT %s, 'default', 'evt_99', 'a', 0,"
                " %s, part, 'token', 0, 0 FROM hookonce.body_part RETURNING part, id",
                (b"1" * 16, len(late.body)),
            ).fetchone()
            assert row is not None
            body = ("INSERT INTO hookonce.bodies VALUES (%s, %s, %s)", (*row, late.body))

            async def commit_before_truncate(lent: Any, statements: Any) -> Any:
                if any(b"TRUNCATE" in sql for sql, _ in statements):
                    connection.commit()
                return await exchange(lent, statements)

            if has_body:
                connection.execute(*body)
                monkeypatch.setattr(bodies, "exchange", commit_before_truncate)
            for _ in range(3):
                await rotation(store).turn()
            assert current_part(postgres) != row[0]
            assert parts_with_bodies(postgres) == ([0] if has_body else [])
            monkeypatch.setattr(bodies, "exchange", exchange)
            if not has_body:
                connection.execute(*body)
        await rotation(store).turn()
        # This process would find the late event at its next full search; another process finds it
        # at once.
        async with aclosing(PostgresStore(postgres.url)) as other:
            assert [one.delivery.body for one in await fetch(other)] == [late.body]


async def test_a_long_reader_delays_the_truncation_but_no_other_call(
    postgres: PostgresServer,
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, *(delivery(number) for number in range(60)))
        await rotation(store).turn()
        await handle(store)
        with psycopg.connect(postgres.url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT count(*) FROM hookonce.bodies")
            for number in range(100, 110):
                _, _, handled = await asyncio.gather(
                    rotation(store).turn(), put(store, delivery(number)), handle(store)
                )
                assert len(handled) <= 2
            assert 0 in parts_with_bodies(postgres)
        await handle(store)
        await rotation(store).turn()
        assert 0 not in parts_with_bodies(postgres)


@pytest.mark.full("2 s")
async def test_every_body_survives_rotations_of_two_processes_under_load(
    postgres: PostgresServer,
) -> None:
    given = {one.event_id: one for one in (delivery(number) for number in range(1_500))}
    handled: dict[str, bytes] = {}
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(aclosing(PostgresStore(postgres.url))) for _ in range(3)
        ]
        intake, work, other = stores
        is_over = asyncio.Event()

        async def take_in() -> None:
            values = list(given.values())
            for first in range(0, len(values), 25):
                await put(intake, *values[first : first + 25])

        async def do_work() -> None:
            while len(handled) < len(given):
                for one in await fetch(work, 30):
                    number = int(one.delivery.event_id.removeprefix("evt_"))
                    if number % 7 == 0 and one.claim.attempt == 1:  # waits for attempt 2
                        await work.retry(one.claim, 0.0)
                        continue
                    handled[one.delivery.event_id] = one.delivery.body
                    await work.complete(one.claim)
            is_over.set()

        async def rotate(store: PostgresStore) -> None:
            while not is_over.is_set():
                await rotation(store).turn()

        async with asyncio.timeout(100), asyncio.TaskGroup() as group:
            for task in (take_in(), do_work(), rotate(work), rotate(other)):
                group.create_task(task)
        assert handled == {name: one.body for name, one in given.items()}
        for _ in range(3):
            await rotation(work).turn()
        assert disk_bytes(postgres) < 20 * FULL_BYTES


async def test_a_fetch_returns_what_it_claims_of_entries_whose_bodies_were_moved_meanwhile(
    postgres: PostgresServer,
) -> None:
    given = [delivery(number) for number in range(3)]
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, *given)
        # The fetch waits between its snapshot and its locks.
        postgres.execute(
            "CREATE FUNCTION hookonce.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF current_query() LIKE '%SKIP LOCKED%taken%' THEN"
            " PERFORM pg_advisory_xact_lock_shared(1); END IF; RETURN NULL; END $$"
        )
        postgres.execute(
            "CREATE TRIGGER wait BEFORE UPDATE ON hookonce.entries"
            " FOR EACH STATEMENT EXECUTE FUNCTION hookonce.wait()"
        )
        rotating = BodyRotation(store._session, "hookonce", full_bytes=1)
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(1)")
            fetching = asyncio.create_task(fetch(store))
            await until(lambda: postgres.execute(f"{TURNS} AND NOT granted") == [(1,)])
            await rotating._step(rotating._switch)
            await rotating._move(0)
        assert [one.delivery for one in await fetching] == given


async def test_an_event_without_a_body_is_set_aside_until_it_is_delivered_again(
    postgres: PostgresServer,
) -> None:
    """A restored backup may have lost a body; the event must not hold up the inbox."""
    lost, other = delivery(1), delivery(2)
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, lost)
        postgres.execute("TRUNCATE hookonce.bodies_0")
        await put(store, other)
        assert await fetch(store, 1) == []
        assert [one.delivery for one in await fetch(store, 1)] == [other]
        with pytest.raises(DamagedError):
            await store.enqueue(lost, new_token())
        letter = await store.dead_letter(lost.key)
        assert letter is not None
        assert (letter.reason, letter.delivery.body) == (DeadReason.DAMAGED, lost.body)


class DeadError(BaseException):
    """The process has died."""


class Crash:
    """Ends a process before or after its n-th exchange with the server."""

    def __init__(self, exchange: Callable[..., Awaitable[Any]], at: int, *, before: bool) -> None:
        self._exchange = exchange
        self._left = at
        self._before = before

    async def __call__(self, *arguments: Any) -> Any:
        self._left -= 1
        if self._left == 0 and self._before:
            raise DeadError
        results = await self._exchange(*arguments)
        if self._left == 0:
            raise DeadError
        return results


async def test_a_crash_at_any_step_loses_nothing(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [delivery(number) for number in range(61)]
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, *given[:60])
        await rotation(store).turn()
        await handle(store, 58)
        await put(store, given[60])
        for crashes in itertools.count():
            at, after = divmod(crashes, 2)
            crash = Crash(exchange, at + 1, before=not after)
            monkeypatch.setattr(bodies, "exchange", crash)
            try:
                await rotation(store).turn()
            except DeadError:
                # The server notices some time later that the connection is closed.
                await until(lambda: postgres.execute(TURNS) == [(0,)])
                continue
            break
        assert crashes > 10
        assert parts_with_bodies(postgres) == [1]
        assert await handle(store) == given[58:]


async def test_a_role_that_may_not_truncate_is_warned_of(postgres: PostgresServer) -> None:
    postgres.execute("DROP ROLE IF EXISTS receiver")
    postgres.execute(schema_sql())
    postgres.execute("CREATE ROLE receiver LOGIN")
    postgres.execute("GRANT USAGE ON SCHEMA hookonce TO receiver")
    postgres.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA hookonce TO receiver"
    )
    url = postgres.url.replace("postgres@", "receiver@")
    async with aclosing(PostgresStore(url)) as store:
        assert any("GRANT TRUNCATE" in text for text in await store.warnings())
        await put(store, *(delivery(number) for number in range(60)))
        await rotation(store).turn()
        assert len(await handle(store)) == 60
        with pytest.raises(StoreError, match="GRANT TRUNCATE"):
            await rotation(store).turn()
        postgres.execute("GRANT TRUNCATE ON ALL TABLES IN SCHEMA hookonce TO receiver")
        assert not any("GRANT TRUNCATE" in text for text in await store.warnings())
        await rotation(store).turn()
        assert parts_with_bodies(postgres) == []
    postgres.execute("DROP SCHEMA hookonce CASCADE")
    postgres.execute("DROP ROLE receiver")


async def test_a_store_in_use_prunes_itself_once_an_hour(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_FIRST_SECONDS", 0.0)
    async with aclosing(PostgresStore(postgres.url, retention=1)) as store:
        await put(store, delivery(1))
        await handle(store)
        postgres.execute("UPDATE hookonce.ids SET expires = 0")
        postgres.execute("UPDATE hookonce.pruned SET at = at - 4000")
    async with aclosing(PostgresStore(postgres.url, retention=1)) as store:
        await store.open()
        await until(lambda: postgres.execute("SELECT count(*) FROM hookonce.ids") == [(0,)])


async def test_an_event_that_comes_again_while_it_is_pruned_is_not_forgotten(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning sees the event as expired in its snapshot, then waits until the event comes again."""
    paused = "(SELECT pg_advisory_xact_lock_shared(42) IS NOT NULL)"
    condition = upkeep._IS_EXPIRED["ids"]
    monkeypatch.setitem(upkeep._IS_EXPIRED, "ids", f"{paused} AND {condition}")
    event = delivery(1)
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, event)
        await handle(store)
        assert await store.enqueue(event, new_token()) == Done()
        postgres.execute("UPDATE hookonce.ids SET expires = 0")
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(42)")
            pruning = asyncio.create_task(store.prune())
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            await until(lambda: postgres.execute(waits) == [(1,)])
            await put(store, event)
            connection.execute("SELECT pg_advisory_unlock(42)")
            assert await pruning == 0
        assert postgres.execute("SELECT count(*) FROM hookonce.ids") == [(1,)]
        assert await handle(store) == [event]
        assert await store.enqueue(event, new_token()) == Done()
