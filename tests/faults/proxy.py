"""A TCP proxy between a store and its server that behaves like a bad network."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal, TypeAlias

from support.waiting import until

__all__ = ["Fault", "Proxy", "proxy"]

Fault: TypeAlias = Literal["none", "swallow", "black-hole", "delay"]

_CHUNK_BYTES = 64 * 1024


class Proxy:
    """A TCP proxy that forwards all bytes until a test begins a fault.

    Attributes:
        port: where it listens.
        target: the port it connects to.
        faults: how many faults it has made.
        delay_seconds: the shortest and the longest delay of a chunk of bytes.

    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.faults = 0
        self.delay_seconds = (0.05, 0.4)
        self._fault: Fault = "none"
        self._healed = asyncio.Event()
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()

    def reset(self) -> None:
        """Reset every connection."""
        self.faults += 1
        for pair in list(self._pairs):
            for writer in pair:
                _reset(writer)

    def begin(self, fault: Fault) -> None:
        """Drop replies, block all traffic, or delay it; the fault lasts until ``heal``."""
        self.faults += 1
        self._fault = fault
        self._healed.clear()

    def heal(self) -> None:
        """Pass bytes on again; reset the connections that have lost bytes."""
        self._fault = "none"
        self._healed.set()

    def is_idle(self) -> bool:
        """Return whether no connection is open."""
        return not self._pairs

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes between a client and the server."""
        try:
            there, out = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            _reset(writer)
            return
        pair = (writer, out)
        self._pairs.add(pair)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, out, is_reply=False))
                tasks.create_task(self._pump(there, writer, is_reply=True))
        except* OSError:
            pass
        finally:
            self._pairs.discard(pair)
            for side in pair:
                _reset(side)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            if self._fault == "delay":
                await asyncio.sleep(random.uniform(*self.delay_seconds))
            elif self._fault == "black-hole" or (self._fault == "swallow" and is_reply):
                await self._healed.wait()
                break
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError


def _reset(writer: asyncio.StreamWriter) -> None:
    opened = writer.get_extra_info("socket")
    with suppress(OSError, AttributeError):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def proxy(target: int) -> AsyncIterator[Proxy]:
    """Run a proxy in front of a port until the block ends."""
    running = Proxy(target)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        running.heal()
        running.reset()
        await until(running.is_idle, what="every connection has ended")
