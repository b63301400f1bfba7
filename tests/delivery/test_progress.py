"""Attempts progress as the table in the docstring of `Attempt` says, and in no other way.

The fixture ``progress`` checks this in every test of this folder: no settlement without a claim; a
settlement never changes; an attempt that has let go of its event never takes it back.
"""

from pathlib import Path

import pytest
from support.deliveries import SECRET, answer_of, comment, deliver, receiver_on
from support.handlers import on
from support.progress import PROGRESS, Progress
from support.stores import FaultyStore
from support.waiting import until

from hookonce import Receiver
from hookonce.events import ChannelUnhealthy, CommentReceived
from hookonce.stores.memory import MemoryStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.testing import make_event, signed_request

pytestmark = pytest.mark.anyio


async def test_attempts_reach_every_row_of_the_table(
    tmp_path: Path, progress: set[Progress]
) -> None:
    await _answer_in_every_way(FaultyStore(SQLiteStore(tmp_path / "hooks.db")))
    await _record_late(FaultyStore(MemoryStore()), progress)
    assert progress == PROGRESS


async def _answer_in_every_way(store: FaultyStore) -> None:
    receiver = receiver_on(store)
    fails = _failing_on_demand(receiver)
    event, unreadable = comment(), signed_request(b"no event", SECRET, message_id="evt_1")
    async with receiver:
        store.failures["claim"] = 1
        assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
        assert await receiver.idle(60)
        fails.append(True)
        assert answer_of(await deliver(receiver, event)) == (500, "handler_failed")
        fails.clear()
        assert answer_of(await deliver(receiver, event)) == (200, "handled")
        assert answer_of(await deliver(receiver, event)) == (200, "duplicate")
        store.failures["bury"] = 1
        outcome = await receiver.handle(unreadable.body, unreadable.headers)
        assert answer_of(outcome) == (503, "store_unavailable")
        outcome = await deliver(receiver, make_event(ChannelUnhealthy), attempt=2)
        assert answer_of(outcome) == (200, "no_handler")
        assert await receiver.idle(60)


async def _record_late(store: FaultyStore, progress: set[Progress]) -> None:
    receiver = receiver_on(store, lease_seconds=0.5)
    fails = _failing_on_demand(receiver)
    async with receiver:
        store.failures |= {"complete": -1, "release": -1, "extend": -1}
        await deliver(receiver, comment())
        fails.append(True)
        await deliver(receiver, comment())
        late = {row for row in PROGRESS if row.is_late}
        await until(lambda: late <= progress)
        store.failures.clear()
        assert await receiver.idle(60)


def _failing_on_demand(receiver: Receiver) -> list[bool]:
    """Register a handler that fails while the returned list is not empty."""
    fails = list[bool]()

    async def handle(_: CommentReceived) -> None:
        if fails:
            raise ValueError("told to fail")

    on(receiver, "handle", handle)
    return fails
