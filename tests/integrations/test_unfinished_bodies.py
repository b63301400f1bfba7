"""A server with two threads still answers deliveries while clients send unfinished bodies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.servers import RawConnection, request_bytes, whole
from support.waiting import PATIENCE_SECONDS

from hookonce.events import CommentReceived
from hookonce.testing import Answer, make_event, signed_request
from hookonce.verification.secrets import new_secret
from integrations.gunicorn_apps import GUNICORN_APPS, behind_gunicorn

pytestmark = [pytest.mark.anyio, pytest.mark.sample(2)]

SECRET = new_secret()
BEGUN = {
    "with a length": ({"content-length": "100000"}, b"{"),
    "in chunks": ({"transfer-encoding": "chunked"}, b"1\r\n{\r\n"),
    "in trailers": ({"transfer-encoding": "chunked"}, b"1\r\n{\r\n0\r\na: b\r\n"),
    "with a length that is refused": ({"content-length": "100000000"}, b"{"),
}


async def deliver(port: int) -> Answer:
    async with await RawConnection.at(port) as connection:
        await connection.write(whole(signed_request(make_event(CommentReceived), SECRET)))
        return await connection.answer()


@asynccontextmanager
async def unfinished(port: int, kind: str, number: int = 4) -> AsyncIterator[list[RawConnection]]:
    headers, begun = BEGUN[kind]
    head = request_bytes(signed_request(b"{}", SECRET), headers=headers)
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(await RawConnection.at(port)) for _ in range(number)
        ]
        for connection in connections:
            await connection.write(head + begun)
        yield connections


@pytest.mark.parametrize("drips", [False, True])
@pytest.mark.parametrize("kind", BEGUN)
@pytest.mark.parametrize("app", GUNICORN_APPS)
async def test_unfinished_bodies_do_not_hold_the_threads_of_gunicorn(
    app: str, kind: str, drips: bool, tmp_path: Path
) -> None:
    with behind_gunicorn(app, here=tmp_path, secret=SECRET) as (port, _):
        async with unfinished(port, kind) as connections:
            dripping = asyncio.create_task(_drip(connections, BEGUN[kind][1][:1] if drips else b""))
            async with asyncio.timeout(PATIENCE_SECONDS):
                (await deliver(port)).expect(200, "handled")
            wanted = (413, "body_too_large") if "refused" in kind else (408, "body_timeout")
            for connection in connections:
                answer = await connection.answer_if_any()
                if answer is not None or not drips:  # a client that still sends may lose an answer
                    assert answer is not None
                    answer.expect(*wanted)
            dripping.cancel()
        (await deliver(port)).expect(200, "handled")


async def _drip(connections: list[RawConnection], data: bytes) -> None:
    while data:
        for connection in list(connections):
            try:
                await connection.write(data)
            except ConnectionError:
                connections = [one for one in connections if one is not connection]
        await asyncio.sleep(0.05)
