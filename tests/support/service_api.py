"""Calls of the emulated service's API in this process, and checks of every answer."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import httpx2

from hookonce.emulator import EmulatedService
from hookonce.resources import ErrorKind

__all__ = ["PUBLIC_URL", "calling", "checked_error", "create", "wanted"]

PUBLIC_URL = "https://8.8.8.8/hooks"
"""An address that needs no name server; nothing is ever sent to it."""

_KINDS = set(get_args(get_args(get_args(ErrorKind)[0])[0]))


@asynccontextmanager
async def calling(
    service: EmulatedService, key: str | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client of the service's API; by default it has a new admin key."""
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(service.api),
        base_url="https://service.test",
        headers={"authorization": f"Bearer {key or service.new_key()}"},
    ) as client:
        yield client


def wanted(**changes: Any) -> dict[str, Any]:
    """Return a valid body that creates an endpoint, with these changes."""
    return {"url": PUBLIC_URL, "events": ["comment.received"], "description": "mine", **changes}


async def create(api: httpx2.AsyncClient, **changes: Any) -> dict[str, Any]:
    """Create an endpoint, and return it."""
    response = await api.post("/v1/webhooks", json=wanted(**changes))
    assert response.status_code == 201, response.text
    data: dict[str, Any] = response.json()["data"]
    return data


def checked_error(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Check the rules that every error must follow, and return the error of a failed request."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.content)
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert (
        {"code", "kind", "message"} <= set(error) <= {"code", "kind", "message", "hint", "details"}
    )
    assert error["code"] == code
    assert error["kind"] in _KINDS
    assert error["message"].endswith(".")
    assert None not in error.values()
    assert "whsec_" not in response.text
    return error
