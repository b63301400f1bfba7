"""A service with a workspace from a file, and a receiver that keeps all its events."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any

import httpx2

from hookonce.clock import system_clock
from hookonce.emulator import EmulatedService, VirtualClock, WorkspaceData
from hookonce.http.app import Receive, Scope, Send

from .exchanges import NOON, workspace_file
from .service_api import calling

__all__ = ["Bakery", "bakery", "iso"]


class Bakery:
    """The service with the workspace ``bakery``, on a Saturday at noon; sends API requests.

    Attributes:
        service: the emulated service.
        api: a client of the service, with an admin's key.
        events: the events that the service has delivered, oldest first.

    """

    def __init__(self, data: WorkspaceData, seed: int, speed: float | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.service = EmulatedService(
            self._receive,
            data=data,
            clock=system_clock if speed else VirtualClock(NOON),
            seed=seed,
            speed=speed,
        )
        self.api: httpx2.AsyncClient

    async def _receive(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if scope["type"] == "lifespan":
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.events.append(json.loads(message["body"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    def told(self) -> list[tuple[str, str]]:
        """Return each event's type, and its channel's id, or the data's id without a channel."""
        return [(e["type"], e["data"].get("channelId", e["data"]["id"])) for e in self.events]

    async def create(self, mode: str, *channels: str, **changes: Any) -> str:
        """Create a post with the key of an admin, and return its id."""
        targets = [{"channelId": one, "caption": "Hello."} for one in channels or ["ch_insta"]]
        body = {"mode": mode, "targets": targets, "mediaIds": ["med_oven"], **changes}
        response = await self.api.post("/v1/posts", json=body)
        assert response.status_code == 201, response.text
        return str(response.json()["data"]["id"])

    async def post(self, post_id: str) -> dict[str, Any]:
        """Return a post as the API shows it."""
        response = await self.api.get(f"/v1/posts/{post_id}")
        assert response.status_code == 200, response.text
        data: dict[str, Any] = response.json()["data"]
        return data

    async def states(self, post_id: str) -> tuple[str, list[str]]:
        """Return the status of a post, and the status of each of its targets."""
        post = await self.post(post_id)
        return post["status"], [target["status"] for target in post["targets"]]

    async def as_role(self, role: str, method: str, path: str, body: Any = None) -> httpx2.Response:
        """Make a call with a new key that has this role."""
        key = self.service.new_key(role)
        response = await self.api.request(
            method, path, json=body, headers={"authorization": f"Bearer {key}"}
        )
        self.service.revoke_key(key)
        return response


@cache
def _described() -> WorkspaceData:
    return WorkspaceData.load(workspace_file("bakery"))


@asynccontextmanager
async def bakery(
    *, seed: int = 1, speed: float | None = None, **changes: Any
) -> AsyncIterator[Bakery]:
    """Open the service with the workspace ``bakery``, but without the workspace's endpoints."""
    here = Bakery(_described().model_copy(update={"webhooks": [], **changes}), seed, speed)
    async with here.service, calling(here.service) as here.api:
        yield here


def iso(seconds_from_noon: float) -> str:
    """Return a moment of that day in the API's format."""
    moment = datetime.fromtimestamp(NOON + seconds_from_noon, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
