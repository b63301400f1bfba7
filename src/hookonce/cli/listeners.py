"""The default port, the variable of the health token, and sockets for several processes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence

from .statuses import CannotBegin

DEFAULT_PORT = 8000
HEALTH_TOKEN_VARIABLE = "HOOKONCE_HEALTH_TOKEN"  # noqa: S105 - the variable's name, not a token


def bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to all addresses of a host, or exit with an error.

    They do not listen yet.
    """

    async def bind() -> list[socket.socket]:
        # Let asyncio bind, so that the same hosts and ports are valid as for a single process.
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        try:
            return [one.dup() for one in server.sockets]
        finally:
            server.close()

    try:
        return asyncio.run(bind())
    except OSError as error:
        why = os.strerror(error.errno) if error.errno is not None else str(error)
        if error.errno == errno.EADDRINUSE:
            why += (
                f"; stop the process that uses it (ss -ltnp 'sport = :{port}' names it), or choose"
                " another --port"
            )
        raise CannotBegin(f"cannot listen on {host!r}, port {port}: {why}") from error


def url_of(listeners: Sequence[socket.socket]) -> str:
    """Return the address of the first socket as a URL."""
    host, port = listeners[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
