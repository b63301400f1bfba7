"""Tests of social_inbox.py with its real store, in one process and without a network.

python -m pytest examples/test_social_inbox.py
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest

from hookonce.events import ChannelUnhealthy, CommentReceived, MessageReceived
from hookonce.testing import TestSender, make_event
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRETS = {tenant: new_secret() for tenant in ("acme", "bakery", "clinic")}
NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def social(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the example, with new secrets, a new store and a new database."""
    for tenant, secret in SECRETS.items():
        monkeypatch.setenv(f"{tenant.upper()}_SECRETS", secret)
    monkeypatch.setenv("STORE_URL", f"sqlite:///{tmp_path / 'hookonce.db'}")
    monkeypatch.setenv("SOCIAL_DATABASE", str(tmp_path / "social.db"))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.delitem(sys.modules, "social_inbox", raising=False)
    return import_module("social_inbox")


class Office:
    """A sender for each tenant, and a client of the example's API."""

    def __init__(self, social: ModuleType) -> None:
        self._social = social
        transport = httpx2.ASGITransport(app=social.app)
        self._client = httpx2.AsyncClient(transport=transport, base_url="http://inbox")
        self.senders = {
            tenant: TestSender(social.app, secrets=secret, path=f"/webhooks/{tenant}")
            for tenant, secret in SECRETS.items()
        }

    async def worked(self) -> None:
        """Wait until the workers have handled all events."""
        async with asyncio.timeout(20):
            for receiver in self._social.receivers.values():
                while (await receiver.stats()).depth:  # noqa: ASYNC110 - an inbox has no asyncio.Event
                    await asyncio.sleep(0.01)

    async def get(self, path: str) -> Any:
        answer = await self._client.get(path)
        return answer.raise_for_status().json()

    async def texts(self, tenant: str) -> list[str]:
        return [item["text"] for item in await self.get(f"/tenants/{tenant}/items")]


@asynccontextmanager
async def working(social: ModuleType) -> AsyncGenerator[Office]:
    """Run the receivers and their workers in this process."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(social.lifespan(social.app))
        for receiver in social.receivers.values():
            await stack.enter_async_context(receiver.working())
        yield Office(social)


async def test_each_tenant_has_only_its_own_items(social: ModuleType) -> None:
    async with working(social) as office:
        for tenant, sender in office.senders.items():
            event = make_event(CommentReceived, event_id="evt_1", data={"text": f"Hello {tenant}"})
            (await sender.send(event)).expect(202, "stored")
        await office.senders["acme"].send(make_event(MessageReceived, created_at=NOON))
        await office.worked()
        assert await office.texts("bakery") == ["Hello bakery"]
        assert await office.texts("clinic") == ["Hello clinic"]
        assert await office.texts("acme") == ["Hello, are you open on Sunday?", "Hello acme"]


async def test_an_event_delivered_again_adds_no_item(social: ModuleType) -> None:
    async with working(social) as office:
        event = make_event(CommentReceived, data={"text": "Once", "author_username": "ines"})
        await office.senders["bakery"].send_copies(event, 5)
        await office.worked()
        (await office.senders["bakery"].send(event, attempt=2)).expect(200, "duplicate")
        [item] = await office.get("/tenants/bakery/items")
        assert (item["kind"], item["author"], item["text"]) == ("comment", "ines", "Once")


async def test_the_secret_of_one_tenant_does_not_verify_for_another(social: ModuleType) -> None:
    async with working(social) as office:
        event = make_event(CommentReceived)
        forged = await office.senders["acme"].send(event, secrets=SECRETS["clinic"])
        forged.expect(401, "no_matching_signature")
        await office.worked()
        assert await office.texts("acme") == []


async def test_an_older_state_of_a_channel_does_not_overwrite_a_newer(social: ModuleType) -> None:
    async with working(social) as office:
        newer = make_event(ChannelUnhealthy, created_at=NOON, data={"status": "needs_reconnect"})
        earlier = NOON - timedelta(hours=1)
        older = make_event(ChannelUnhealthy, created_at=earlier, data={"status": "error"})
        for event in (newer, older):
            (await office.senders["clinic"].send(event)).expect(202, "stored")
            await office.worked()
        shown = await office.get("/tenants/clinic/channels")
        assert shown == {"harbour.bakery": "needs_reconnect"}


async def test_spam_is_a_dead_letter_of_its_tenant_until_it_is_discarded(
    social: ModuleType,
) -> None:
    async with working(social) as office:
        event = make_event(CommentReceived, data={"text": "FREE FOLLOWERS here"})
        await office.senders["bakery"].send(event)
        await office.worked()
        assert await office.texts("bakery") == []
        bakery = social.receivers["bakery"].dead
        [dead_letter] = await bakery.list()
        assert (dead_letter.delivery.event_id, dead_letter.reason, dead_letter.error) == (
            event.id,
            "rejected",
            "inbox.comment: Reject: spam",
        )
        assert await social.receivers["acme"].dead.list() == []
        assert await bakery.discard(event.id)
        assert await bakery.list() == []
