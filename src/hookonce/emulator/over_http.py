"""Sends requests over HTTP with httpx2."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from functools import cache
from typing import Self

import httpx2

from ..http.inprocess import Answer
from .transport import CALM, Break, Network, OutgoingRequest, pieces


@cache
def _certificates() -> ssl.SSLContext:
    """Return the system's certificates, which take about 50 ms to read."""
    return httpx2.create_ssl_context(trust_env=False)


class OverHttp:
    """Sends requests over HTTP; an async context manager."""

    def __init__(self) -> None:
        # trust_env=False, because a proxy cannot reach a receiver on this machine. timeout=None,
        # because the service limits the time of the whole attempt. No limit of connections, because
        # a request that waits for a connection would seem to be answered late.
        self._client = httpx2.AsyncClient(
            timeout=None,
            follow_redirects=False,
            trust_env=False,
            verify=_certificates(),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def post(self, request: OutgoingRequest, network: Network = CALM) -> Answer:
        headers = {"content-length": str(len(request.body)), **request.headers}
        sent = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            async for piece in pieces(request.body, network):
                yield piece
            sent.set()

        content = request.body if network == CALM else body()
        call = asyncio.create_task(self._client.post(request.url, content=content, headers=headers))
        is_sent = asyncio.create_task(sent.wait())
        try:
            if network.breaks is Break.BEFORE_THE_ANSWER:
                await asyncio.wait({call, is_sent}, return_when=asyncio.FIRST_COMPLETED)
                if is_sent.done():
                    raise ConnectionResetError("the connection broke before the answer")
            response = await call
        except httpx2.HTTPError as error:
            raise ConnectionError(f"no answer: {type(error).__name__}") from error
        except httpx2.InvalidURL as error:
            raise ConnectionError(f"not a URL to deliver to: {request.url!r}") from error
        finally:
            call.cancel()
            is_sent.cancel()
            await asyncio.wait({call, is_sent})
        return Answer(response.status_code, dict(response.headers), response.content)
