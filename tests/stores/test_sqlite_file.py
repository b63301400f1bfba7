"""The SQLite store's file: its format, the data that lasts, and the files that a store refuses."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.sqlite_files import sqlite_connection
from support.sqlite_writer import between_batches

from hookonce.clock import Clock
from hookonce.errors import StoreError
from hookonce.stores.formats import OLD_SECONDS, Upgrade
from hookonce.stores.protocols import DEFAULT_RETENTION
from hookonce.stores.sqlite import SQLiteStore, schema
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
    Ownership,
    Token,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
RETENTION = DEFAULT_RETENTION.total_seconds()
ROWS = 7_000  # pruning deletes 2,000 rows in one step: three full steps and a last one

PassTime = Callable[[float], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hooks.db"


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path, clock=clock)
    yield store
    await store.aclose()


async def claim(store: SQLiteStore, key: DeliveryKey) -> Claimed:
    """Claim an event that must be free."""
    result = await store.claim(key, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def look(store: SQLiteStore, key: DeliveryKey) -> type[object]:
    return type(await store.claim(key, new_token(), LEASE))


def digest(event_id: str) -> str:
    key = delivery_key("default", event_id)
    return f"x'{blake2b(key.encode(), digest_size=16).hexdigest()}'"


# A migration to the format of a later version.
ADD_COLUMN = "ALTER TABLE done ADD COLUMN how TEXT NOT NULL DEFAULT 'well'"


class LaterStore(SQLiteStore):
    """A store of a later version, which knows one more format."""

    formats = (1, 2)


@contextmanager
def migration(step: str) -> Iterator[None]:
    """Use this statement to migrate to the later version's format."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "_MIGRATIONS", (*schema._MIGRATIONS, step))
        yield


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite_connection(path)) as connection:
        return list(connection.execute(query))


class TestDurability:
    async def test_everything_survives_reopening_the_file(self, path: Path, clock: Clock) -> None:
        done, held, given_back, dead = (
            delivery_key("default", name) for name in ("done", "held", "given back", "dead")
        )
        delivery = Delivery("default", "dead", "comment.received", 1.5, bytes(range(256)))
        async with aclosing(SQLiteStore(path, clock=clock)) as store:
            await store.complete(await claim(store, done))
            owned = await claim(store, held)
            await store.release(await claim(store, given_back), frozenset({"a"}), "b failed")
            await store.bury(await claim(store, dead), DeadReason.REJECTED, delivery=delivery)
        async with aclosing(SQLiteStore(path, clock=clock)) as store:
            assert await look(store, done) is Done
            assert await look(store, held) is InFlight
            assert await store.extend(owned) is Ownership.HELD
            again = await claim(store, given_back)
            assert (again.attempt, again.finished) == (2, frozenset({"a"}))
            assert await look(store, dead) is Dead
            letter = await store.dead_letter(dead)
            assert letter is not None
            assert letter.delivery == delivery

    async def test_commits_are_synced_and_the_log_is_written_ahead(
        self, store: SQLiteStore, connections: list[apsw.Connection]
    ) -> None:
        await store.open()
        [connection] = connections
        with between_batches(store):
            assert connection.pragma("journal_mode") == "wal"
            assert connection.pragma("synchronous") == 2  # FULL
            assert connection.pragma("fullfsync") == 1
            assert connection.pragma("checkpoint_fullfsync") == 1

    async def test_closing_leaves_one_file(self, path: Path, store: SQLiteStore) -> None:
        await store.complete(await claim(store, delivery_key("default", "evt_1")))
        await store.aclose()
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    async def test_a_path_may_be_text(self, path: Path) -> None:
        async with aclosing(SQLiteStore(str(path))) as store:
            await store.open()
        assert rows(path, "SELECT count(*) FROM done") == [(0,)]


