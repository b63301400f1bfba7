"""An emulated service that runs for weeks uses a bounded amount of memory."""

import pytest

from hookonce import Receiver
from hookonce.emulator import VirtualClock, deliveries, service
from hookonce.events import CommentReceived
from hookonce.testing.pytest_plugin import ServiceFactory

pytestmark = pytest.mark.anyio


async def test_only_the_last_deliveries_and_attempts_are_kept(
    webhook_secret: str,
    virtual_clock: VirtualClock,
    emulated_service: ServiceFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deliveries, "_LOGGED", 10)
    monkeypatch.setattr(service, "_ATTEMPTS_KEPT", 15)
    receiver = Receiver(secrets=webhook_secret, store="memory://", clock=virtual_clock)
    async with emulated_service(receiver, clock=virtual_clock) as emulated:
        ids = [(await emulated.emit(CommentReceived)).id for _ in range(40)]
        logged = [delivery.event_id for delivery in emulated.deliveries()]
    assert 10 <= len(logged) <= 12
    assert logged == ids[::-1][: len(logged)], "the newest come first, and none is missing"
    assert [attempt.event_id for attempt in emulated.attempts()] == ids[-15:]


async def test_pending_deliveries_are_never_dropped(
    webhook_secret: str,
    virtual_clock: VirtualClock,
    emulated_service: ServiceFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deliveries, "_LOGGED", 10)
    receiver = Receiver(secrets=webhook_secret, store="memory://", clock=virtual_clock)

    @receiver.on(CommentReceived, name="down")
    async def fail(event: CommentReceived) -> None:
        raise ConnectionError(event.id)

    async with emulated_service(receiver, clock=virtual_clock) as emulated:
        for _ in range(20):
            await emulated.emit(CommentReceived)
        assert len(emulated.deliveries(status="pending")) == 20
        emulated.disable()
        assert emulated.deliveries(status="pending") == []
        await emulated.emit("message.received")
        await emulated.advance(days=1)
    assert len(emulated.attempts()) == 20, "what was given up was tried again"
