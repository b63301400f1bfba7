"""Secret rotation and its limit of 24 hours: Events, Delivery behaviour (interface v1)."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
import standardwebhooks
from freezegun import freeze_time
from support.recorder import Received, Recorder, add_endpoint

from hookonce import Receiver, SecretError, VerificationError, verify
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.verification.secrets import new_secret

pytestmark = [pytest.mark.anyio, pytest.mark.sample(5, of="file")]

DAY = 24 * 3600


def reference_accepts(one: Received, secret: str, signature: str) -> bool:
    with freeze_time(datetime.fromtimestamp(one.at, UTC)):
        try:
            headers = one.headers | {"webhook-signature": signature}
            standardwebhooks.Webhook(secret).verify(one.body, headers)
        except standardwebhooks.WebhookVerificationError:
            return False
    return True


def we_accept(one: Received, secret: str, signature: str) -> bool:
    headers = one.headers | {"webhook-signature": signature}
    try:
        verify(one.body, headers, secret, now=one.at)
    except VerificationError:
        return False
    return True


def check_one_signature_per_secret(one: Received, secrets: Sequence[str]) -> None:
    """Check that each secret made exactly one signature, and that there are no other signatures."""
    for accepts in (reference_accepts, we_accept):
        made = [
            [accepts(one, secret, signature) for secret in secrets] for signature in one.signatures
        ]
        assert [sum(row) for row in made] == [1] * len(secrets)
        assert [sum(column) for column in zip(*made, strict=True)] == [1] * len(secrets)


async def test_for_24_hours_every_event_carries_two_signatures_one_per_secret() -> None:
    """Interface, Events, Secret rotation; Limits, Dual-signature window after rotation: 24
    hours.
    """
    clock = VirtualClock()
    app = Recorder(clock=clock)
    async with EmulatedService(app, clock=clock) as service:
        old = service.secret()
        await service.emit("comment.received")
        new = service.rotate_secret()
        assert new == service.secret() != old
        await service.emit("comment.received")
        await service.advance(hours=12)
        await service.emit("channel.unhealthy")
        await service.advance(seconds=12 * 3600 - 1)
        await service.emit("comment.received")
        await service.advance(seconds=1)
        await service.emit("comment.received")
        await service.advance(days=30)
        await service.emit("comment.received")
    before, *during, at_the_end, later = app.received
    assert [len(one.signatures) for one in during] == [2, 2, 2]
    assert all(" " in one.headers["webhook-signature"] for one in during)
    check_one_signature_per_secret(before, [old])
    for one in during:
        check_one_signature_per_secret(one, [new, old])
    for one in (at_the_end, later):
        check_one_signature_per_secret(one, [new])


async def test_a_retry_is_signed_with_the_secrets_of_its_own_time() -> None:
    """Interface, Events: the service signs each attempt when it makes it, so attempts after a
    rotation use the new secret.
    """
    clock = VirtualClock()
    app = Recorder(500, clock)
    async with EmulatedService(app, clock=clock) as service:
        old = service.secret()
        await service.emit("comment.received")
        new = service.rotate_secret()
        await service.settle()
        await service.emit("comment.received")
        await service.advance(hours=12)
    assert {one.at - app.received[0].at < DAY for one in app.received} == {True, False}
    check_one_signature_per_secret(app.received[0], [old])
    for one in app.received[1:]:
        is_over = one.at - app.received[0].at >= DAY
        check_one_signature_per_secret(one, [new] if is_over else [new, old])


async def test_a_second_rotation_leaves_the_two_newest() -> None:
    """Interface, Events, Secret rotation: two signatures, never three."""
    clock = VirtualClock()
    app = Recorder(clock=clock)
    async with EmulatedService(app, clock=clock) as service:
        service.secret()
        second = service.rotate_secret()
        await service.advance(hours=23)
        third = service.rotate_secret()
        await service.emit("comment.received")
        await service.advance(hours=23)
        await service.emit("comment.received")
    for one in app.received:
        check_one_signature_per_secret(one, [third, second])


async def test_a_rotation_affects_one_endpoint() -> None:
    first, second = Recorder(), Recorder()
    async with EmulatedService(first) as service:
        own, other = service.endpoint().id, add_endpoint(service, second).id
        service.rotate_secret(other)
        await service.emit("comment.received")
        with pytest.raises(LookupError, match="2 endpoints"):
            service.rotate_secret()
        check_one_signature_per_secret(first.received[0], [service.secret(own)])
    assert len(second.received[0].signatures) == 2


async def test_the_new_secret_can_be_chosen_and_is_checked() -> None:
    chosen = new_secret()
    service = EmulatedService(Recorder())
    before = service.secret()
    with pytest.raises(SecretError):
        service.rotate_secret(secret="whsec_-")
    assert service.secret() == before
    assert service.rotate_secret(secret=chosen) == service.secret() == chosen
    assert chosen.startswith(service.endpoint().secret_prefix or "nothing is shown")


@pytest.mark.parametrize(
    ("hours", "knows", "status"),
    [
        (0, "old", 200),
        (23.9, "old", 200),
        (24, "old", 401),
        (0, "new", 200),
        (24, "new", 200),
        (12, "neither", 401),
    ],
)
async def test_a_receiver_has_24_hours_to_get_the_new_secret(
    hours: float, knows: str, status: int
) -> None:
    """Interface, Events, Signature, rule 4: one match is enough."""
    clock = VirtualClock()
    old, new = new_secret(), new_secret()
    known = {"old": old, "new": new}.get(knows, new_secret())
    receiver = Receiver(secrets=known, store="memory://", clock=clock)
    async with EmulatedService(receiver, secret=old, clock=clock) as service:
        service.rotate_secret(secret=new)
        await service.advance(hours=hours)
        await service.emit("comment.received")
        (attempt,) = service.attempts()
    assert attempt.status == status
