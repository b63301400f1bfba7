"""A delivery makes no reference cycle, so its body is freed without the garbage collector."""

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hookonce import Receiver, Retry
from hookonce.cli.collecting import collect_rarely
from hookonce.events import CommentReceived
from hookonce.testing import Payload, SignedRequest, make_event, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()
DELIVERIES = 20


async def succeed(_: CommentReceived) -> None: ...


def succeed_in_a_thread(_: CommentReceived) -> None: ...


async def fail(_: CommentReceived) -> None:
    raise ValueError("no")


async def fail_too(_: Exception) -> None:
    raise ValueError("no")


def fail_in_a_thread(_: CommentReceived) -> None:
    raise ValueError("no")


def no_key(_: CommentReceived) -> str:
    raise ValueError("no")


async def ask_for_a_retry(_: CommentReceived) -> None:
    raise Retry


def genuine(payload: Payload | None = None) -> SignedRequest:
    return signed_request(payload or make_event(CommentReceived), SECRET)


def forged() -> SignedRequest:
    return signed_request(make_event(CommentReceived), new_secret())


def unreadable() -> SignedRequest:
    return signed_request(b'{"type"', SECRET, message_id=make_event(CommentReceived).id)


@pytest.fixture
def no_collections(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL, "hookonce")  # pytest would keep logged errors alive
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("request_of", "handler", "status"),
    [
        (genuine, succeed, 200),
        (genuine, succeed_in_a_thread, 200),
        (genuine, fail, 500),
        (genuine, fail_in_a_thread, 500),
        (genuine, ask_for_a_retry, 503),
        (forged, succeed, 401),
        (unreadable, succeed, 202),
    ],
)
async def test_a_delivery_leaves_no_cyclic_garbage(
    request_of: Callable[[], SignedRequest],
    handler: Callable[[CommentReceived], object],
    status: int,
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path}/hooks.db")
    receiver.on(CommentReceived)(handler)
    await check_for_garbage(receiver, request_of, status)


@pytest.mark.usefixtures("no_collections")
async def test_a_key_lock_that_is_not_acquired_leaves_no_cyclic_garbage(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path}/hooks.db")
    receiver.on(CommentReceived, serial_by=no_key)(succeed)
    await check_for_garbage(receiver, genuine, 500)


@pytest.mark.usefixtures("no_collections")
async def test_an_error_hook_that_fails_leaves_no_cyclic_garbage(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path}/hooks.db")
    receiver.on(CommentReceived)(fail)
    receiver.on_error(fail_too)
    await check_for_garbage(receiver, genuine, 500)


async def check_for_garbage(
    receiver: Receiver, request_of: Callable[[], SignedRequest], status: int
) -> None:
    async with receiver:
        await answered(receiver, request_of(), status)
        requests = [request_of() for _ in range(DELIVERIES)]
        gc.collect()
        for request in requests:
            await answered(receiver, request, status)
        assert gc.collect() < DELIVERIES


async def answered(receiver: Receiver, request: SignedRequest, status: int) -> None:
    assert (await receiver.handle(request.body, request.headers)).status == status


def test_serving_commands_run_the_garbage_collector_rarely() -> None:
    before = gc.get_threshold()
    try:
        collect_rarely()
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
