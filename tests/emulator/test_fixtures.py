"""The fixtures that give a test an emulated service."""

import pytest
from starlette.applications import Starlette

from hookonce import Context, Receiver
from hookonce.emulator import Chaos, Disturbance, VirtualClock
from hookonce.events import CommentReceived
from hookonce.testing.pytest_plugin import ServiceFactory

pytestmark = pytest.mark.anyio


def receiver_of(secret: str, clock: VirtualClock, *, failures: int = 0) -> Receiver:
    """Return a receiver whose handler fails the given number of times for each event."""
    receiver = Receiver(secrets=secret, store="memory://", clock=clock)

    @receiver.on(CommentReceived, name="fragile")
    async def handle(event: CommentReceived, context: Context) -> None:  # noqa: ARG001 - the receiver passes the event first, then the context
        if context.attempt <= failures:
            raise ConnectionError("the handler's own database is away")

    return receiver


async def test_the_service_signs_with_the_secret_of_the_test_and_retries(
    webhook_secret: str, virtual_clock: VirtualClock, emulated_service: ServiceFactory
) -> None:
    receiver = receiver_of(webhook_secret, virtual_clock, failures=2)
    async with emulated_service(receiver, clock=virtual_clock) as service:
        event = await service.emit(CommentReceived)
        await service.advance(minutes=5)
        (delivery,) = service.deliveries(event_id=event.id)
    assert (delivery.status, delivery.attempts) == ("delivered", 3)
    assert service.secret() == webhook_secret


async def test_the_service_delivers_to_an_application_at_its_path(
    webhook_secret: str, virtual_clock: VirtualClock, emulated_service: ServiceFactory
) -> None:
    receiver = receiver_of(webhook_secret, virtual_clock)
    app = Starlette(routes=receiver.routes("/in"), lifespan=receiver.lifespan)
    async with emulated_service(app, path="/in", clock=virtual_clock) as service:
        await service.emit(CommentReceived)
    assert [attempt.reason for attempt in service.attempts()] == ["handled"]


async def test_chaos_and_seed_reach_the_service(
    webhook_secret: str, virtual_clock: VirtualClock, emulated_service: ServiceFactory
) -> None:
    chaos = Chaos(1.0, frozenset({Disturbance.LOST_ANSWER}))
    receiver = receiver_of(webhook_secret, virtual_clock)
    async with emulated_service(receiver, clock=virtual_clock, chaos=chaos, seed=7) as service:
        await service.emit(CommentReceived)
        await service.settle()
    assert service.seed == 7
    assert [attempt.reason for attempt in service.attempts()][-1] == "duplicate"
    assert service.attempts()[0].disturbance is Disturbance.LOST_ANSWER


async def test_advance_moves_the_clock_of_the_test(
    webhook_secret: str, virtual_clock: VirtualClock, emulated_service: ServiceFactory
) -> None:
    before = virtual_clock()
    async with emulated_service(
        receiver_of(webhook_secret, virtual_clock), clock=virtual_clock
    ) as service:
        await service.advance(days=1)
    assert virtual_clock() - before == pytest.approx(86_400)
