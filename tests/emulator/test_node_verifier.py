"""The emulated service's deliveries, verified over HTTP by the reference library in Node.

Receivers of the real service are written in many languages; this one shares no line with us.
"""

import pytest
from support.node import installed_modules, verifying_server

from hookonce.emulator import Chaos, Disturbance, EmulatedService
from hookonce.emulator.rules import SUBSCRIBABLE
from hookonce.verification.secrets import new_secret

pytestmark = [pytest.mark.anyio, pytest.mark.sample(2, of="file")]

OLD, NEW, OTHER = new_secret(), new_secret(), new_secret()


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> str:
    return installed_modules(tmp_path_factory.mktemp("node"))


@pytest.mark.parametrize("event_type", SUBSCRIBABLE)
async def test_node_accepts_every_type_of_event(node_modules: str, event_type: str) -> None:
    """Interface, Events, Signature: Standard Webhooks format."""
    async with (
        verifying_server(node_modules, [OLD, OTHER]) as server,
        EmulatedService(server.url, secret=OLD) as service,
    ):
        await service.emit(event_type)
        assert await server.next() == (204, [True, False])
        (row,) = service.deliveries()
        assert (row.status, row.response_status, row.attempts) == ("delivered", 204, 1)


async def test_node_accepts_texts_of_every_script_and_test_events(node_modules: str) -> None:
    """Interface, Events, Signature, rule 2: the raw body exactly as received."""
    async with (
        verifying_server(node_modules, [OLD]) as server,
        EmulatedService(server.url, secret=OLD) as service,
    ):
        await service.emit("comment.received", data={"text": 'ação 🍞 \u2028 \u4e2d \\ " \x00 <&>'})
        assert await server.next() == (204, [True])
        await service.test()
        assert await server.next() == (204, [True])
        assert {row.status for row in service.deliveries()} == {"delivered"}


async def test_node_accepts_either_secret_for_24_hours_and_then_the_new_one(
    node_modules: str,
) -> None:
    """Interface, Events, Secret rotation: two signatures, one per secret."""
    async with (
        verifying_server(node_modules, [OLD, NEW, OTHER]) as server,
        EmulatedService(server.url, secret=OLD) as service,
    ):
        await service.emit("comment.received")
        assert await server.next() == (204, [True, False, False])
        service.rotate_secret(secret=NEW)
        await service.emit("comment.received")
        assert await server.next() == (204, [True, True, False])
        await service.advance(hours=23.9)
        await service.emit("comment.received")
        assert await server.next() == (204, [True, True, False])
        await service.advance(hours=0.1)
        await service.emit("comment.received")
        assert await server.next() == (204, [False, True, False])


async def test_node_refuses_what_another_secret_signed_at_each_of_nine_attempts(
    node_modules: str,
) -> None:
    """Interface, Events, Delivery behaviour: each of the nine attempts has its own signature; Node
    refuses all of them.
    """
    async with (
        verifying_server(node_modules, [OTHER]) as server,
        EmulatedService(server.url, secret=OLD) as service,
    ):
        await service.emit("comment.received")
        await service.advance(days=2)
        for _ in range(9):
            assert await server.next() == (401, [False])
        (row,) = service.deliveries()
        assert (row.status, row.response_status, row.attempts) == ("failed", 401, 9)


async def test_node_refuses_what_was_changed_and_accepts_the_retry(node_modules: str) -> None:
    """Interface, Events, Signature, rule 3: the signature covers the body."""
    chaos = Chaos(1, frozenset({Disturbance.TAMPERING}))
    async with (
        verifying_server(node_modules, [OLD]) as server,
        EmulatedService(server.url, secret=OLD, chaos=chaos, seed=1) as service,
    ):
        await service.emit("comment.received")
        await service.settle()
        for attempt in service.attempts():
            assert await server.next() == (attempt.status, [attempt.is_genuine])
        (row,) = service.deliveries()
    assert row.status == "delivered"
    assert row.attempts is not None
    assert row.attempts > 1
