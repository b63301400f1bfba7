"""The deployment of a receiver in a simulation, with restarts."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

from ..http.app import Message, Receive, Scope, Send
from ..receiver import Receiver
from .journal import SimulationJournal


class Deployment:
    """An ASGI application that passes requests to the newest receiver.

    Args:
        journal: keeps the requests and their answers.

    Attributes:
        count: the number of receivers so far.
    """

    def __init__(self, journal: SimulationJournal) -> None:
        self.count: int = 0
        self._journal = journal
        self._receiver: Receiver | None = None
        self._open: AsyncExitStack | None = None

    @property
    def receiver(self) -> Receiver:
        """The newest receiver; RuntimeError before the first ``deploy``."""
        if self._receiver is None:
            raise RuntimeError("no receiver is deployed")
        return self._receiver

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("the deployment runs the lifespan of its receivers itself")
        receiver = self.receiver
        request = self._journal.arrived(receiver.sender, scope["headers"])

        async def noting(message: Message) -> None:
            request.sent(message)
            await send(message)

        await receiver(scope, receive, noting)

    async def deploy(self, receiver: Receiver) -> None:
        """Open a receiver, send new requests to it, then close the previous receiver."""
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(receiver)
            # Run the inbox workers here, even if the receiver expects them in other processes.
            with suppress(LookupError, RuntimeError):
                await opening.enter_async_context(receiver.working())
            previous, self._open = self._open, opening.pop_all()
        self._receiver = receiver
        self.count += 1
        if previous is not None:
            self._journal.restarted()
            await previous.aclose()

    async def aclose(self) -> None:
        """Close the newest receiver."""
        if self._open is not None:
            await self._open.aclose()
