"""A warning shows a rotation that the receiver is not ready for, and a secret nobody uses."""

import logging
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from secrets import token_bytes

import pytest
from support.secrets import ChangingSecrets

from hookonce import FileSecrets, Receiver
from hookonce.clock import Clock, utc
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.events import CommentReceived
from hookonce.testing import SignedRequest, make_event, signed_request
from hookonce.testing.pytest_plugin import ServiceFactory
from hookonce.verification.secrets import new_key_pair, new_secret

pytestmark = pytest.mark.anyio


@pytest.fixture
def file(tmp_path: Path, webhook_secret: str) -> Path:
    """Return the file from which the receiver reads its secrets."""
    path = tmp_path / "secrets"
    path.write_text(webhook_secret)
    return path


@pytest.fixture
def receiver(file: Path, virtual_clock: VirtualClock) -> Receiver:
    return Receiver(secrets=FileSecrets(file), store="memory://", clock=virtual_clock)


def put(file: Path, *secrets: str) -> None:
    """Write these secrets to the file, newest first."""
    file.write_text("\n".join(secrets))


async def emit_several(service: EmulatedService) -> None:
    """Deliver as many events as are needed to show a rotation."""
    for _ in range(3):
        await service.emit(CommentReceived)


async def warnings_of(receiver: Receiver) -> str:
    readiness = await receiver.check()
    assert readiness.ready
    return "\n".join(text for text in readiness.warnings if "secret" in text)


