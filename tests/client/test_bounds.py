"""A service or a proxy cannot make the client use unbounded memory or time."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from support.scripted_api import Asked, Said, ScriptedApi
from support.waiting import until

from hookonce.client import Client, NoAnswerError, UnreadableAnswerError

from .conftest import KEY
from .test_operations import ME

pytestmark = pytest.mark.anyio

GZIP = {"content-encoding": "gzip"}
ITEM = {
    "id": "med_1",
    "filename": "a.png",
    "url": "https://cdn.example.com/a.png",
    "kind": "image",
    "mime": "image/png",
    "size": 1,
    "status": "ready",
}


def deflated(megabytes: int) -> bytes:
    """Return a gzip of this many megabytes of blanks."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(b" " * 10**6) for _ in range(megabytes)), packer.flush()])


async def test_an_answer_may_be_compressed(client: Client, api: ScriptedApi) -> None:
    api.say(200, gzip.compress(json.dumps({"data": ME}).encode()), headers=GZIP)
    assert (await client.me()).model_dump(mode="json")["workspace"] == ME["workspace"]


@pytest.mark.parametrize("status", [200, 404])
async def test_an_answer_that_grows_when_it_is_unpacked_is_left_unread(
    client: Client, api: ScriptedApi, status: int
) -> None:
    api.say(status, deflated(50), headers=GZIP)
    with pytest.raises(UnreadableAnswerError, match="longer than 16 MiB; ask for smaller") as e:
        await client.me()
    assert e.value.status == status
    assert len(api.asked) == 1


async def test_an_answer_that_is_compressed_twice_is_left_unread(
    client: Client, api: ScriptedApi
) -> None:
    content = gzip.compress(gzip.compress(b"{}"))
    api.say(200, content, headers={"content-encoding": "gzip, gzip"})
    with pytest.raises(UnreadableAnswerError, match="compressed more than once"):
        await client.me()


@pytest.mark.parametrize("value", [b"0", b"[]", b"{}"])
async def test_an_answer_of_very_many_values_is_left_unread(
    client: Client, api: ScriptedApi, value: bytes
) -> None:
    content = b'{"data":[' + b",".join([value] * 200_000) + b"]}"
    api.say(200, gzip.compress(content), headers=GZIP)
    with pytest.raises(UnreadableAnswerError, match="more than 100000 values"):
        _ = [one async for one in client.media.list()]


async def test_commas_inside_strings_are_not_counted_as_values(
    client: Client, api: ScriptedApi
) -> None:
    name = ',[{"\\' * 60_000
    api.say(200, {"data": [ITEM | {"filename": name}], "nextCursor": None})
    assert [one.filename async for one in client.media.list()] == [name]


async def test_a_text_without_an_end_is_counted_in_linear_time(
    client: Client, api: ScriptedApi
) -> None:
    api.say(200, b'"' + b'\\"' * 4_000_000 + b"," * 200_000)
    with pytest.raises(UnreadableAnswerError, match="Invalid JSON"):
        await client.me()


async def test_pages_without_an_item_end_the_list(client: Client, api: ScriptedApi) -> None:
    def page(_: Asked) -> Said:
        cursor = f"med_{len(api.asked)}"
        return Said(200, {}, json.dumps({"data": [], "nextCursor": cursor}).encode())

    api.respond = page
    with pytest.raises(UnreadableAnswerError, match="10 empty pages in a row"):
        _ = [one async for one in client.media.list()]
    assert len(api.asked) == 10


async def test_empty_pages_between_others_are_read_over(client: Client, api: ScriptedApi) -> None:
    def page(_: Asked) -> Said:
        number = len(api.asked)
        data = [] if number % 10 else [ITEM]
        cursor = None if number == 30 else f"med_{number}"
        return Said(200, {}, json.dumps({"data": data, "nextCursor": cursor}).encode())

    api.respond = page
    assert len([one async for one in client.media.list()]) == 3


# connections that cannot be made


@contextmanager
def full_listener() -> Iterator[int]:
    """Give the port of a socket whose backlog is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        try:
            yield address[1]
        finally:
            for one in waiting:
                one.close()


@asynccontextmanager
async def mute_server() -> AsyncIterator[tuple[int, list[asyncio.StreamWriter]]]:
    """Yield the port and the connections of a server that accepts connections but never answers."""

    async def wait(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], writers
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def test_a_connection_that_nobody_accepts_has_sent_nothing() -> None:
    with full_listener() as port:
        url = f"http://127.0.0.1:{port}"
        async with Client(url, KEY, patience=0, answer_seconds=0.3) as client:
            with pytest.raises(NoAnswerError) as caught:
                await client.webhooks.rotate_secret("wh_1")
    assert str(caught.value).endswith(": no connection within 0.3 s; it was not sent")
    assert not caught.value.may_have_arrived


async def test_a_connection_that_is_never_encrypted_has_sent_nothing() -> None:
    async with mute_server() as (port, _):
        url = f"https://127.0.0.1:{port}"
        async with Client(url, KEY, patience=0, answer_seconds=0.3) as client:
            with pytest.raises(NoAnswerError, match="it was not sent") as caught:
                await client.webhooks.rotate_secret("wh_1")
    assert not caught.value.may_have_arrived


async def test_a_call_that_waits_for_a_connection_of_the_pool_has_sent_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        mute_server() as (port, connected),
        Client(f"http://127.0.0.1:{port}", KEY, patience=0) as client,
        asyncio.TaskGroup() as group,
    ):
        others = [group.create_task(client.me()) for _ in range(100)]
        await until(lambda: len(connected) == 100)
        monkeypatch.setattr(client._connection, "_answer_seconds", 0.1)
        with pytest.raises(NoAnswerError, match="it was not sent") as caught:
            await client.webhooks.rotate_secret("wh_1")
        for task in others:
            task.cancel()
    assert not caught.value.may_have_arrived
