"""Sends requests to receivers, over HTTP or in this process, with simulated network faults.

The service's rules are not here: nothing follows a redirect or has a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, Self
from urllib.parse import urlsplit

from ..http.app import ASGIApp
from ..http.inprocess import Answer, Lifespan, exchange
from ..logs import get_logger

_log = get_logger("hookonce.emulator")

_PIECES = 4

# The time that running requests have to end when the transport closes, before it cancels them.
_CLOSING_SECONDS = 10.0


class Break(Enum):
    """The point at which a connection breaks."""

    IN_THE_BODY = "in the body"
    BEFORE_THE_ANSWER = "before the answer"


@dataclass(frozen=True, slots=True)
class Network:
    """Network faults during a request.

    Attributes:
        body_seconds: how long the body takes.
        breaks: where the connection breaks, if it does.
    """

    body_seconds: float = 0.0
    breaks: Break | None = None


CALM = Network()


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A POST request; the names of its headers are in lower case."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class Transport(Protocol):
    """Sends requests to receivers."""

    async def post(self, request: OutgoingRequest, network: Network = CALM) -> Answer:
        """Return the answer; ConnectionError if no answer arrives."""
        ...


async def pieces(body: bytes, network: Network) -> AsyncIterator[bytes]:
    """Yield the pieces of a body; raise ConnectionResetError where the connection breaks."""
    if network == CALM:
        yield body
        return
    size = max(1, -(-len(body) // _PIECES))
    for start in range(0, max(1, len(body)), size):
        if network.breaks is Break.IN_THE_BODY and start >= len(body) / 2:
            break
        if network.body_seconds:
            await asyncio.sleep(network.body_seconds / _PIECES)
        yield body[start : start + size]
    if network.breaks is Break.IN_THE_BODY:
        raise ConnectionResetError("the connection broke in the middle of the body")


class InProcess:
    """Sends requests to applications in this process, each mounted at a URL.

    Applications run as under a server: an exception counts as an answer of 500, and a request
    continues even if its sender no longer waits. When the transport closes, such requests get ten
    seconds; then they are cancelled.

    Args:
        others: opens the transport for all other URLs, when it is first needed.
    """

    def __init__(self, others: Callable[[], AbstractAsyncContextManager[Transport]]) -> None:
        self._open_others = others
        self._others: Transport | None = None
        self._apps: dict[str, ASGIApp] = {}
        self._under_way: set[asyncio.Task[Answer]] = set()
        self._open = AsyncExitStack()

    def mount(self, url: str, app: ASGIApp) -> None:
        """Mount an application at a URL; its lifespan runs while this transport is open."""
        self._apps[url] = app

    async def __aenter__(self) -> Self:
        for app in {id(app): app for app in self._apps.values()}.values():
            await self._open.enter_async_context(Lifespan(app))
        return self

    async def __aexit__(self, *_: object) -> None:
        if left := set(self._under_way):
            left = (await asyncio.wait(left, timeout=_CLOSING_SECONDS))[1]
        if left:
            for call in left:
                call.cancel()
            await asyncio.wait(left)
        self._others = None  # `self._open.aclose()` closes the transport for other URLs
        await self._open.aclose()

    async def post(self, request: OutgoingRequest, network: Network = CALM) -> Answer:
        app = self._apps.get(request.url)
        if app is None:
            if self._others is None:
                self._others = await self._open.enter_async_context(self._open_others())
            return await self._others.post(request, network)
        headers = {"content-length": str(len(request.body)), **request.headers}
        body = pieces(request.body, network)
        path = urlsplit(request.url).path or "/"
        call = asyncio.create_task(_served(app, path, headers, body))
        self._under_way.add(call)
        call.add_done_callback(self._under_way.discard)
        answer = await asyncio.shield(call)
        if network.breaks is Break.BEFORE_THE_ANSWER:
            raise ConnectionResetError("the connection broke before the answer")
        return answer


async def _served(
    app: ASGIApp, path: str, headers: Mapping[str, str], body: AsyncIterator[bytes]
) -> Answer:
    try:
        return await exchange(app, path, headers.items(), body)
    except ConnectionError:
        raise
    except Exception:  # noqa: BLE001 - like a server, answer 500 to any exception
        _log.exception("the application raised; that counts as an answer of 500")
        return Answer(500, {}, b"")
