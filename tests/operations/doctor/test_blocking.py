"""Async handlers that block the event loop are found in their source."""

import asyncio
import subprocess
import time
import urllib.request
from time import sleep as pause

import pytest

from hookonce import Event, Receiver
from hookonce.events import CommentReceived
from hookonce.operations.doctor import Level
from hookonce.operations.doctor.blocking import blocking_findings
from hookonce.verification.secrets import new_secret

from .findings import only


async def sleeps(event: Event[object]) -> None:  # noqa: ARG001 - the shape of a handler
    time.sleep(1)  # noqa: ASYNC251 - what is found


async def pauses(event: Event[object]) -> None:  # noqa: ARG001 - the shape of a handler
    pause(1)  # noqa: ASYNC251 - what is found


async def fetches(event: Event[object]) -> None:
    urllib.request.urlopen(event.id)  # noqa: ASYNC210 - what is found


async def runs(event: Event[object]) -> None:
    subprocess.run(["convert", event.id], check=True)  # noqa: ASYNC221 - what is found


async def waits(event: Event[object]) -> None:  # noqa: ARG001 - the shape of a handler
    await asyncio.sleep(1)
    await asyncio.to_thread(time.sleep, 1)


def in_a_thread(event: Event[object]) -> None:  # noqa: ARG001 - the shape of a handler
    time.sleep(1)


@pytest.mark.parametrize(
    ("handler", "call"),
    [
        (sleeps, "time.sleep"),
        (pauses, "time.sleep"),
        (fetches, "urllib.urlopen"),
        (runs, "subprocess.run"),
    ],
)
def test_an_async_handler_that_blocks_is_named_with_its_call(handler: object, call: str) -> None:
    receiver = Receiver(secrets=new_secret(), store="memory://")
    receiver.on(CommentReceived, name="mine")(handler)  # type: ignore[call-overload] # of several
    found = only(blocking_findings(receiver.handlers), "handlers.blocking")
    assert found.level is Level.WARNING
    assert f"the async handler mine calls {call} (line " in found.found


def test_handlers_that_wait_or_run_in_a_thread_are_fine() -> None:
    receiver = Receiver(secrets=new_secret(), store="memory://")
    receiver.on(CommentReceived)(waits)
    receiver.on(CommentReceived)(in_a_thread)
    assert blocking_findings(receiver.handlers) == []
