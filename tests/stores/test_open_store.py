"""A URL opens exactly the store that it names, or the URL is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from hookonce.clock import Clock
from hookonce.errors import StoreError
from hookonce.stores import open_store
from hookonce.stores.memory import MemoryStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, InFlight, delivery_key, new_token

pytestmark = pytest.mark.anyio

KEY = delivery_key("default", "evt_1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a new folder the working folder of the test, and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> set[str]:
    """Return the files that a closed store has left, by their relative paths."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///hookonce.db", "hookonce.db"),
        ("SQLite:///hookonce.db", "hookonce.db"),
        ("sqlite:///sub/hookonce.db", "sub/hookonce.db"),
        ("sqlite:///./hookonce.db", "hookonce.db"),
        ("sqlite:///sub/../hookonce.db", "hookonce.db"),
        ("sqlite:///with%20space.db", "with space.db"),
        ("sqlite:///with space.db", "with space.db"),
        ("sqlite:///%C3%BC.db", "ü.db"),
        ("sqlite:///a%3Fb%23c%25.db", "a?b#c%.db"),
        ("sqlite:///file%3Ax%3Fmode=memory", "file:x?mode=memory"),
    ],
)
async def test_three_slashes_name_a_file_in_the_working_folder(
    folder: Path, clock: Clock, url: str, name: str
) -> None:
    (folder / "sub").mkdir()
    store = open_store(url, clock=clock)
    assert isinstance(store, SQLiteStore)
    assert isinstance(await store.claim(KEY, new_token(), 30), Claimed)
    await store.aclose()
    assert files(folder) == {name}


@pytest.mark.parametrize("name", ["hookonce.db", "with space ü?#%.db"])
async def test_four_slashes_name_an_absolute_file(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, clock: Clock, name: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    store = open_store(f"sqlite:///{quote(str(elsewhere / name))}", clock=clock)
    await store.open()
    await store.aclose()
    assert files(elsewhere) == {name}
    assert files(folder) == set()


async def test_one_url_names_one_file(folder: Path, clock: Clock) -> None:
    first, second = (open_store("sqlite:///hookonce.db", clock=clock) for _ in range(2))
    await first.claim(KEY, new_token(), 30)
    assert isinstance(await second.claim(KEY, new_token(), 30), InFlight)
    await first.aclose()
    await second.aclose()
    assert files(folder) == {"hookonce.db"}


async def test_memory_names_a_new_store_in_memory(folder: Path, clock: Clock) -> None:
    store = open_store("memory://", clock=clock)
    assert isinstance(store, MemoryStore)
    await store.claim(KEY, new_token(), 30)
    assert isinstance(
        await open_store("memory://", clock=clock).claim(KEY, new_token(), 30), Claimed
    )
    assert files(folder) == set()


def test_a_store_touches_no_file_before_its_first_use(folder: Path, clock: Clock) -> None:
    open_store("sqlite:///hookonce.db", clock=clock)
    assert files(folder) == set()


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        pytest.param("sqlite://hookonce.db", "sqlite:///hookonce.db", id="two slashes"),
        pytest.param("sqlite://var/lib/x.db", "sqlite:///var/lib/x.db", id="two slashes, a path"),
        pytest.param("sqlite:/var/lib/x.db", "sqlite:///", id="one slash"),
        pytest.param("sqlite:x.db", "sqlite:///", id="no slash"),
        pytest.param("sqlite://", "names a file", id="no path"),
        pytest.param("sqlite:///", "names a file", id="an empty path"),
        pytest.param("sqlite:////", "names a file", id="the root"),
        pytest.param("sqlite:///:memory:", "memory://", id="SQLite's memory"),
        pytest.param("sqlite:///%3Amemory%3A", "memory://", id="SQLite's memory, escaped"),
        pytest.param("sqlite:///./:memory:", "memory://", id="SQLite's memory, as a path"),
        pytest.param("sqlite:///x.db?timeout=5", "sqlite:///", id="a query that would be ignored"),
        pytest.param("sqlite:///x#1.db", "sqlite:///", id="a fragment that would be cut off"),
        pytest.param("sqlite:///x%00.db", "sqlite:///", id="a NUL"),
    ],
)
def test_a_url_that_names_no_sqlite_file_is_refused_with_what_to_write(
    folder: Path, clock: Clock, url: str, hint: str
) -> None:
    with pytest.raises(ValueError, match=hint):
        open_store(url, clock=clock)
    assert files(folder) == set()


@pytest.mark.parametrize(
    "url",
    ["", "hookonce.db", "/var/lib/x.db", "mysql://h/db", "sqlite3:///x", "://", ":memory:"],
)
def test_an_unknown_scheme_is_refused_with_the_known_ones(clock: Clock, url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite:///.*memory://"):
        open_store(url, clock=clock)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///hookonce.db"])
def test_a_retention_of_no_time_is_refused(folder: Path, clock: Clock, url: str) -> None:
    with pytest.raises(ValueError, match="retention"):
        open_store(url, retention=timedelta(0), clock=clock)
    assert files(folder) == set()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///hookonce.db"])
async def test_retention_and_clock_reach_the_store(folder: Path, url: str) -> None:
    now = 1_700_000_000.0
    store = open_store(url, retention=timedelta(hours=30), clock=lambda: now)
    claim = await store.claim(KEY, new_token(), 30)
    assert isinstance(claim, Claimed)
    await store.complete(claim)
    now += 30 * 3600 - 1
    assert await store.prune() == 0
    now += 1
    assert await store.prune() == 1
    await store.aclose()
    assert len(files(folder)) <= 1


async def test_a_folder_that_does_not_exist_shows_when_the_store_opens(
    folder: Path, clock: Clock
) -> None:
    store = open_store("sqlite:///missing/hookonce.db", clock=clock)
    with pytest.raises(StoreError, match="folder"):
        await store.open()
    await store.aclose()
    assert files(folder) == set()
