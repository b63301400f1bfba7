"""Several processes on one SQLite file: each event is won once; a crash loses no answered call."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.sqlite_processes import PATIENCE_SECONDS, child, is_sound

from hookonce.clock import uptime
from hookonce.stores.protocols import Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    Dead,
    Delivery,
    Done,
    InFlight,
    Token,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 600.0

in_a_process = pytest.mark.sample(2, of="file")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hooks.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path)
    yield store
    await store.aclose()


@contextmanager
def readable_folder() -> Iterator[Path]:
    """Return a folder that every user can read; only the owner can read pytest's folders."""
    with TemporaryDirectory(prefix="hookonce-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


async def look(store: Store, event_id: str) -> type[object]:
    return type(await store.claim(delivery_key("default", event_id), new_token(), LEASE))


async def all_are(store: Store, result: type[object], event_ids: list[str]) -> bool:
    return set(await asyncio.gather(*(look(store, name) for name in event_ids))) == {result}


@in_a_process
async def test_three_processes_that_race_for_300_events_win_each_once(path: Path) -> None:
    won: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        racers = [await stack.enter_async_context(child("race", path)) for _ in range(3)]
        for racer in racers:
            assert await racer.line() == "ready"
        for tens in range(30):
            for racer in racers:
                racer.tell(str(tens))
            for racer in racers:
                won.update((await racer.line()).replace("none", "").split())
    assert won == {delivery_key("default", f"evt_{n}"): 1 for n in range(300)}
    assert is_sound(path)


async def test_several_stores_of_one_process_on_one_file_win_each_event_once(path: Path) -> None:
    keys = [delivery_key("default", f"evt_{n}") for n in range(100)]
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(aclosing(SQLiteStore(path))) for _ in range(4)]
        results = await asyncio.gather(
            *(store.claim(key, new_token(), LEASE) for key in keys for store in stores)
        )
    winners = Counter(result.key for result in results if isinstance(result, Claimed))
    assert winners == dict.fromkeys(keys, 1)
    assert is_sound(path)


@in_a_process
async def test_processes_may_create_the_file_at_the_same_moment(tmp_path: Path) -> None:
    files = [f"{n}.db" for n in range(20)]
    async with child("meet", tmp_path, "a") as a, child("meet", tmp_path, "b") as b:
        assert [await a.line(), await b.line()] == ["ready", "ready"]
        for file in files:
            a.tell(file)
            b.tell(file)
            assert [await a.line(), await b.line()] == [file, file]
    for file in files:
        store = SQLiteStore(tmp_path / file)
        assert await all_are(store, Done, ["a", "b"])
        await store.aclose()


async def test_a_killed_owners_claim_is_free_after_its_lease(path: Path) -> None:
    async with child("hold", path, "evt_1") as owner:
        assert await owner.line() == "claimed"
        owner.kill()
        assert await owner.lines() == []
    store = SQLiteStore(path)
    assert await look(store, "evt_1") is InFlight
    store._claims.uptime = lambda: uptime() + LEASE + PATIENCE_SECONDS
    result = await store.claim(delivery_key("default", "evt_1"), Token("heir"), LEASE)
    assert isinstance(result, Claimed)
    assert result.attempt == 2
    await store.aclose()
    assert is_sound(path)


@pytest.mark.full("3 s")
async def test_acknowledged_calls_survive_a_kill(path: Path, store: SQLiteStore) -> None:
    chance = random.Random(5)

    async def write_until_killed(name: str) -> list[str]:
        async with child("write", path, name) as writer:
            said = [await writer.line() for _ in range(chance.randrange(1, 400))]
            writer.kill()
            return said + await writer.lines()

    said: list[str] = []
    for n in range(5):
        for lines in await asyncio.gather(
            *(write_until_killed(f"evt_{n}{letter}") for letter in "abc")
        ):
            said += lines
        assert is_sound(path)

    done = [line.removeprefix("done ") for line in said if line.startswith("done ")]
    dead = [line.removeprefix("dead ") for line in said if line.startswith("dead ")]
    assert len(done) > len(dead) > 100
    assert await all_are(store, Done, done)
    assert await all_are(store, Dead, dead)
    for event_id in dead:
        letter = await store.dead_letter(delivery_key("default", event_id))
        assert letter is not None
        assert letter.delivery.body == event_id.encode() * 100


async def test_when_the_disk_takes_no_more_it_says_so_and_goes_on_when_it_does(
    path: Path, store: SQLiteStore
) -> None:
    async with child("fill", path) as writer:
        *acknowledged, refusal, late = await writer.lines()
    assert refusal.startswith("refused: the SQLite store")
    assert "hooks.db' failed: " in refusal
    assert late == "dead late"
    assert len(acknowledged) >= 5
    names = [line.removeprefix("dead ") for line in [*acknowledged, late]]
    assert await all_are(store, Dead, names)
    assert await look(store, f"evt_{len(acknowledged)}") in {Claimed, InFlight}
    assert is_sound(path)


