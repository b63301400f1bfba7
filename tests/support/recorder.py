"""A receiver that records requests, and gives the answers that a test chooses."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from starlette.types import Receive, Scope, Send

from hookonce.clock import Clock, system_clock
from hookonce.emulator import EmulatedService
from hookonce.emulator.records import EndpointRow
from hookonce.emulator.rules import SUBSCRIBABLE
from hookonce.verification.secrets import new_secret

__all__ = ["Answers", "Received", "Recorder", "add_endpoint", "answering", "ticking"]


@dataclass(frozen=True)
class Received:
    """A request as it arrived; if the connection broke, the end of the body is missing."""

    at: float
    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)
    is_complete: bool = True

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def timestamp(self) -> int:
        return int(self.headers["webhook-timestamp"])

    @property
    def number(self) -> int:
        return int(self.headers["example-delivery-attempt"])

    @property
    def signatures(self) -> list[str]:
        return self.headers["webhook-signature"].split(" ")


Answers: TypeAlias = Callable[[Received], int]


def answering(*statuses: int) -> Answers:
    """Return a function that answers these statuses in order, then repeats the last one."""
    left = list(statuses)

    def answer(_: Received) -> int:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


class Recorder:
    """An ASGI application that records requests.

    Attributes:
        received: every request, also a broken one, in the order in which the bodies ended.
        answer: returns the status of the next answer.
        most_at_once: the largest number of requests in progress at the same time.

    """

    def __init__(self, answer: int | Answers = 204, clock: Clock = system_clock) -> None:
        self.answer = answering(answer) if isinstance(answer, int) else answer
        self.clock = clock
        self.received: list[Received] = []
        self.most_at_once = 0
        self._at_once = 0

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.received]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            one = await self._receive(scope, receive)
            if one.is_complete:
                location = [(b"location", b"/elsewhere")]
                status = self.answer(one)
                headers = location if 300 <= status < 400 else []
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._at_once -= 1

    async def _receive(self, scope: Scope, receive: Receive) -> Received:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body, message = b"", await receive()
        body += message.get("body", b"")
        while message.get("more_body", False):
            await asyncio.sleep(0)  # a long body must not keep other tasks from running
            message = await receive()
            body += message.get("body", b"")
        is_complete = message["type"] != "http.disconnect"
        one = Received(self.clock(), scope["path"], headers, body, is_complete)
        self.received.append(one)
        return one


def add_endpoint(
    service: EmulatedService,
    app: Recorder,
    *,
    events: tuple[str, ...] = SUBSCRIBABLE,
    name: str = "second",
) -> EndpointRow:
    """Register another endpoint in this process."""
    url = f"https://{name}.test/webhooks"
    service._transport.mount(url, app)
    return service.workspace.add_endpoint(
        url, events, "", new_secret(), service.now.timestamp(), f"wh_{name}"
    )


def ticking(answer: Answers, *moves: Callable[[], object]) -> Answers:
    """Return the same answers, but call one of these functions, in order, before each answer."""
    left = list(moves)

    def moved(one: Received) -> int:
        if left:
            left.pop(0)()
        return answer(one)

    return moved
