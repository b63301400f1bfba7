"""A network between a client and a server that swallows replies, or everything, on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

__all__ = ["Proxy", "proxy_to"]


class Proxy:
    """Passes bytes on, unless it was told otherwise.

    Attributes:
        port: where it listens.
        connections: how many were accepted.

    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.connections = 0
        self._target = target
        self._swallow: bytes | None = None
        self._is_hole = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def lose_the_reply_to(self, command: bytes) -> None:
        """Break the connection once: when the server answers a request with such bytes in it."""
        self._swallow = command

    def swallow_everything(self) -> None:
        """Accept connections and answer nothing from now on."""
        self._is_hole = True

    def recover(self) -> None:
        """Break what is open, and pass everything on again."""
        self._is_hole = False
        self.break_connections()

    def break_connections(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(server_writer)
            asked = bytearray()
            await asyncio.gather(
                self._requests(reader, server_writer, asked),
                self._replies(server_reader, writer, asked),
            )

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytearray
    ) -> None:
        while data := await reader.read(65_536):
            asked += data
            if not self._is_hole:
                writer.write(data)
        writer.transport.abort()

    async def _replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytearray
    ) -> None:
        while data := await reader.read(65_536):
            if self._swallow is not None and self._swallow in asked:
                self._swallow = None
                break
            asked.clear()
            if not self._is_hole:
                writer.write(data)
        writer.transport.abort()

    async def aclose(self) -> None:
        self.break_connections()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[Proxy]:
    """Run a proxy to a port of this machine until the block ends."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.aclose()
