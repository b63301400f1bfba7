"""An attempt that began no handler does not count, and leaves no claim behind."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import answer_of, deliver, nothing_in_flight, receiver_on
from support.handlers import on, succeed
from support.stores import FaultyStore
from support.waiting import until

from hookonce import Context
from hookonce.events import CommentReceived
from hookonce.stores import open_store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, delivery_key, new_token
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio


async def test_a_request_that_is_cancelled_while_its_event_is_claimed_leaves_no_claim_behind(
    store_url: str,
) -> None:
    store = FaultyStore(open_store(store_url, clock=time.time))
    receiver, contexts = receiver_on(store), list[Context]()

    async def note(_: CommentReceived, context: Context) -> None:
        contexts.append(context)

    on(receiver, "note", note)
    async with receiver:
        event = make_event(CommentReceived)
        gate = store.hang("claim")
        request = asyncio.create_task(deliver(receiver, event))
        await until(lambda: store.calls["claim"])
        request.cancel()
        await asyncio.wait({request})
        gate.set()
        assert answer_of(await deliver(receiver, event, attempt=2)) == (200, "duplicate")
    assert [context.attempt for context in contexts] == [1]


async def test_an_answer_of_the_store_that_is_lost_costs_no_attempt(durable_url: str) -> None:
    store = _Deaf(open_store(durable_url, clock=time.time))
    receiver = receiver_on(store, lease_seconds=20, store_seconds=0.5)
    contexts = list[Context]()

    async def note(_: CommentReceived, context: Context) -> None:
        contexts.append(context)

    on(receiver, "note", note)
    async with receiver:
        event = make_event(CommentReceived)
        store.deaf = True
        assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
        store.deaf = False
        await nothing_in_flight(durable_url)
        assert answer_of(await deliver(receiver, event, attempt=2)) == (200, "handled")
    assert [context.attempt for context in contexts] == [1]


class _Deaf(FaultyStore):
    """A store that grants a claim, but does not answer while it is ``deaf``."""

    deaf = False

    async def claim(self, key: Any, token: Any, lease: float) -> Any:
        result = await super().claim(key, token, lease)
        if self.deaf:
            await asyncio.Event().wait()
        return result


async def test_a_shutdown_before_the_first_handler_costs_no_attempt(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = receiver_on(store, drain_seconds=0.05)
    on(receiver, "note", succeed)
    store.hang("keep")
    async with receiver:
        event = make_event(CommentReceived)
        waiting = asyncio.create_task(deliver(receiver, event, attempt=9))
        await until(lambda: store.calls["keep"])
    assert (await waiting).reason == "shutting_down"
    after = SQLiteStore(tmp_path / "hooks.db")
    claim = await after.claim(delivery_key("default", event.id), new_token(), 30)
    await after.aclose()
    assert isinstance(claim, Claimed)
    assert claim.attempt == 1