async def test_with_the_old_secret_alone_the_time_left_of_the_rotation_is_logged(
    receiver: Receiver,
    virtual_clock: VirtualClock,
    emulated_service: ServiceFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with emulated_service(receiver, clock=virtual_clock) as service:
        await service.emit(CommentReceived)
        assert receiver.rotation is None
        service.rotate_secret()
        with caplog.at_level(logging.WARNING, logger="hookonce.rotation"):
            await emit_several(service)
        assert receiver.rotation is not None
        assert not receiver.rotation.has_both
        assert "24.0 h left" in caplog.text
        await service.advance(hours=18)
        assert "6.0 h left" in await warnings_of(receiver)
        await service.advance(hours=7)
        ended = await warnings_of(receiver)
        assert "the sender's secret was rotated, which ended by" in ended
        assert ended.endswith("; configure the new secret now")


async def test_with_both_secrets_a_rotation_needs_no_warning(
    receiver: Receiver,
    virtual_clock: VirtualClock,
    emulated_service: ServiceFactory,
    file: Path,
    webhook_secret: str,
) -> None:
    async with emulated_service(receiver, clock=virtual_clock) as service:
        new = service.rotate_secret()
        await emit_several(service)
        assert await warnings_of(receiver)
        put(file, new, webhook_secret)
        await service.advance(minutes=1)
        await service.emit(CommentReceived)
        assert receiver.rotation is not None
        assert receiver.rotation.has_both
        assert not await warnings_of(receiver)


async def test_a_rotation_with_only_one_of_its_secrets_configured_is_warned_of(
    virtual_clock: VirtualClock, webhook_secret: str, emulated_service: ServiceFactory
) -> None:
    secrets = [webhook_secret, new_secret()]
    receiver = Receiver(secrets=secrets, store="memory://", clock=virtual_clock)
    async with emulated_service(receiver, clock=virtual_clock) as service:
        service.rotate_secret()
        await emit_several(service)
        assert "only one of the two secrets is configured here" in await warnings_of(receiver)


def made_up_beside(secrets: str | Sequence[str], clock: Clock, event_id: str) -> SignedRequest:
    """Return a genuine delivery to which a stranger has added a signature."""
    event = make_event(CommentReceived, event_id=event_id)
    request = signed_request(event, secrets, skew=time.time() - clock())
    signature = f"{request.headers['webhook-signature']} v1,{b64encode(token_bytes(32)).decode()}"
    return replace(request, headers={**request.headers, "webhook-signature": signature})


async def accept(receiver: Receiver, request: SignedRequest) -> None:
    assert (await receiver.handle(request.body, request.headers)).status == 200


async def test_a_made_up_second_signature_is_no_rotation_however_often_it_comes(
    receiver: Receiver, virtual_clock: VirtualClock, webhook_secret: str
) -> None:
    for _ in range(10):
        await accept(receiver, made_up_beside(webhook_secret, virtual_clock, "evt_1"))
        virtual_clock.tick(timedelta(seconds=11))
    assert receiver.rotation is None
    assert not await warnings_of(receiver)


async def test_second_signatures_of_events_between_others_with_one_are_no_rotation(
    receiver: Receiver, virtual_clock: VirtualClock, webhook_secret: str
) -> None:
    for number in range(6):
        await accept(receiver, made_up_beside(webhook_secret, virtual_clock, f"evt_{number}"))
        virtual_clock.tick(timedelta(seconds=11))
        event, skew = make_event(CommentReceived), time.time() - virtual_clock()
        await accept(receiver, signed_request(event, webhook_secret, skew=skew))
    assert receiver.rotation is None
    assert not await warnings_of(receiver)


async def test_one_delivery_by_both_secrets_in_force_shows_a_rotation_that_nobody_can_hide(
    file: Path, receiver: Receiver, virtual_clock: VirtualClock, webhook_secret: str
) -> None:
    new = new_secret()
    put(file, new, webhook_secret)
    event, skew = make_event(CommentReceived), time.time() - virtual_clock()
    await accept(receiver, signed_request(event, [new, webhook_secret], skew=skew))
    rotation = receiver.rotation
    assert rotation is not None
    assert rotation.has_both
    assert rotation.since == utc(virtual_clock())
    assert rotation.ends_by == rotation.since + timedelta(hours=24)
    virtual_clock.tick(timedelta(seconds=11))
    await accept(receiver, made_up_beside(new, virtual_clock, "evt_1"))
    assert receiver.rotation == rotation
    assert not await warnings_of(receiver)


async def rotate_completely(service: EmulatedService, file: Path, old: str) -> str:
    """Do every step of a rotation, and wait until the rotation has ended."""
    await service.emit(CommentReceived)
    new = service.rotate_secret()
    put(file, new, old)
    await service.emit(CommentReceived)
    await service.advance(hours=24, minutes=1)
    await service.emit(CommentReceived)
    return new


async def test_after_a_rotation_the_log_says_when_the_old_secret_last_matched(
    receiver: Receiver,
    virtual_clock: VirtualClock,
    emulated_service: ServiceFactory,
    file: Path,
    webhook_secret: str,
) -> None:
    began = virtual_clock()
    async with emulated_service(receiver, clock=virtual_clock) as service:
        await service.emit(CommentReceived)
        await service.advance(minutes=1)
        new = await rotate_completely(service, file, webhook_secret)
        assert receiver.rotation is None
        assert not await warnings_of(receiver)  # the grace period lasts an hour
        await service.advance(hours=2)
        await service.emit(CommentReceived)
        newest, oldest = receiver.secrets_last_matched()
        assert (newest, oldest) == (utc(virtual_clock()), utc(began + 60))
        await service.advance(seconds=1)
        # The sender has not signed this delivery.
        await receiver.backfill(make_event(CommentReceived))
        assert receiver.secrets_last_matched() == (newest, oldest)
        await service.emit(CommentReceived)
        assert "secret 2 of 2 last matched at" in await warnings_of(receiver)
        put(file, new)
        assert receiver.secrets_last_matched() == (utc(virtual_clock()),)
        assert not await warnings_of(receiver)


async def test_a_secret_that_has_never_matched_since_the_start_can_go_as_well(
    virtual_clock: VirtualClock, webhook_secret: str, emulated_service: ServiceFactory
) -> None:
    secrets = [webhook_secret, new_secret()]
    receiver = Receiver(secrets=secrets, store="memory://", clock=virtual_clock)
    async with emulated_service(receiver, clock=virtual_clock) as service:
        await service.advance(hours=26)
        # No delivery has shown yet that the first secret works.
        assert not await warnings_of(receiver)
        await service.emit(CommentReceived)
        assert "secret 2 of 2 last matched before" in await warnings_of(receiver)


async def test_without_usable_secrets_the_receiver_is_not_ready(
    virtual_clock: VirtualClock,
) -> None:
    provider = ChangingSecrets(new_secret())
    receiver = Receiver(secrets=provider, store="memory://", clock=virtual_clock)
    provider.secrets = ()
    readiness = await receiver.check()
    assert not readiness.ready
    assert "no delivery can be verified" in readiness.problems[0]


async def test_no_warning_names_a_secret(
    receiver: Receiver,
    virtual_clock: VirtualClock,
    emulated_service: ServiceFactory,
    file: Path,
    webhook_secret: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="hookonce")
    async with emulated_service(receiver, clock=virtual_clock) as service:
        service.rotate_secret()
        await emit_several(service)
        told = caplog.text + await warnings_of(receiver) + repr(receiver.rotation)
        await rotate_completely(service, file, webhook_secret)
        told += await warnings_of(receiver)
    assert "rotated" in told
    assert "whsec_" not in told


@pytest.mark.parametrize("begins_with", ["secret", "public key"])
async def test_a_rotation_to_the_other_kind_of_key_is_noticed_like_every_rotation(
    begins_with: str,
    file: Path,
    webhook_secret: str,
    virtual_clock: VirtualClock,
) -> None:
    """The receiver has the old key, then both, then the new key, and refuses nothing."""
    pair = new_key_pair()
    old, new = (webhook_secret, webhook_secret), (pair.private, pair.public)
    if begins_with == "public key":
        old, new = new, old
    put(file, old[1])
    receiver = Receiver(secrets=FileSecrets(file), store="memory://", clock=virtual_clock)
    async with EmulatedService(receiver, secret=old[0], clock=virtual_clock) as service:
        await service.emit(CommentReceived)
        service.rotate_secret(secret=new[0])
        await emit_several(service)
        assert receiver.rotation is not None
        assert not receiver.rotation.has_both
        assert "only one of the two secrets is configured" in await warnings_of(receiver)
        put(file, new[1], old[1])
        await service.advance(minutes=1)
        await emit_several(service)
        assert receiver.rotation.has_both
        assert await warnings_of(receiver) == ""
        await service.advance(hours=24)
        await service.emit(CommentReceived)
        assert receiver.rotation is None
        await service.advance(hours=26)
        assert "secret 2 of 2 last matched" in await warnings_of(receiver)
        put(file, new[1])
        await service.emit(CommentReceived)
        assert await warnings_of(receiver) == ""
        assert all(attempt.failure is None for attempt in service.attempts())


async def test_a_sender_that_always_adds_a_signature_of_another_kind_is_not_rotating(
    virtual_clock: VirtualClock, webhook_secret: str
) -> None:
    """The warning ends when both signatures outlast a rotation; the next rotation is noticed."""
    receiver = Receiver(secrets=webhook_secret, store="memory://", clock=virtual_clock)
    private, next_secret = new_key_pair().private, new_secret()

    async def deliver(*secrets: str) -> None:
        for _ in range(3):
            event, skew = make_event(CommentReceived), time.time() - virtual_clock()
            await accept(receiver, signed_request(event, secrets, skew=skew))

    await deliver(private, webhook_secret)
    assert "only one of the two secrets is configured" in await warnings_of(receiver)
    virtual_clock.tick(timedelta(hours=26))
    await deliver(private, webhook_secret)
    assert receiver.rotation is None
    assert await warnings_of(receiver) == ""
    virtual_clock.tick(timedelta(hours=26))
    await deliver(webhook_secret)
    virtual_clock.tick(timedelta(seconds=20))
    await deliver(next_secret, webhook_secret)
    assert receiver.rotation is not None
