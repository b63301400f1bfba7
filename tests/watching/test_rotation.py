"""A rotation the receiver is not ready for shows in time, and so does a secret nobody needs."""

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
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio


@pytest.fixture
def file(tmp_path: Path, webhook_secret: str) -> Path:
    """Return the file that the receiver reads its secrets from."""
    path = tmp_path / "secrets"
    path.write_text(webhook_secret)
    return path


@pytest.fixture
def receiver(file: Path, virtual_clock: VirtualClock) -> Receiver:
    return Receiver(secrets=FileSecrets(file), store="memory://", clock=virtual_clock)


def put(file: Path, *secrets: str) -> None:
    """Put secrets in force, newest first."""
    file.write_text("\n".join(secrets))


async def emit_several(service: EmulatedService) -> None:
    """Deliver as many events as it takes to show a rotation."""
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


async def test_two_secrets_of_which_one_is_a_stranger_are_not_both(
    virtual_clock: VirtualClock, webhook_secret: str, emulated_service: ServiceFactory
) -> None:
    secrets = [webhook_secret, new_secret()]
    receiver = Receiver(secrets=secrets, store="memory://", clock=virtual_clock)
    async with emulated_service(receiver, clock=virtual_clock) as service:
        service.rotate_secret()
        await emit_several(service)
        assert "only one of the two secrets is configured here" in await warnings_of(receiver)


def made_up_beside(secrets: str | Sequence[str], clock: Clock, event_id: str) -> SignedRequest:
    """Return a genuine delivery to which somebody on the way has added a signature."""
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
    """Rotate as one should, and let the rotation end."""
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
        assert not await warnings_of(receiver)  # an hour of grace
        await service.advance(hours=2)
        await service.emit(CommentReceived)
        newest, oldest = receiver.secrets_last_matched()
        assert (newest, oldest) == (utc(virtual_clock()), utc(began + 60))
        await service.advance(seconds=1)
        await receiver.backfill(make_event(CommentReceived))  # which the sender has not signed
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
        assert not await warnings_of(receiver)  # nothing shows that the first one works
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
