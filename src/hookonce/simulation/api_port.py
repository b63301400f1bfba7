"""A loopback port for the API of the emulated service.

Handlers call the API with any HTTP library, in the event loop or in threads, so the API needs a
real port. A thread accepts connections in real time: idle connections and their time limits do not
concern virtual time. Each request is answered in the simulation's event loop, where the emulated
service lives. The handler that waits for the answer is in a block of ``VirtualLoop.outside``, so
virtual time stands still in the meantime.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex
from typing import Self

from pydantic_core import to_json

from ..http.app import ASGIApp
from ..http.inprocess import Answer, exchange, whole
from ..resources import API_KEY_VARIABLE, API_URL_VARIABLE, ErrorBody, ErrorResponse
from .virtual_loop import VirtualLoop

# A handler that blocks the event loop while it calls the API would wait for ever, since the loop
# answers the call. This limit ends its wait.
_LOOP_SECONDS = 10.0
# The server checks at this interval whether it must stop, and the end of a simulation waits for it.
_POLL_SECONDS = 0.02

_IS_BLOCKED = (
    "The event loop did not take this request: a handler blocks it. Call the API by async code, or"
    " make the handler a plain function, which runs in a thread."
)
_IS_IDLE = "No simulation is running; the emulated service answers only during a simulation."


class ApiPort:
    """A loopback port for the API of emulated services; a context manager.

    In the block, the environment variables of the client (``HOOKONCE_API_URL`` and
    ``HOOKONCE_API_KEY``) name the port and a key for it.
    """

    def __init__(self) -> None:
        self._key = f"example_sk_{token_hex(20)}"
        self._open = ExitStack()
        self._behind: tuple[ASGIApp, VirtualLoop, str] | None = None
        self.requests: int = 0

    def __enter__(self) -> Self:
        server = _Server(self)
        thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_SECONDS,), name="hookonce-api", daemon=True
        )
        thread.start()
        self._open.callback(thread.join)
        self._open.callback(server.server_close)
        self._open.callback(server.shutdown)
        port = server.server_address[1]
        self._open.enter_context(
            _in_environment(
                {API_URL_VARIABLE: f"http://127.0.0.1:{port}", API_KEY_VARIABLE: self._key}
            )
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @contextmanager
    def leads_to(self, api: ASGIApp, loop: VirtualLoop, key: str) -> Iterator[None]:
        """Let an API answer the requests during the block.

        Args:
            loop: the event loop of the API.
            key: the API's own key, which replaces the key in the requests: that key comes from the
                environment.
        """
        self._behind, self.requests = (api, loop, key), 0
        try:
            yield
        finally:
            self._behind = None

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        """Answer a request from a thread; raise OSError if the simulation ends before that."""
        if self._behind is None:
            return _unavailable("simulation.not_running", _IS_IDLE)
        api, loop, key = self._behind
        headers = {name: value.replace(self._key, key) for name, value in headers.items()}
        begun = threading.Event()

        async def ask() -> Answer:
            begun.set()
            self.requests += 1
            return await exchange(api, target, headers.items(), whole(body), method=method)

        answering = asyncio.run_coroutine_threadsafe(ask(), loop)
        if not begun.wait(_LOOP_SECONDS) and answering.cancel():
            return _unavailable("simulation.loop_blocked", _IS_BLOCKED)
        try:
            return answering.result()
        except CancelledError:
            raise ConnectionAbortedError("the simulation has ended") from None


class _Server(ThreadingHTTPServer):
    """Serves a port; each connection has a thread."""

    daemon_threads = True
    block_on_close = False  # do not wait for idle connections of clients
    request_queue_size = 128

    def __init__(self, port: ApiPort) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.port = port

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: clients close connections, and a simulation may end during a request."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # send the head and body of an answer in one packet
    server: _Server

    def _answer(self) -> None:
        if "transfer-encoding" in self.headers:
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.port.answer(self.command, self.path, headers, body)
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - http.server calls methods of these names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class has this parameter name
        """Print nothing."""


def _unavailable(code: str, message: str) -> Answer:
    error = ErrorBody(code=code, kind="internal", message=message)
    content = to_json(ErrorResponse(error=error).model_dump(mode="json", exclude_none=True))
    headers = {"content-type": "application/json", "content-length": str(len(content))}
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, headers, content)


@contextmanager
def _in_environment(settings: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
