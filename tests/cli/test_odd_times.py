"""A listing shows all records, even if a record has an invalid time."""

import asyncio
from pathlib import Path

import pytest
from support.odd_times import ODD_TIMES, bury_odd, enqueue_odd

from hookonce.stores.sqlite import SQLiteStore

from .running import invoke


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a store with invalid times: in the inbox, and in another endpoint's dead
    letters.
    """

    async def fill() -> None:
        store = SQLiteStore(tmp_path / "hooks.db")
        await enqueue_odd(store)
        await bury_odd(store, "dead")
        await store.aclose()

    asyncio.run(fill())
    return f"sqlite:///{tmp_path}/hooks.db"


@pytest.mark.parametrize("command", ["inbox", "dead"])
def test_commands_list_and_show_every_record(url: str, command: str) -> None:
    endpoint = {"inbox": "default", "dead": "dead"}[command]
    result = invoke(command, "list", url)
    assert (result.status, result.errors) == (0, "")
    assert all(event_id in result.output for event_id in ODD_TIMES)
    records = invoke(command, "list", url, "--json").output
    assert "1e+300" in records
    assert "2023-11-14T22:13:20Z" in records
    for event_id in ODD_TIMES:
        assert invoke(command, "show", url, event_id, "--endpoint", endpoint).status == 0
    assert invoke("inbox", "stats", url).status == 0
