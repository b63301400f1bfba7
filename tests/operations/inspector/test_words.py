"""The pages and the commands use the same words."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from cli.running import invoke
from markupsafe import Markup

from hookonce import Inbox
from hookonce.events import CommentReceived
from hookonce.stores.protocols import InboxStore
from hookonce.stores.values import Delivery, Stored, new_token
from hookonce.testing import make_event, signed_request

from .inspecting import SECRET, a_receiver, inspected

pytestmark = pytest.mark.anyio


async def test_states_of_the_inbox_are_those_of_the_command(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hookonce.db"
    receiver = a_receiver(store=url, inbox=Inbox(embedded=False))
    store = receiver.store
    assert isinstance(store, InboxStore)
    async with inspected(receiver) as here:
        for name in ("evt_waiting", "evt_flying", "evt_ready"):
            assert await store.enqueue(
                Delivery("default", name, "a.b", 1e9, b"{}"), new_token()
            ) == (Stored())
        batch = await store.fetch(2, 60, endpoint="default", worker="w", token=new_token())
        await store.retry(batch.fetched[0].claim, 3600)
        page = await here.page("/inbox")
        shown = re.findall(r'<span class="badge [a-z]+">(.*?)</span>', page)
        result = await asyncio.to_thread(invoke, "inbox", "list", url, "--json")
        listed = [json.loads(line)["state"] for line in result.output.splitlines()]
        stats = await asyncio.to_thread(invoke, "inbox", "stats", url)
        facts = " ".join(Markup(page).striptags().split())
    assert shown == listed == ["waiting", "in flight", "ready"]
    assert "in flight: 1\n" in stats.output
    assert "1 in flight 3 in the inbox, 1 worker" in facts
    assert "depth: 3\n" in stats.output


async def test_secrets_are_counted_from_one_as_by_the_command(tmp_path: Path) -> None:
    request = signed_request(make_event(CommentReceived), SECRET)
    (tmp_path / "body").write_bytes(request.body)
    (tmp_path / "headers").write_text(
        "".join(f"{name}: {value}\n" for name, value in request.headers.items())
    )
    saved = ["--body", str(tmp_path / "body"), "--headers", str(tmp_path / "headers")]
    result = await asyncio.to_thread(invoke, "verify", *saved, secrets=[SECRET])
    async with inspected(a_receiver()) as here:
        await here.deliver(make_event(CommentReceived))
        text = " ".join(Markup(await here.page("/deliveries/1")).striptags().split())
    assert "with secret 1 of 1" in result.output
    assert re.search(r"Secret ?number 1 ", text)
