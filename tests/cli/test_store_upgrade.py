"""``hookonce store upgrade`` raises the format of a store once no older version uses it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from support.sqlite_files import sqlite_connection

from hookonce.stores.formats import OLD_SECONDS
from hookonce.stores.sqlite import SQLiteStore

from .running import invoke


@pytest.fixture
def url(tmp_path: Path) -> str:
    async def make() -> None:
        store = SQLiteStore(tmp_path / "hooks.db")
        await store.open()
        await store.aclose()

    anyio.run(make)
    return f"sqlite:///{tmp_path / 'hooks.db'}"


@pytest.fixture
def later_version(url: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - the fixture creates the store
    """Pretend to be a version that knows one more format."""
    monkeypatch.setattr(SQLiteStore, "formats", (1, 2))


def test_a_store_with_the_newest_format_stays_as_it_is(url: str) -> None:
    result = invoke("store", "upgrade", url)
    assert (result.status, result.output) == (0, "the store has the newest format, 1\n")
    assert json.loads(invoke("store", "upgrade", url, "--json").output) == {"before": 1, "after": 1}


@pytest.mark.usefixtures("later_version")
def test_the_upgrade_is_refused_while_an_older_version_uses_the_store(url: str) -> None:
    result = invoke("store", "upgrade", url)
    result.says("a process of an older version", "stop all such processes, wait", status=2)


@pytest.mark.usefixtures("later_version")
def test_the_upgrade_raises_the_format(url: str, tmp_path: Path) -> None:
    with closing(sqlite_connection(tmp_path / "hooks.db")) as connection:
        # Simulate that time has passed: a test cannot set the clock of leases forward.
        connection.execute("UPDATE seen SET at = at - ?", (OLD_SECONDS,))
    result = invoke("store", "upgrade", url)
    assert (result.status, result.output) == (0, "raised the store from format 1 to 2\n")
    assert json.loads(invoke("store", "upgrade", url, "--json").output) == {"before": 2, "after": 2}


def test_a_missing_store_is_not_created(tmp_path: Path) -> None:
    result = invoke("store", "upgrade", f"sqlite:///{tmp_path / 'none.db'}")
    assert result.status == 2
    assert list(tmp_path.iterdir()) == []
