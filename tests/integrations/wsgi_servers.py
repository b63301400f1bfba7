"""Real threaded WSGI servers on free loopback ports."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socketserver import BaseServer, ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from werkzeug.serving import WSGIRequestHandler as WerkzeugRequestHandler
from werkzeug.serving import make_server as make_werkzeug_server

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

__all__ = ["served_by_werkzeug", "served_by_wsgiref"]


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class has this parameter name
        pass


class _SilentWerkzeug(WerkzeugRequestHandler):
    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 - the base class has this parameter name
        pass


@asynccontextmanager
async def served_by_wsgiref(app: "WSGIApplication") -> AsyncIterator[int]:
    """Serve with the standard library's server."""
    server = make_server("127.0.0.1", 0, app, _ThreadingServer, _Silent)
    async with _running(server):
        yield server.server_port


@asynccontextmanager
async def served_by_werkzeug(app: "WSGIApplication") -> AsyncIterator[int]:
    """Serve with Werkzeug's server, as ``flask run`` does; it reads chunked bodies."""
    server = make_werkzeug_server(
        "127.0.0.1", 0, app, threaded=True, request_handler=_SilentWerkzeug
    )
    async with _running(server):
        yield server.server_port


@asynccontextmanager
async def _running(server: BaseServer) -> AsyncIterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        await asyncio.to_thread(thread.join)
        server.server_close()
