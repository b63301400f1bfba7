"""Sockets bound before a server starts, for processes that share them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from .statuses import CannotBegin

DEFAULT_PORT = 8000
HEALTH_TOKEN_VARIABLE = "HOOKONCE_HEALTH_TOKEN"  # noqa: S105 - where it is, not what it is


def bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to every address of a host, or end with what is wrong.

    They listen when a server takes them.
    """

    async def bind() -> list[socket.socket]:
        # As a server alone would do it, so that the same is accepted and refused.
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        try:
            return [one.dup() for one in server.sockets]
        finally:
            server.close()

    try:
        return asyncio.run(bind())
    except OSError as error:
        raise CannotBegin(f"cannot listen on {host!r}, port {port}: {error.strerror}") from error


def url_of(listeners: Sequence[socket.socket]) -> str:
    """Return the address of the first of them, as a URL."""
    host, port = listeners[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
