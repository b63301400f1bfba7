"""The server's side of ASGI, for applications in the same process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote

from .app import ASGIApp, Message, Scope


@dataclass(frozen=True, slots=True)
class Answer:
    """The HTTP answer of an application.

    Attributes:
        status: the HTTP status.
        headers: the headers, with lower-case names.
        body: the raw body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def reason(self) -> str:
        """The ``reason`` in a receiver's JSON body; empty for any other body."""
        try:
            reason = json.loads(self.body)["reason"]
        except (ValueError, LookupError, TypeError, RecursionError):
            return ""
        return reason if isinstance(reason, str) else ""

    def expect(self, status: int, reason: str | None = None) -> Self:
        """Return this answer if it has the expected status and reason.

        Raises:
            AssertionError: it has not; the message shows both answers.
        """
        if self.status != status or reason not in {None, self.reason}:
            wanted = f"{status} {reason}" if reason else str(status)
            raise AssertionError(f"expected the answer {wanted}, got {self.status} {self.reason}")
        return self


async def whole(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body in one piece."""
    yield body


async def exchange(
    app: ASGIApp,
    target: str,
    headers: Iterable[tuple[str, str]],
    body: AsyncIterator[bytes],
    *,
    method: str = "POST",
) -> Answer:
    """Send a request to an application and return its answer.

    Args:
        target: the path, and the query if there is one.
        headers: every header; ``host`` may be left out.
        body: the pieces of the raw body. If it raises ConnectionError, the application receives a
            disconnect, as from a client that went away.

    Raises:
        ConnectionError: the body raised it, or the application ended without an answer.
    """
    path, _, query = target.partition("?")
    given = [(name.lower(), value) for name, value in headers]
    if not any(name == "host" for name, _ in given):
        given.insert(0, ("host", "testserver"))
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given],
        "client": ("127.0.0.1", 50000),
        "server": ("testserver", 80),
    }
    messages: list[Message] = []
    answered = asyncio.Event()
    lost: ConnectionError | None = None
    is_complete = False

    async def receive() -> Message:
        nonlocal lost, is_complete
        if not (lost or is_complete):
            try:
                async for piece in body:
                    return {"type": "http.request", "body": piece, "more_body": True}
            except ConnectionError as error:
                lost = error
            else:
                is_complete = True
                return {"type": "http.request", "body": b"", "more_body": False}
        if not lost:
            await answered.wait()  # the client stays connected until it has the whole answer
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            answered.set()

    await app(scope, receive, send)
    if lost is not None:
        raise lost
    if not messages:
        raise ConnectionError("the application ended without an answer")
    return Answer(
        status=messages[0]["status"],
        headers={
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in messages[0]["headers"]
        },
        body=b"".join(message.get("body", b"") for message in messages[1:]),
    )


class Lifespan:
    """The server's side of the ASGI lifespan protocol, as a context manager.

    If an application ends or raises before it completes its startup, it does not support lifespans.
    It runs without a lifespan then, as it does behind a server.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._task = asyncio.ensure_future(self._app(scope, self._to_app.get, self._from_app.put))
        await self._exchange("startup")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exchange("shutdown")
        if self._task is not None:
            await self._task

    async def _exchange(self, step: str) -> None:
        if self._task is None:
            return
        await self._to_app.put({"type": f"lifespan.{step}"})
        said = asyncio.ensure_future(self._from_app.get())
        await asyncio.wait({said, self._task}, return_when=asyncio.FIRST_COMPLETED)
        is_said = not said.cancel()
        if is_said and said.result()["type"].endswith(".failed"):
            if self._task.done():
                # Prefer the application's own error, which explains more: `await` raises it.
                await self._task
            raise RuntimeError(f"{step} failed: {said.result().get('message', '')}")
        if not is_said:
            ended, self._task = self._task, None
            error = ended.exception()
            if error is not None and step == "shutdown":
                raise error
