"""The store opens and closes with the application; a failure stops the server."""

from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message
from support.deliveries import SECRET, receiver_on, sqlite_url
from support.handlers import counting
from support.processes import run_to_its_end
from support.servers import delivering, itself, starlette_routes

from hookonce import Receiver, StoreError
from hookonce.events import CommentReceived
from hookonce.testing import TestSender, make_event, signed_request

pytestmark = pytest.mark.anyio


async def test_a_store_that_cannot_be_opened_stops_the_server_loudly(tmp_path: Path) -> None:
    status, said = await run_to_its_end(
        tmp_path,
        """
        serve(Receiver(secrets=secret, store=f"sqlite:///{here}/missing/hooks.db"))
        """,
        SECRET,
    )
    assert status != 0
    assert "it cannot be opened; does its folder exist" in said
    assert SECRET not in said


@pytest.mark.parametrize("made", [itself, starlette_routes])
async def test_a_store_that_cannot_be_opened_fails_the_lifespan(
    tmp_path: Path, made: Callable[[Receiver], ASGIApp]
) -> None:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path}/missing/hooks.db")
    with pytest.raises((StoreError, RuntimeError), match="does its folder exist"):
        async with TestSender(made(receiver), secrets=SECRET):
            raise AssertionError("it started")
    await receiver.store.aclose()


async def test_the_lifespan_protocol_reports_a_failed_start_to_the_server(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path}/missing/hooks.db")
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(StoreError):
        await receiver({"type": "lifespan"}, receive, send)
    [said] = sent
    assert said["type"] == "lifespan.startup.failed"
    assert "does its folder exist" in said["message"]
    await receiver.store.aclose()


async def test_without_a_lifespan_the_store_opens_at_the_first_delivery(tmp_path: Path) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    ran = counting(receiver)
    app = Starlette(routes=receiver.routes("/webhooks"))
    async with delivering(app, SECRET) as sender:
        assert not (tmp_path / "hooks.db").exists()
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(200, "handled")
        (await sender.send(event)).expect(200, "duplicate")
    await receiver.store.aclose()
    assert len(ran) == 1


async def test_a_receiver_can_be_opened_again_after_its_lifespan(tmp_path: Path) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    ran = counting(receiver)
    event = make_event(CommentReceived)
    for reason in ("handled", "duplicate"):
        async with delivering(receiver, SECRET) as sender:
            (await sender.send(event)).expect(200, reason)
    assert len(ran) == 1


async def test_a_receiver_that_is_entered_twice_serves_until_it_is_left_twice(
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path}/hooks.db")
    receiver.on(CommentReceived, name="note")(lambda _: None)
    async with receiver:
        async with receiver:
            pass
        request = signed_request(make_event(CommentReceived), SECRET)
        assert (await receiver.handle(request.body, request.headers)).reason == "handled"
    assert not receiver.is_open
