"""A receiver with its inspector on a real server, and visitors."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2
from starlette.types import ASGIApp, Receive, Scope, Send
from support.servers import HttpSender, Site, serving
from support.waiting import PATIENCE_SECONDS

from hookonce import Receiver
from hookonce.events import Event
from hookonce.http.app import application, elsewhere
from hookonce.operations.inspector import Inspector
from hookonce.testing import signed_request
from hookonce.verification.secrets import new_secret

__all__ = ["PATH", "SECRET", "TOKEN", "Inspected", "a_receiver", "acting", "inspected", "seen_from"]

SECRET = new_secret()
TOKEN = "a token for the inspector of these tests"
PATH = "/inspector"


def a_receiver(**options: Any) -> Receiver:
    return Receiver(**{"secrets": [SECRET], "store": "memory://", **options})


def acting(site: Site, **headers: str) -> dict[str, str]:
    """Return the headers of a request from the inspector's own page."""
    own = {"origin": site.url}
    return {**own, **{name.replace("_", "-"): value for name, value in headers.items()}}


@dataclass(frozen=True)
class Inspected:
    """A running server: a sender to it, and a visitor of its inspector."""

    site: Site
    inspector: Inspector
    sender: HttpSender
    visitor: httpx2.AsyncClient

    async def page(self, path: str = "/", *, status: int = 200) -> str:
        response = await self.visitor.get(f"{PATH}{path}")
        assert response.status_code == status, response.text
        return response.text

    async def deliver(self, event: Event[Any], **headers: str) -> httpx2.Response:
        """Deliver an event with headers that an ordinary client would not send."""
        request = signed_request(event, SECRET)
        every = {**request.headers, **{k.replace("_", "-"): v for k, v in headers.items()}}
        encoded = {name.encode(): value.encode() for name, value in every.items()}
        return await self.visitor.post("/webhooks", content=request.body, headers=encoded)

    async def replay(self, event_id: str) -> httpx2.Response:
        return await self.visitor.post(
            f"{PATH}/dead/replay", json={"id": event_id}, headers=acting(self.site)
        )


@asynccontextmanager
async def inspected(
    receiver: Receiver, *, client: str | None = None, **options: Any
) -> AsyncIterator[Inspected]:
    """Serve a receiver and its inspector; every client seems to have the given address.

    The visitor has a session; if the options contain a token, the visitor has to log in.
    """
    inspector = Inspector(receiver, **{"token": TOKEN, **options})
    otherwise = inspector.below(PATH, elsewhere)
    app = application(receiver.routes("/webhooks"), receiver.lifespan, otherwise)
    host = next(iter(options.get("hosts", ["localhost"])))
    if client is not None:
        app = seen_from(client, app)
    async with (
        serving(app) as site,
        httpx2.AsyncClient(base_url=site.url, timeout=PATIENCE_SECONDS, verify=False) as visitor,
    ):
        if "token" not in options:
            entered = await visitor.get(f"{PATH}/?token={quote(TOKEN)}", headers={"host": host})
            assert entered.status_code == 303, entered.text
        yield Inspected(site, inspector, HttpSender(visitor, SECRET), visitor)


def seen_from(client: str, app: ASGIApp) -> ASGIApp:
    """Return an application that sees this client address, since in tests all clients are local."""

    async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
        changed: Mapping[str, Any] = {"client": (client, 50000)} if scope["type"] == "http" else {}
        await app({**scope, **changed}, receive, send)

    return elsewhere