@pytest.mark.parametrize(
    ("folder_mode", "file_mode"),
    [
        pytest.param(0o555, None, id="a new file in a read-only folder"),
        pytest.param(0o777, 0o444, id="a read-only file"),
        pytest.param(0o555, 0o444, id="a read-only file in a read-only folder"),
        pytest.param(0o777, 0o000, id="a file that cannot be read"),
    ],
)
async def test_a_process_that_may_not_write_the_file_gets_a_clear_error(
    folder_mode: int, file_mode: int | None
) -> None:
    with readable_folder() as folder:
        path = folder / "hooks.db"
        if file_mode is not None:
            store = SQLiteStore(path)
            await store.open()
            await store.aclose()
            path.chmod(file_mode)
        folder.chmod(folder_mode)
        async with child("trespass", path) as trespasser:
            [refusal] = await trespasser.lines()
        folder.chmod(0o755)
    assert refusal.startswith("refused: the SQLite store")
    assert "read-only" in refusal or "cannot be opened" in refusal


class TestForks:
    """A server may load the application and use its store before it forks its workers."""

    async def test_a_fork_and_its_parent_both_go_on_using_the_store(
        self, path: Path, store: SQLiteStore
    ) -> None:
        async with child("fork-and-use", path) as process:
            said = await process.lines()
        names = ["parent", "fork", "fork again", "parent again"]
        assert said == [f"done {name}" for name in names]
        assert await all_are(store, Done, names)
        assert is_sound(path)

    async def test_calls_that_a_fork_has_acknowledged_survive_the_closing_of_its_parent(
        self, path: Path, store: SQLiteStore
    ) -> None:
        async with child("fork-and-close", path) as process:
            assert await process.lines() == ["done before", "done after"]
        assert await all_are(store, Done, ["parent", "before", "after"])
        assert is_sound(path)

    async def test_stores_on_one_file_are_used_and_closed_in_a_fork_as_in_its_parent(
        self, path: Path, store: SQLiteStore
    ) -> None:
        async with child("fork-and-share", path) as process:
            assert await process.lines() == ["done fork", "done parent"]
        names = [f"{who} {number}" for who in ("fork", "parent") for number in range(3)]
        assert await all_are(store, Done, ["parent", *names, "fork 2 after 1", "parent 2 after 1"])
        assert is_sound(path)

    @in_a_process
    async def test_a_fork_in_the_middle_of_a_write_is_not_locked_out(
        self, path: Path, store: SQLiteStore
    ) -> None:
        async with child("fork-while-writing", path) as process:
            assert await process.lines() == [f"done fork_{n}" for n in range(8)]
        assert await all_are(store, Done, [f"fork_{n}" for n in range(8)])
        assert is_sound(path)

    @in_a_process
    async def test_a_fork_while_other_stores_are_made_leaves_all_of_them_usable(
        self, path: Path
    ) -> None:
        async with child("fork-while-others-are-made", path) as process:
            assert await process.lines() == ["done"]

    async def test_a_fork_in_the_middle_of_a_backup_has_locks_of_its_own(
        self, path: Path, store: SQLiteStore
    ) -> None:
        """Without the locks, the end of the backup deletes the log into which the fork writes."""
        async with child("fork-while-backing-up", path) as process:
            assert sorted(await process.lines()) == ["done after", "done during", "made"]
        assert await all_are(store, Done, ["evt_0", "during", "after"])
        assert is_sound(path)
        async with aclosing(SQLiteStore(f"{path}.copy")) as copy:
            assert await all_are(copy, Done, ["evt_0", "evt_999"])

    async def test_a_backup_that_every_fork_interrupts_says_so(self, path: Path) -> None:
        async with child("fork-again-and-again-while-backing-up", path) as process:
            [said] = await process.lines()
        assert "forks too often" in said
        assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_a_file_behind_a_link_wakes_those_who_wait_for_it(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    link = path.parent / "link.db"
    link.symlink_to(path.parent / "elsewhere" / "hooks.db")
    path = link
    async with aclosing(SQLiteStore(path)) as reader, aclosing(SQLiteStore(path)) as writer:
        await reader.fetch(1, LEASE, endpoint="default", worker="w", token=Token("t"))
        waiting = asyncio.create_task(reader.wait("default", PATIENCE_SECONDS))
        await writer.enqueue(Delivery("default", "evt_1", None, 1.0, b"body"), Token("u"))
        await asyncio.wait_for(waiting, PATIENCE_SECONDS / 2)
