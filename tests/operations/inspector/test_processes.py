"""One page shows all processes that share the store."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from support.handlers import succeed
from support.processes import ServedProcess, served_process
from support.waiting import until, until_async

from hookonce import Inbox, Receiver
from hookonce.events import CommentReceived, Event
from hookonce.stores.activity import ActivityStore
from hookonce.testing import TestSender, make_event

from .inspecting import SECRET, Inspected, inspected
from .test_live import Stream, streaming

pytestmark = pytest.mark.anyio
in_a_process = pytest.mark.sample(1, of="file")

PROCESS = """
from hookonce import Inbox

inbox = Inbox(embedded=True) if os.environ.get("STORE_INBOX") else None
receiver = Receiver(secrets=secret, store=os.environ["STORE_URL"], inbox=inbox)

@receiver.on(CommentReceived, name="answer")
async def answer(event):
    if not is_open("mended"):
        (here / "mended").touch()
        raise RuntimeError("the shop is closed")

@receiver.on(CommentReceived, name="count")
async def count(event):
    note(event.id)

serve(receiver)
"""


@pytest.fixture
def url(durable_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STORE_URL", durable_url)
    return durable_url


@asynccontextmanager
async def watched(receiver: Receiver) -> AsyncIterator[tuple[Inspected, Stream]]:
    """Serve a receiver whose page is open."""
    async with inspected(receiver) as here, streaming(here) as stream:
        yield here, stream


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


async def row_with(stream: Stream, *words: str) -> str:
    """Wait until the open page shows a row with all these words; return the row's number."""

    def found() -> list[dict[str, Any]]:
        rows = [row for rows in stream.named("rows") for row in rows]
        return [row for row in rows if all(word in text_of(row["html"]) for word in words)]

    await until(found, what=f"a row with {words}")
    return str(found()[-1]["number"])


async def answered(process: ServedProcess, event: Event[Any]) -> int:
    return (await process.sender.send(event)).status


@in_a_process
async def test_a_page_shows_what_a_worker_elsewhere_does(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_INBOX", "1")
    receiver = Receiver(secrets=[SECRET], store=url, inbox=Inbox(embedded=False))
    receiver.on(CommentReceived, name="answer")(succeed)
    async with (
        watched(receiver) as (here, stream),
        served_process(tmp_path, PROCESS, SECRET) as worker,
    ):
        event = make_event(CommentReceived)
        await here.sender.send(event)
        number = await row_with(stream, event.id, "waiting")
        await worker.noted(event.id)
        await row_with(stream, event.id, "✓ 1", "✗ 1", "waiting")
        shown = text_of(await here.page(f"/deliveries/{number}"))
    assert "answer failed: RuntimeError" in shown
    assert "RuntimeError: the shop is closed" in shown
    assert "count succeeded" in shown
    assert f":{worker.process.pid}:" in shown


@in_a_process
async def test_a_page_shows_what_another_server_has_answered(url: str, tmp_path: Path) -> None:
    receiver = Receiver(secrets=[SECRET], store=url)
    (tmp_path / "mended").touch()
    async with (
        watched(receiver) as (here, stream),
        served_process(tmp_path, PROCESS, SECRET) as other,
    ):
        # The process checks for an open page only now and then, so it may not publish the first
        # answer.
        async def is_shown() -> bool:
            assert await answered(other, make_event(CommentReceived)) == 200
            return bool(stream.rows())

        await until_async(is_shown, what="a delivery to the other server on the page")
        number = await row_with(stream, "200 handled", "handled", "✓ 2")
        shown = text_of(await here.page(f"/deliveries/{number}"))
    assert "Answered by" in shown
    assert f":{other.process.pid}:" in shown
    assert "answer succeeded" in shown
    assert "No step was seen" not in shown


async def test_states_that_no_process_reported_come_from_the_store(url: str) -> None:
    receiver = Receiver(secrets=[SECRET], store=url, inbox=Inbox(embedded=False))
    receiver.on(CommentReceived, name="answer")(succeed)
    elsewhere = receiver.copy()
    async with inspected(receiver) as here:
        event = make_event(CommentReceived)
        await here.sender.send(event)
        assert "waiting" in text_of(await here.page())
        async with elsewhere.working():
            await until_async(partial(_is_empty, receiver), what="the inbox is empty")

        async def is_handled() -> bool:
            page = text_of(await here.page())
            return "✓" not in page and " handled " in page

        await until_async(is_handled, what="the page says what the store knows")


async def _is_empty(receiver: Receiver) -> bool:
    return (await receiver.stats()).depth == 0


async def test_nothing_is_reported_while_no_page_is_open(url: str) -> None:
    receiver = Receiver(secrets=[SECRET], store=url)
    receiver.on(CommentReceived)(succeed)
    async with TestSender(receiver, secrets=SECRET) as sender:
        await sender.send(make_event(CommentReceived))
        assert isinstance(receiver.store, ActivityStore)
        assert await receiver.store.follow("default", 0) == (0, ())
