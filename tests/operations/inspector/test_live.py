"""The stream of an open page: its events, its time limit, and the limit of open pages."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from support.waiting import PATIENCE_SECONDS, until

from hookonce.events import CommentReceived
from hookonce.operations.inspector import Bounds, Inspector
from hookonce.testing import make_event

from .inspecting import PATH, TOKEN, Inspected, a_receiver, inspected

pytestmark = pytest.mark.anyio


@dataclass
class Stream:
    """Events that an open page has received."""

    heard: list[dict[str, str]] = field(default_factory=list)
    is_over: bool = False

    def named(self, name: str) -> list[Any]:
        return [json.loads(event["data"]) for event in self.heard if event.get("event") == name]

    def rows(self) -> list[int]:
        return [row["number"] for rows in self.named("rows") for row in rows if row["html"]]

    def last_id(self) -> str:
        return next(event["id"] for event in reversed(self.heard) if "id" in event)


def cursor_in(page: str) -> str:
    return page.partition('data-cursor="')[2].partition('"')[0]


@asynccontextmanager
async def streaming(
    here: Inspected, query: str = "", *, cursor: str | None = None, last_id: str = ""
) -> AsyncIterator[Stream]:
    """Open a page's stream, and read it until the block ends."""
    stream = Stream()
    if cursor is None:
        cursor = cursor_in(await here.page())
    headers = {
        "authorization": f"Bearer {TOKEN}",
        **({"last-event-id": last_id} if last_id else {}),
    }
    url = f"{PATH}/stream?cursor={cursor}{query}"

    async def hear(response: httpx2.Response) -> None:
        event: dict[str, str] = {}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                event[name or "comment"] = value
            else:
                stream.heard.append(event)
                event = {}
        stream.is_over = True

    async with (
        httpx2.AsyncClient(base_url=here.site.url, timeout=PATIENCE_SECONDS) as client,
        client.stream("GET", url, headers=headers) as response,
    ):
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        hearing = asyncio.create_task(hear(response))
        try:
            yield stream
        finally:
            hearing.cancel()
            await asyncio.wait({hearing})


async def test_a_page_receives_a_delivery_and_then_its_answer() -> None:
    receiver = a_receiver()
    gate = asyncio.Event()

    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None:
        await gate.wait()

    async with inspected(receiver) as here, streaming(here) as stream:
        waiting = asyncio.create_task(here.sender.send(make_event(CommentReceived)))
        await until(lambda: stream.rows() == [1], what="the row of the running delivery")
        assert ">in flight<" in stream.named("rows")[0][0]["html"]
        gate.set()
        await waiting
        await until(lambda: stream.rows() == [1, 1], what="the row of the answered one")
        assert "200 handled" in stream.named("rows")[1][0]["html"]


async def test_an_open_page_receives_charts_facts_and_heartbeats() -> None:
    async with inspected(a_receiver()) as here, streaming(here) as stream:
        await until(lambda: stream.named("overview"))
        assert set(stream.named("overview")[0]) == {"facts", "charts"}
        assert "<svg" in stream.named("overview")[0]["charts"]
        assert any("comment" in event for event in stream.heard)


async def test_a_stream_has_the_filters_of_its_page() -> None:
    async with inspected(a_receiver()) as here, streaming(here, "&kind=refused") as stream:
        await here.sender.send(make_event(CommentReceived))
        await here.sender.send(make_event(CommentReceived), tamper=True)
        await until(stream.rows)
        assert stream.rows() == [2]


async def test_a_page_that_reconnects_receives_exactly_what_it_missed() -> None:
    async with inspected(a_receiver()) as here:
        async with streaming(here) as stream:
            await here.sender.send(make_event(CommentReceived))
            await until(stream.rows)
        await here.sender.send(make_event(CommentReceived))
        async with streaming(here, last_id=stream.last_id()) as again:
            await until(again.rows)
            assert again.rows() == [2]


async def test_a_page_of_an_earlier_process_must_load_again() -> None:
    async with inspected(a_receiver()) as here:
        for cursor in ("another-7", "nonsense"):
            async with streaming(here, cursor=cursor) as stream:
                await until(lambda: stream.is_over)
                assert stream.named("restarted") == [{}]


@pytest.mark.parametrize("version", ["9" * 5000, "", "-1", "1e3", "\u0661"])
async def test_an_invalid_cursor_makes_the_page_load_again(version: str) -> None:
    async with inspected(a_receiver()) as here:
        process = cursor_in(await here.page()).partition("-")[0]
        async with streaming(here, cursor=f"{process}-{version}") as stream:
            await until(lambda: stream.is_over)
            assert stream.named("restarted") == [{}]


async def test_without_a_cursor_the_stream_begins_now() -> None:
    async with inspected(a_receiver()) as here:
        await here.sender.send(make_event(CommentReceived))
        async with streaming(here, cursor="") as stream:
            await until(lambda: stream.heard)
            await here.sender.send(make_event(CommentReceived))
            await until(stream.rows)
            assert stream.rows() == [2]


async def test_of_many_new_rows_only_the_newest_are_sent() -> None:
    async with inspected(a_receiver()) as here:
        cursor = cursor_in(await here.page())
        for _ in range(50):
            await here.sender.send(make_event(CommentReceived), tamper=True)
        async with streaming(here, cursor=cursor) as stream:
            await until(stream.rows)
            assert stream.rows() == list(range(50, 20, -1))


async def test_live_pages_are_limited_and_a_closed_one_makes_room() -> None:
    async with inspected(a_receiver(), bounds=Bounds(viewers=1)) as here:
        async with streaming(here):
            answer = await here.visitor.get(f"{PATH}/stream")
            assert (answer.status_code, "too many" in answer.text) == (503, True)
        await until(lambda: not here.inspector._sites[0].live.is_full, what="a place for a page")
        async with streaming(here):
            pass


async def test_a_stream_ends_by_itself_so_that_a_server_can_stop() -> None:
    async with (
        inspected(a_receiver(), bounds=Bounds(stream_seconds=0.1)) as here,
        streaming(here) as stream,
    ):
        await until(lambda: stream.is_over)


async def test_a_server_that_stops_waits_for_no_open_page() -> None:
    """In this test streams last for an hour, so only ``Inspector.end`` can have ended them."""
    async with (
        inspected(a_receiver(), bounds=Bounds(stream_seconds=3600)) as here,
        streaming(here) as stream,
    ):
        await until(lambda: stream.heard)
        here.inspector.end()
        await here.site.stop()
        await until(lambda: stream.is_over)


async def test_a_server_that_does_not_call_end_waits_for_the_end_of_the_stream() -> None:
    async with (
        inspected(a_receiver(), bounds=Bounds(stream_seconds=1)) as here,
        streaming(here) as stream,
    ):
        await until(lambda: stream.heard)
        await here.site.stop()
        await until(lambda: stream.is_over)


async def test_a_visitor_that_reads_nothing_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hookonce.operations.inspector.live._SEND_SECONDS", 0.01)
    inspector = Inspector(a_receiver(), token=TOKEN)
    site = inspector._sites[0]

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/stream",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())],
        "client": ("127.0.0.1", 1),
    }
    async with asyncio.timeout(PATIENCE_SECONDS):
        await inspector(scope, receive, send)
    assert site.live._viewers == 0
