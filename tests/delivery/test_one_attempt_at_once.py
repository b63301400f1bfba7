"""An event never has two attempts at the same time."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.deliveries import answer_of, deliver, receiver_on
from support.handlers import on
from support.stores import FaultyStore
from support.waiting import until, until_async

from hookonce import Receiver, Router
from hookonce.events import CommentReceived, Event
from hookonce.stores import open_store
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio


@pytest.mark.sample(1)
async def test_a_retry_joins_the_attempt_whose_lease_ended_while_the_loop_was_blocked(
    store_url: str,
) -> None:
    receiver = receiver_on(store_url, lease_seconds=0.4, answer_seconds=0.3)
    began, ended, gate = list[str](), list[str](), asyncio.Event()

    async def slow(event: CommentReceived) -> None:
        began.append(event.id)
        await gate.wait()
        ended.append(event.id)

    async def block(_: CommentReceived) -> None:
        time.sleep(0.9)  # noqa: ASYNC251 - a stall longer than the lease of the other event

    on(receiver, "slow", slow)
    blocking = receiver.copy(endpoint="other", router=_router("block", block))
    async with receiver, blocking:
        event = make_event(CommentReceived)
        first = asyncio.create_task(deliver(receiver, event))
        await until(lambda: began)
        await deliver(blocking, make_event(CommentReceived))
        assert answer_of(await first) == (503, "still_running")
        retry = asyncio.create_task(deliver(receiver, event, attempt=2))
        await asyncio.sleep(0)
        gate.set()
        assert answer_of(await retry) == (200, "duplicate")
    assert (len(began), len(ended)) == (1, 1)


def _router(name: str, handler: Callable[..., Any]) -> Router:
    router = Router()
    router.on(CommentReceived, name=name)(handler)
    return router


@pytest.mark.sample(1)
async def test_a_retry_joins_the_attempt_whose_lease_ended_while_the_store_was_away(
    store_url: str,
) -> None:
    store = FaultyStore(open_store(store_url, clock=time.time))
    receiver = receiver_on(store, lease_seconds=0.2, answer_seconds=0.2)
    began, gate = list[str](), asyncio.Event()

    async def slow(event: CommentReceived) -> None:
        began.append(event.id)
        await gate.wait()

    on(receiver, "slow", slow)
    async with receiver:
        event = make_event(CommentReceived)
        store.failures["extend"] = -1
        assert answer_of(await deliver(receiver, event)) == (503, "still_running")
        await until(lambda: store.calls["extend"] >= 12)  # no extension for longer than the lease
        assert answer_of(await deliver(receiver, event, attempt=2)) == (503, "in_flight")
        gate.set()
        store.failures.clear()
        await until_async(partial(_is_duplicate, receiver, event))
    assert len(began) == 1


async def _is_duplicate(receiver: Receiver, event: Event[Any]) -> bool:
    return (await deliver(receiver, event, attempt=3)).reason == "duplicate"


async def test_an_event_that_another_process_claimed_during_a_stall_is_not_handled_here(
    durable_url: str,
) -> None:
    stalled = _Stalled(open_store(durable_url, clock=time.time))
    here, there = receiver_on(stalled, lease_seconds=0.3), receiver_on(durable_url)
    ran = list[str]()
    for receiver, name in ((here, "here"), (there, "there")):
        on(receiver, "note", partial(_note, ran, name))
    async with here, there:
        event = make_event(CommentReceived)
        stalled.granted = asyncio.Event()
        first = asyncio.create_task(deliver(here, event))
        await stalled.granted.wait()
        assert answer_of(await deliver(there, event, attempt=2)) == (200, "handled")
        stalled.gate.set()
        assert (await first).status in {200, 503}
    assert ran == ["there"]


async def _note(ran: list[str], name: str, _: CommentReceived) -> None:
    ran.append(name)


class _Stalled(FaultyStore):
    """A store that answers a claim only when its gate opens."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.granted, self.gate = asyncio.Event(), asyncio.Event()

    async def claim(self, key: Any, token: Any, lease: float) -> Any:
        result = await super().claim(key, token, lease)
        self.granted.set()
        await self.gate.wait()
        return result
