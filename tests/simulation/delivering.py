"""A sender of signed deliveries, which takes the time from a virtual loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hookonce import Receiver
from hookonce.events import CommentReceived
from hookonce.simulation.virtual_loop import VirtualLoop
from hookonce.testing import Answer, TestSender, make_event
from hookonce.verification.secrets import new_secret

__all__ = ["SECRET", "Delivering", "comment", "delivering"]

SECRET = new_secret()


def comment() -> CommentReceived:
    return make_event(CommentReceived)


class Delivering:
    """Sends deliveries with timestamps from the loop's clock."""

    def __init__(self, sender: TestSender, loop: VirtualLoop) -> None:
        self._sender = sender
        self._loop = loop

    async def send(self, event: CommentReceived) -> Answer:
        return await self._sender.send(event, skew=time.time() - self._loop.unix_clock())


@asynccontextmanager
async def delivering(receiver: Receiver, loop: VirtualLoop) -> AsyncIterator[Delivering]:
    """Run the receiver's lifespan, and deliver to it in this process."""
    async with TestSender(receiver, secrets=SECRET) as sender:
        yield Delivering(sender, loop)
