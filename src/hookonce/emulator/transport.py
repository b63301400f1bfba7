"""How a request reaches its receiver: by HTTP, or within this process; and what a bad network does.

Nothing here follows a redirect, and nothing here knows a time limit: both are the service's rules.
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

# An application that has not ended a request by then is not going to.
_LEAVING_SECONDS = 10.0


class Break(Enum):
    """Where a connection breaks."""

    IN_THE_BODY = "in the body"
    BEFORE_THE_ANSWER = "before the answer"


@dataclass(frozen=True, slots=True)
class Network:
    """How the way to the receiver is at the moment.

    Attributes:
        body_seconds: over how long the body arrives.
        breaks: where the connection breaks, if it does.

    """

    body_seconds: float = 0.0
    breaks: Break | None = None


CALM = Network()


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A POST as it goes over the wire.

    Attributes:
        url: where to.
        headers: every header, names in lower case.
        body: the raw bytes.

    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class Transport(Protocol):
    """Takes requests to receivers."""

    async def post(self, request: OutgoingRequest, network: Network = CALM) -> Answer:
        """Return the answer; ConnectionError where there is none to be had."""
        ...


async def pieces(body: bytes, network: Network) -> AsyncIterator[bytes]:
    """Yield a body as the network lets it through; raise ConnectionResetError where it breaks."""
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
    """Applications in this process, each by the URL it stands for.

    They are served as a server would: one that raises has answered 500, and a request that nobody
    waits for any more goes on within the application. At the end it is waited for, ten seconds
    long, and then cancelled.

    Args:
        others: opens what reaches every other URL, once that is needed.

    """

    def __init__(self, others: Callable[[], AbstractAsyncContextManager[Transport]]) -> None:
        self._open_others = others
        self._others: Transport | None = None
        self._apps: dict[str, ASGIApp] = {}
        self._under_way: set[asyncio.Task[Answer]] = set()
        self._open = AsyncExitStack()

    def mount(self, url: str, app: ASGIApp) -> None:
        """Let an application stand for a URL; its lifespan runs while this is entered."""
        self._apps[url] = app

    async def __aenter__(self) -> Self:
        for app in {id(app): app for app in self._apps.values()}.values():
            await self._open.enter_async_context(Lifespan(app))
        return self

    async def __aexit__(self, *_: object) -> None:
        if left := set(self._under_way):
            left = (await asyncio.wait(left, timeout=_LEAVING_SECONDS))[1]
        if left:
            for call in left:
                call.cancel()
            await asyncio.wait(left)
        self._others = None  # closed now; entered again, it opens another
        await self._open.aclose()

    async def post(self, request: OutgoingRequest, network: Network = CALM) -> Answer:
        """Return the answer; ConnectionError where there is none to be had."""
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
    except Exception:  # noqa: BLE001 - whatever it was, a server would answer 500
        _log.exception("the application raised; that counts as an answer of 500")
        return Answer(500, {}, b"")
