"""A rotation, hour by hour: for 24 hours, a receiver that knows either secret refuses nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from support.secrets import ChangingSecrets

from hookonce import Receiver
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.emulator.records import DeliveryAttempt
from hookonce.events import CommentReceived
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

OLD, NEW = new_secret(), new_secret()

HALF_AN_HOUR = 0.5
WINDOW_HOURS = 24


async def drill(
    provider: ChangingSecrets, hours: float, change: Callable[[float], None] = lambda _: None
) -> list[DeliveryAttempt]:
    """Rotate the secret, then emit an event every half hour; return every attempt.

    Each event fails once at first, so half of the attempts are retries with new signatures.
    """
    clock = VirtualClock()
    receiver = Receiver(secrets=provider, store="memory://", clock=clock)

    @receiver.on(CommentReceived, name="flaky")
    async def flaky(event: CommentReceived) -> None:
        if event.id not in failed:
            failed.add(event.id)
            raise ConnectionError

    failed: set[str] = set()
    async with EmulatedService(receiver, secret=OLD, clock=clock, seed=1) as service:
        service.rotate_secret(secret=NEW)
        passed = 0.0
        while passed < hours:
            change(passed)
            await service.emit(CommentReceived)
            await service.advance(hours=HALF_AN_HOUR)
            passed += HALF_AN_HOUR
        return service.attempts()


def refused(attempts: Sequence[DeliveryAttempt]) -> list[DeliveryAttempt]:
    return [attempt for attempt in attempts if attempt.status == 401]


@pytest.mark.parametrize(
    "secrets", [(OLD,), (NEW,), (NEW, OLD), (OLD, NEW)], ids=["old", "new", "both", "both, swapped"]
)
async def test_whatever_secret_is_configured_nothing_is_refused_for_24_hours(
    secrets: tuple[str, ...],
) -> None:
    attempts = await drill(ChangingSecrets(*secrets), WINDOW_HOURS)
    assert len(attempts) == 2 * WINDOW_HOURS / HALF_AN_HOUR
    assert refused(attempts) == []
    assert [attempt.status for attempt in attempts] == [500, 200] * WINDOW_HOURS * 2


async def test_a_receiver_that_reloads_within_24_hours_refuses_nothing() -> None:
    provider = ChangingSecrets(OLD)

    def reload(passed: float) -> None:
        if passed >= WINDOW_HOURS / 2:
            provider.secrets = (NEW, OLD)
        if passed >= WINDOW_HOURS:
            provider.secrets = (NEW,)  # the old secret has expired

    attempts = await drill(provider, 2 * WINDOW_HOURS, reload)
    assert refused(attempts) == []


async def test_a_receiver_with_only_the_old_secret_refuses_after_24_hours() -> None:
    attempts = await drill(ChangingSecrets(OLD), WINDOW_HOURS + 2)
    assert len(refused(attempts)) > 3
    first_refused = min(attempt.at for attempt in refused(attempts))
    assert first_refused - attempts[0].at >= timedelta(hours=WINDOW_HOURS)
