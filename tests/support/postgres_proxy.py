"""A proxy in front of PostgreSQL that cuts off a connection at its next COMMIT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from urllib.parse import urlsplit

__all__ = ["Cut", "PostgresProxy", "postgres_proxy"]

_CHUNK = 65_536


class Cut(Enum):
    """The moment at which the proxy cuts off a connection."""

    BEFORE_COMMIT = "before the server has heard of it"
    AFTER_COMMIT = "after the server has done it, and before the client hears of it"


class PostgresProxy:
    """Passes everything on until a test tells it to cut.

    Attributes:
        cut: the moment at which to cut off the next connection that commits.
        cuts: the number of connections that were cut off.
        round_trips: how often a client has sent something after an answer.
    """

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.cut: Cut | None = None
        self.cuts = 0
        self.round_trips = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://postgres@127.0.0.1:{port}{self._url.path}"

    def lead_to(self, url: str) -> None:
        """Connect to another server from now on; open connections stay."""
        self._url = urlsplit(url)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, away = await asyncio.open_connection(self._url.hostname, self._url.port)
        answered = asyncio.Event()
        is_cut, is_answered = False, True

        async def answer() -> None:
            nonlocal is_answered
            with suppress(ConnectionError):
                while data := await there.read(_CHUNK):
                    is_answered = True
                    if is_cut:
                        answered.set()
                    else:
                        writer.write(data)
                writer.write_eof()

        back = asyncio.create_task(answer())
        try:
            while data := await reader.read(_CHUNK):
                self.round_trips += is_answered
                is_answered = False
                if self.cut is not None and b"COMMIT" in data:
                    cut, self.cut, is_cut = self.cut, None, True
                    self.cuts += 1
                    if cut is Cut.AFTER_COMMIT:
                        away.write(data)
                        await answered.wait()
                    break
                away.write(data)
        except ConnectionError:
            pass
        finally:
            back.cancel()
            writer.close()
            away.close()
            with suppress(asyncio.CancelledError):
                await back


@asynccontextmanager
async def postgres_proxy(url: str) -> AsyncIterator[PostgresProxy]:
    """Run a proxy in front of the server of this URL until the block ends."""
    proxy = PostgresProxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
