"""The parts of a request: its path, its client and its body."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request

from ...http.app import Scope
from ...http.guard import app_path

_SAFE_IN_PATHS = "/!$&'()*+,:;=@~"
_MOST_BODY_BYTES = 8192
_BODY_SECONDS = 10.0


def root_of(scope: Scope) -> str:
    """Return the quoted path at which the inspector is mounted; it never begins with ``//``."""
    root = scope.get("root_path", "").strip("/")
    return f"/{quote(root, safe=_SAFE_IN_PATHS)}" if root else ""


def url_of(request: Request) -> str:
    """Return the path and the query string of a request."""
    scope = request.scope
    path, query = root_of(scope) + app_path(scope), scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def client_of(request: Request) -> str | None:
    """Return the address of a client; None if the server gives none."""
    return request.client.host if request.client else None


async def body_of(request: Request) -> bytes:
    """Return the body of a request; an empty body if it is too large, slow or incomplete."""
    body = b""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_BODY_BYTES:
                    return b""
    except (TimeoutError, ClientDisconnect):
        return b""
    return body
