"""A store that fails only some calls, as on a full disk, makes the receiver unready for a while."""

from types import SimpleNamespace

import pytest
from support.deliveries import answer_of, deliver, receiver_on
from support.stores import FaultyStore

from hookonce.events import CommentReceived
from hookonce.stores.memory import MemoryStore
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio


async def test_a_failed_delivery_counts_for_ten_seconds_though_the_store_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("hookonce.watching.store_failures.time", clock)
    store = FaultyStore(MemoryStore())
    receiver = receiver_on(store)
    receiver.on(CommentReceived, name="greet")(lambda _: None)
    async with receiver:
        assert (await receiver.check()).ready
        store.failures["claim"] = 1
        event = make_event(CommentReceived)
        assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
        [problem] = (await receiver.check()).problems
        assert "the store failed for a delivery" in problem
        now += 9.0
        assert not (await receiver.check()).ready
        now += 2.0
        assert (await receiver.check()).ready
