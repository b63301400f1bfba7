"""The page of workers shows whether each process lives, what it runs, and its failures."""

import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

import pytest
from playwright.async_api import expect
from support.handlers import Waiting
from support.processes import ServedProcess, served_process
from support.waiting import until, until_async

from hookonce import Inbox, Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.stores.protocols import WORKER_SECONDS
from hookonce.testing import make_event

from .browsing import a_page
from .inspecting import PATH, SECRET, Inspected, a_receiver, inspected
from .test_browser import entrance

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 60.0

# A worker that handles one event at a time.
WORKER = """
import contextlib
from hookonce import Inbox
from hookonce.http.app import application

inbox = Inbox(embedded=False, concurrency=1, backoff=3600)
limits = Limits(lease_seconds=3)
receiver = Receiver(secrets=secret, store=os.environ["STORE_URL"], inbox=inbox, limits=limits)

@receiver.on(CommentReceived, name="answer")
async def answer(event):
    note(f"{event.id} in {os.getpid()}")
    await gate("open")
    if is_open(f"fail {event.id}"):
        raise RuntimeError("the shop is closed")

@contextlib.asynccontextmanager
async def working(_):
    async with receiver.working():
        yield

serve(application([], working))
"""


@pytest.fixture
def url(durable_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STORE_URL", durable_url)
    return durable_url


@asynccontextmanager
async def fleet(
    url: str, folder: Path
) -> AsyncIterator[tuple[Inspected, ServedProcess, ServedProcess]]:
    """Serve a receiver with its inspector, and run two workers beside it."""
    limits = Limits(lease_seconds=3)
    receiver = Receiver(secrets=[SECRET], store=url, inbox=Inbox(embedded=False), limits=limits)
    receiver.on(CommentReceived, name="answer")(print)
    async with (
        inspected(receiver) as here,
        served_process(folder, WORKER, SECRET) as one,
        served_process(folder, WORKER, SECRET) as other,
    ):
        yield here, one, other


async def rows(here: Inspected) -> dict[int, str]:
    """Return the text of each worker's row, by its process id."""
    page = await here.page("/workers")
    found = re.findall(
        r'<tr class="worker" data-worker="[^":]+:(\d+):\w+">(.*?)</tr>', page, re.DOTALL
    )
    return {
        int(pid): re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", row))) for pid, row in found
    }


async def shows(here: Inspected, process: ServedProcess, *parts: str) -> str:
    """Wait until a worker's row contains these texts, and return the row."""
    shown: dict[int, str] = {}

    async def holds() -> bool:
        shown.clear()
        shown.update(await rows(here))
        return all(part in shown.get(process.process.pid, "") for part in parts)

    await until_async(holds, seconds=PATIENCE_SECONDS, what=f"{parts} in {shown}")
    return shown[process.process.pid]


async def runs(process: ServedProcess) -> str:
    """Wait until a worker begins to handle an event, and return the event's id."""
    found: list[str] = []

    def holds() -> bool:
        found[:] = [
            line.partition(" ")[0]
            for line in process.journal()
            if line.endswith(f" in {process.process.pid}")
        ]
        return bool(found)

    await until(holds, seconds=PATIENCE_SECONDS, what="the worker handles an event")
    return found[-1]


@pytest.mark.full("2 s: three processes")
async def test_the_page_shows_what_each_worker_runs_and_what_has_failed(
    url: str, tmp_path: Path
) -> None:
    async with fleet(url, tmp_path) as (here, one, other):
        for worker in (one, other):
            row = await shows(here, worker, "alive")
            assert "nothing" in row
            assert "0 of 1" in row
        assert len(await rows(here)) == 2, "a process that only stores is no worker"
        for _ in range(2):
            (await here.sender.send(make_event(CommentReceived))).expect(202, "stored")
        for worker in (one, other):
            event_id = await runs(worker)
            row = await shows(here, worker, "alive", event_id, "1 of 1")
            assert re.search(rf"answer {event_id} for .*s comment.received attempt 1 ", row)
        failing = await runs(one)
        (tmp_path / f"fail {failing}").touch()
        one.open("open")
        await shows(here, one, "nothing", "0 of 1", "1 0.0/s 1 1 1")
        await shows(here, other, "nothing")


@pytest.mark.full("waits 30 s for a lease", draw=1)
async def test_a_killed_worker_is_silent_and_then_gone(url: str, tmp_path: Path) -> None:
    async with fleet(url, tmp_path) as (here, one, other):
        for worker in (one, other):
            await shows(here, worker, "alive")
        (await here.sender.send(make_event(CommentReceived))).expect(202, "stored")
        await until(one.journal, seconds=PATIENCE_SECONDS, what="a worker handles it")
        [line] = one.journal()
        event_id, pid = line.split(" in ")
        killed, left = (one, other) if int(pid) == one.process.pid else (other, one)
        await shows(here, killed, event_id)
        await killed.kill()
        await shows(here, left, event_id, "attempt 2")
        await shows(here, killed, "silent for", event_id, "attempt 1")

        async def is_gone() -> bool:
            return killed.process.pid not in await rows(here)

        await until_async(is_gone, seconds=WORKER_SECONDS + PATIENCE_SECONDS, what="it is gone")
        assert "alive" in (await rows(here))[left.process.pid]
        left.open("open")
        await shows(here, left, "nothing")
        assert await left.terminate() in {0, -signal.SIGTERM}
        assert await rows(here) == {}, "a worker that ends in order is gone at once"


async def test_without_a_shared_store_the_page_shows_its_own_process() -> None:
    receiver = a_receiver()
    async with inspected(receiver) as here:
        [row] = (await rows(here)).values()
    assert "this process" in row
    assert "handles in requests" in row
    assert "alive" in row


async def test_without_workers_the_page_says_how_to_start_one(tmp_path: Path) -> None:
    receiver = a_receiver(store=f"sqlite:///{tmp_path}/hookonce.db", inbox=Inbox(embedded=False))
    async with inspected(receiver) as here:
        assert "No worker is running: start <code>hookonce worker</code>" in await here.page(
            "/workers"
        )


@pytest.mark.full("a browser: 3 s")
async def test_an_open_page_follows_a_worker(tmp_path: Path) -> None:
    receiver = a_receiver(store=f"sqlite:///{tmp_path}/hookonce.db", inbox=Inbox(backoff=0.1))
    handler = Waiting(receiver)
    expect.set_options(timeout=1000 * PATIENCE_SECONDS)
    async with inspected(receiver) as here, a_page() as page:
        await page.goto(entrance(here))
        await page.keyboard.press("g")
        await page.keyboard.press("w")
        await page.wait_for_url(f"**{PATH}/workers")
        await expect(page.locator("#status")).to_have_text("live")
        await expect(page.locator("#workers")).to_contain_text("nothing")
        event = make_event(CommentReceived)
        await here.sender.send(event)
        await expect(page.locator("#workers tbody bdi").nth(1)).to_have_text(event.id)
        handler.gate.set()
        await expect(page.locator("#workers")).to_contain_text("nothing")