class TestSharedOpening:
    @pytest.mark.parametrize("moment", range(12))
    async def test_the_file_may_be_created_elsewhere_at_any_moment_of_opening_it(
        self, path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, moment: int
    ) -> None:
        monkeypatch.setattr("hookonce.stores.sqlite.writer.BUSY_MILLISECONDS", 100)
        statements = itertools.count()
        other = SQLiteStore(path)

        def create_it_elsewhere(*_: object) -> bool:
            if next(statements) == moment:
                with suppress(StoreError):  # the file may be locked
                    asyncio.run(other.open())
            return True

        def watch_the_first(connection: apsw.Connection) -> None:
            apsw.connection_hooks.remove(watch_the_first)
            connection.set_exec_trace(create_it_elsewhere)

        apsw.connection_hooks.append(watch_the_first)
        async with aclosing(other):
            await store.open()
            await claim(store, delivery_key("default", "evt_1"))
            await claim(other, delivery_key("default", "evt_2"))
        assert next(statements) > moment, "opening takes fewer statements: lower the range"


class TestSchema:
    async def test_a_new_file_has_format_1_and_strict_tables(
        self, path: Path, store: SQLiteStore
    ) -> None:
        await store.open()
        assert rows(path, "PRAGMA user_version") == [(1,)]
        assert rows(path, "PRAGMA application_id") == [(0x6F6E6365,)]
        tables = {
            name: (wr, strict)
            for _, name, _, _, wr, strict in rows(path, "PRAGMA table_list")
            if not name.startswith("sqlite_")
        }
        assert tables == {
            "activity": (0, 1),
            "handled": (0, 1),
            "handled_sizes": (1, 1),
            "replay_batches": (1, 1),
            "done": (1, 1),
            "watched": (1, 1),
            "worker_reports": (1, 1),
            "attempts": (1, 1),
            "dead": (0, 1),
            "entries": (0, 1),
            "inbox_bodies": (0, 1),
            "inbox_sizes": (1, 1),
            "workers": (1, 1),
            "applications": (1, 1),
            "key_locks": (1, 1),
            "waiting": (0, 1),
            "ignored": (1, 1),
            "accepted": (1, 1),
            "seen": (0, 1),
        }

    async def test_an_upgraded_file_keeps_all_that_it_held(
        self, path: Path, clock: Clock, pass_time: PassTime
    ) -> None:
        done, live, dead = (delivery_key("default", name) for name in ("done", "live", "dead"))
        letter = Delivery("default", "dead", None, 1.0, b"a letter")
        waiting = Delivery("default", "waits", None, 1.0, b"a body")
        async with aclosing(SQLiteStore(path, clock=clock)) as store:
            await store.complete(await claim(store, done))
            owned = await claim(store, live)
            await store.bury(await claim(store, dead), DeadReason.REJECTED, delivery=letter)
            await store.enqueue(waiting, Token("enqueue"))
        pass_time(OLD_SECONDS)
        with migration(ADD_COLUMN):
            async with aclosing(LaterStore(path, clock=clock)) as store:
                assert await store.upgrade() == Upgrade(1, 2)
                assert await look(store, done) is Done
                assert await store.extend(owned) is Ownership.HELD
                assert await look(store, dead) is Dead
                batch = await store.fetch(
                    9, LEASE, endpoint="default", worker="w", token=Token("t")
                )
                assert [taken.delivery for taken in batch.fetched] == [waiting]
        assert rows(path, "PRAGMA user_version") == [(2,)]
        assert rows(path, "SELECT count(*), how FROM done") == [(1, "well")]

    async def test_a_file_is_migrated_as_a_whole_or_not_at_all(
        self, path: Path, store: SQLiteStore, clock: Clock, pass_time: PassTime
    ) -> None:
        await store.complete(await claim(store, delivery_key("default", "evt_1")))
        await store.aclose()
        pass_time(OLD_SECONDS)
        async with aclosing(LaterStore(path, clock=clock)) as later:
            with (
                migration("DELETE FROM done; INSERT INTO nowhere VALUES (1)"),
                pytest.raises(StoreError, match="no such table: nowhere"),
            ):
                await later.upgrade()
            assert await look(later, delivery_key("default", "evt_1")) is Done
        assert rows(path, "PRAGMA user_version") == [(1,)]
        assert rows(path, "SELECT count(*) FROM done") == [(1,)]

    async def test_a_new_file_takes_every_step(self, path: Path, clock: Clock) -> None:
        with migration(ADD_COLUMN):
            async with aclosing(LaterStore(path, clock=clock)) as store:
                await store.open()
        assert rows(path, "PRAGMA user_version") == [(2,)]
        assert rows(path, "SELECT how FROM done") == []

    async def test_a_done_event_costs_a_few_dozen_bytes(
        self, path: Path, store: SQLiteStore
    ) -> None:
        names = [f"an event id that is quite long {n}" for n in range(ROWS)]
        claims = await asyncio.gather(*(claim(store, delivery_key("d", name)) for name in names))
        await asyncio.gather(*(store.complete(owned) for owned in claims))
        [(size,)] = rows(path, "SELECT sum(pgsize) FROM dbstat WHERE name = 'done'")
        assert size / ROWS < 50


