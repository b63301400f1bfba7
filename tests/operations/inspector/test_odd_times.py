"""An impossible time in one record does not break a page: the page shows all records."""

from pathlib import Path

import pytest
from support.odd_times import ODD_TIMES, bury_odd, enqueue_odd

from hookonce import Inbox
from hookonce.stores.sqlite import SQLiteStore

from .inspecting import a_receiver, inspected

pytestmark = pytest.mark.anyio


async def test_the_inbox_shows_every_event(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "inbox.db")
    await enqueue_odd(store)
    async with inspected(a_receiver(store=store, inbox=Inbox(embedded=False))) as here:
        text = await here.page("/inbox")
        assert all(event_id in text for event_id in ODD_TIMES)
        assert "1e+300" in text
        assert "2023-11-14 22:13:20" in text
        await here.page("/")


async def test_dead_letters_are_listed_and_shown(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "dead.db")
    await bury_odd(store)
    async with inspected(a_receiver(store=store)) as here:
        text = await here.page("/dead")
        assert all(event_id in text for event_id in ODD_TIMES)
        shown = [await here.page(f"/dead/letter?id={event_id}") for event_id in ODD_TIMES]
        assert "1e+300" in shown[0]
