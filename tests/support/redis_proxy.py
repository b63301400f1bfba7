"""A slow or lossy network between a client and a server, on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

__all__ = ["Proxy", "proxy_to"]


class Proxy:
    """Passes bytes on until a test begins a fault.

    Attributes:
        port: the port at which the proxy listens.
        connections: how many connections the proxy has accepted.

    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.connections = 0
        self._target = target
        self._late: bytes | None = None
        self._is_released = asyncio.Event()
        self._bytes_per_second: float | None = None
        self._swallow: bytes | None = None
        self._is_hole = False
        self._hidden: bytes | None = None
        self._unhidden = 0
        self._muted: bytes | None = None
        self._unmuted = 0
        self._lagging: tuple[bytes, float] = (b"", 0.0)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def lose_the_reply_to(self, command: bytes) -> None:
        """Break the connection once, when the server answers a request with these bytes."""
        self._swallow = command

    def delay(self, command: bytes) -> None:
        """Hold back a request that contains these bytes, and everything after it on its connection.

        The request reaches the server at ``release``, even if the client has closed the connection.
        """
        self._late = command

    def release(self) -> None:
        """Pass on the held request."""
        self._is_released.set()

    def slow_down(self, bytes_per_second: float) -> None:
        """Limit the speed at which replies are passed on."""
        self._bytes_per_second = bytes_per_second

    def lead_to(self, target: int) -> None:
        """Connect new connections to another port; open connections stay."""
        self._target = target

    def swallow_everything(self) -> None:
        """Accept connections, but drop every byte that clients send."""
        self._is_hole = True

    def hide(self, command: bytes, *, after: int = 0) -> None:
        """Drop each request that contains these bytes, except the first ``after`` requests."""
        self._hidden, self._unhidden = command, after

    def mute(self, command: bytes, *, after: int = 0) -> None:
        """Drop each reply to a request with these bytes, except the first ``after`` replies."""
        self._muted, self._unmuted = command, after

    def lag(self, command: bytes, seconds: float) -> None:
        """Delay each later reply to a request with these bytes."""
        self._lagging = command, seconds

    def recover(self) -> None:
        """Close open connections, and pass everything on again."""
        self._is_hole = False
        self._hidden = self._muted = None
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
            if self._late is not None and self._late in asked:
                self._late = None
                await self._is_released.wait()
                writer.write(data)
                await writer.drain()
                writer.close()
                return
            if self._hidden is not None and self._hidden in data:
                self._unhidden -= 1
                if self._unhidden < 0:
                    continue
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
            lagging, seconds = self._lagging
            if seconds and lagging in asked:
                await asyncio.sleep(seconds)
            is_muted = self._muted is not None and self._muted in asked
            asked.clear()
            if is_muted:
                self._unmuted -= 1
                if self._unmuted < 0:
                    continue
            if self._bytes_per_second is not None:
                await asyncio.sleep(len(data) / self._bytes_per_second)
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