def make_store_file(path: Path) -> None:
    async def use() -> None:
        async with aclosing(SQLiteStore(path)) as store:
            await store.complete(await claim(store, delivery_key("default", "evt_1")))

    asyncio.run(use())


def refusal(path: Path) -> str:
    """Return the error of a store that can be neither opened nor used."""

    async def use() -> str:
        async with aclosing(SQLiteStore(path)) as store:
            with pytest.raises(StoreError) as caught:
                await store.open()
            with pytest.raises(StoreError) as again:
                await store.claim(delivery_key("default", "evt_1"), new_token(), LEASE)
        assert str(again.value) == str(caught.value)
        return str(caught.value)

    return asyncio.run(use())


class TestRefusedFiles:
    """The store refuses a file that is not our store, names the file, and does not change it."""

    def test_a_folder_that_does_not_exist(self, tmp_path: Path) -> None:
        assert "does its folder exist" in refusal(tmp_path / "missing" / "hooks.db")
        assert list(tmp_path.iterdir()) == []

    def test_a_folder(self, tmp_path: Path) -> None:
        assert "cannot be opened" in refusal(tmp_path)

    def test_a_path_through_a_file(self, path: Path) -> None:
        path.write_text("a file")
        assert "cannot be opened" in refusal(path / "hooks.db")

    @pytest.mark.parametrize("content", [b"a text file, " * 100, bytes(8192), b"SQLite format 4"])
    def test_a_file_that_is_no_database(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        assert "not an SQLite database" in refusal(path)
        assert path.read_bytes() == content

    @pytest.mark.parametrize(
        "setup",
        [
            pytest.param("CREATE TABLE notes (text)", id="tables"),
            pytest.param("PRAGMA application_id = 4711", id="an application id"),
            pytest.param("PRAGMA user_version = 1", id="a version without our id"),
        ],
    )
    def test_another_programs_database(self, path: Path, setup: str) -> None:
        with closing(sqlite_connection(path)) as connection:
            connection.execute(setup)
        before = path.read_bytes()
        assert "belongs to another program" in refusal(path)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("owner", [0x686F6F6B, 0x686B6F6E])
    @pytest.mark.parametrize("version", [0, 1, 2, 3])
    def test_a_file_of_an_unreleased_version(self, path: Path, owner: int, version: int) -> None:
        with closing(sqlite_connection(path)) as connection:
            connection.execute("CREATE TABLE gates (key BLOB PRIMARY KEY)")
            connection.execute(f"PRAGMA application_id = {owner}")
            connection.execute(f"PRAGMA user_version = {version}")
        before = path.read_bytes()
        message = refusal(path)
        assert "written by an unreleased version" in message
        assert "choose another path" in message
        assert path.read_bytes() == before

    def test_a_later_versions_file(self, path: Path) -> None:
        make_store_file(path)
        with closing(sqlite_connection(path)) as connection:
            connection.execute("PRAGMA user_version = 99")
        before = path.read_bytes()
        message = refusal(path)
        assert "the store has format 99" in message
        assert "upgrade hookonce here" in message
        assert path.read_bytes() == before

    def test_a_damaged_file(self, path: Path) -> None:
        make_store_file(path)
        content = bytearray(path.read_bytes())
        content[100:200] = b"\xa5" * 100
        path.write_bytes(content)
        assert "damaged" in refusal(path)

    async def test_what_was_refused_works_once_it_is_put_right(self, tmp_path: Path) -> None:
        folder = tmp_path / "late"
        async with aclosing(SQLiteStore(folder / "hooks.db")) as store:
            with pytest.raises(StoreError):
                await store.open()
            await asyncio.to_thread(folder.mkdir)
            await claim(store, delivery_key("default", "evt_1"))


@pytest.mark.sample(2, of="file")
class TestPruning:
    """Pruning deletes expired keys in small steps; here every second key expires."""

    @pytest.fixture
    async def grown(
        self, store: SQLiteStore, pass_time: PassTime
    ) -> tuple[list[DeliveryKey], list[DeliveryKey]]:
        """Fill the store, wait until half of it expires; return the expired and the other keys."""
        keys = [delivery_key("default", f"evt_{n}") for n in range(2 * ROWS)]
        old, new = keys[::2], keys[1::2]
        for half in (old, new):
            claims = await asyncio.gather(*(claim(store, key) for key in half))
            await asyncio.gather(*(store.complete(owned) for owned in claims[: ROWS // 2]))
            await asyncio.gather(
                *(store.release(owned, frozenset({"a"})) for owned in claims[ROWS // 2 :])
            )
            pass_time(RETENTION / 2)
        return old, new

    async def expect_only(
        self, store: SQLiteStore, old: list[DeliveryKey], new: list[DeliveryKey]
    ) -> None:
        half = ROWS // 2
        assert {await look(store, key) for key in new[:half]} == {Done}
        results = await asyncio.gather(*(claim(store, key) for key in new[half:]))
        assert {(r.attempt, r.finished) for r in results} == {(2, frozenset({"a"}))}
        results = await asyncio.gather(*(claim(store, key) for key in old))
        assert {(r.attempt, r.finished) for r in results} == {(1, frozenset[str]())}

    async def test_pruning_forgets_a_key_lock_whose_process_has_gone_and_its_waiting_events(
        self, path: Path, store: SQLiteStore, pass_time: PassTime
    ) -> None:
        key_lock, waits = (
            KeyLock("default", "shop.sync", "chan_1"),
            delivery_key("default", "evt_1"),
        )
        await store.acquire_key_lock(key_lock, Token("gone"), LEASE)
        await store.acquire_key_lock(key_lock, Token("t"), LEASE, waiting=waits)
        await store.prune()
        assert await store.acquire_key_lock(key_lock, Token("t"), LEASE) != Acquired()
        pass_time(LEASE)
        assert await store.prune() == 1
        assert rows(path, "SELECT 1 FROM key_locks UNION ALL SELECT 1 FROM waiting") == []

    @pytest.mark.full("2 s")
    async def test_prune_reaches_all_that_is_over_and_nothing_else(
        self, store: SQLiteStore, path: Path, grown: tuple[list[DeliveryKey], list[DeliveryKey]]
    ) -> None:
        assert await store.prune() == ROWS
        assert rows(path, "SELECT count(*) FROM done") == [(ROWS // 2,)]
        assert rows(path, "SELECT count(*) FROM attempts") == [(ROWS // 2,)]
        assert await store.prune() == 0
        await self.expect_only(store, *grown)

    async def test_no_step_of_pruning_holds_the_file_for_long(
        self,
        store: SQLiteStore,
        connections: list[apsw.Connection],
        grown: tuple[list[DeliveryKey], list[DeliveryKey]],
    ) -> None:
        [connection] = connections
        # This call records that the process runs. After that, only pruning changes the file.
        await store.stats()
        changed: list[int] = []

        def note_the_changes() -> bool:
            changed.append(connection.total_changes())
            return False

        with between_batches(store):
            changed.append(connection.total_changes())
            connection.set_commit_hook(note_the_changes)
        await store.prune()
        steps = [after - before for before, after in itertools.pairwise(changed)]
        assert sum(steps) == len(grown[0])
        assert max(steps) <= 2_000

    @pytest.mark.full("2 s")
    async def test_upkeep_forgets_expired_records(
        self,
        store: SQLiteStore,
        path: Path,
        grown: tuple[list[DeliveryKey], list[DeliveryKey]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        await store.aclose()
        monkeypatch.setattr("hookonce.stores.sqlite.writer._FIRST_MAINTENANCE_SECONDS", 0.0)
        monkeypatch.setattr("hookonce.stores.sqlite.upkeep._PAUSE_SECONDS", 0.0)
        await store.open()
        left = "SELECT (SELECT count(*) FROM done) + (SELECT count(*) FROM attempts)"
        async with asyncio.timeout(20):
            while rows(path, left) != [(ROWS,)]:  # noqa: ASYNC110 - a file sends no notification
                await asyncio.sleep(0.01)
        await self.expect_only(store, *grown)


class TestUptime:
    async def test_an_event_enqueued_before_a_reboot_is_fetched_after_it(self, path: Path) -> None:
        now = 1_000_000.0

        async def take(store: SQLiteStore) -> int:
            batch = await store.fetch(10, LEASE, endpoint="default", worker="w", token=new_token())
            return len(batch.fetched)

        async with aclosing(SQLiteStore(path, clock=lambda: now)) as store:
            await store.enqueue(Delivery("default", "evt_1", None, 1.0, b"body"), new_token())
        now = 100.0
        async with aclosing(SQLiteStore(path, clock=lambda: now)) as store:
            with closing(sqlite_connection(path)) as connection:
                connection.execute("BEGIN IMMEDIATE")  # the first attempt to read fails
                with pytest.raises(StoreError):
                    await take(store)
            assert await take(store) == 1

    async def test_a_delivery_kept_before_a_reboot_is_a_dead_letter_after_it(
        self, path: Path
    ) -> None:
        now = 1_000_000.0
        keys = [delivery_key("default", name) for name in ("evt_1", "evt_2")]
        async with aclosing(SQLiteStore(path, clock=lambda: now)) as store:
            for key in keys:
                owned = await claim(store, key)
                delivery = Delivery("default", key.partition(":")[2], None, 1.0, b"body")
                await store.keep(owned, delivery)
            assert await store.dead_letters() == []
        now = 100.0
        async with aclosing(SQLiteStore(path, clock=lambda: now)) as store:
            assert len(await store.dead_letters()) == (await store.stats()).dead == 2
            assert await store.discard(keys[0])
            await store.replay(keys[1], new_token(), LEASE)
            now += LEASE
            assert isinstance(await store.replay(keys[1], new_token(), LEASE), Claimed)

    async def test_a_row_whose_event_is_settled_already_is_not_fetched(
        self, path: Path, store: SQLiteStore
    ) -> None:
        for event_id in ("evt_done", "evt_dead"):
            await store.enqueue(Delivery("default", event_id, None, 1.0, b"body"), new_token())
        with closing(sqlite_connection(path)) as connection:
            connection.execute(
                f"INSERT INTO done VALUES ({digest('evt_done')}, 4000000000, NULL);"
                "INSERT INTO dead VALUES"
                f" (9, {digest('evt_dead')}, 'default', 'evt_dead', NULL, 1.0, 'rejected', '',"
                " 2.0, 0, 1, '', '', '', CAST('body' AS BLOB), NULL)"
            ).fetchall()
        batch = await store.fetch(10, LEASE, endpoint="default", worker="w", token=new_token())
        assert batch.fetched == ()
        assert (await store.stats()).depth == 0
