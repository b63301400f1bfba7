"""Handlers that record their events, and that succeed, wait or fail as a test wants."""

import asyncio
from collections.abc import Callable
from typing import Any

from hookonce import Context, Router
from hookonce.events import CommentReceived, Event

from .waiting import until

__all__ = ["Handler", "Handlers", "Waiting", "counting", "on", "succeed"]


def on(router: Router, name: str, handler: Callable[..., Any]) -> None:
    """Register a handler for comments under a name."""
    router.on(CommentReceived, name=name)(handler)


def counting(receiver: Router) -> list[str]:
    """Register a handler that notes the ids of its events, and return the notes."""
    ran: list[str] = []

    async def note(event: CommentReceived) -> None:
        ran.append(event.id)

    on(receiver, "counting", note)
    return ran


async def succeed(_: Event[Any]) -> None: ...


class Handler:
    """A handler for comments; a test sets what it does next."""

    def __init__(self, receiver: Router, name: str = "handler") -> None:
        self.contexts: list[Context] = []
        self.at_once = 0
        self.most_at_once = 0
        self.does: Callable[[], Any] = lambda: None
        on(receiver, name, self)

    async def __call__(self, event: CommentReceived, context: Context) -> None:
        assert event.id == context.event_id
        self.contexts.append(context)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            result = self.does()
            if result is not None:
                await result
        finally:
            self.at_once -= 1

    @property
    def runs(self) -> int:
        return len(self.contexts)

    @property
    def ids(self) -> list[str]:
        return [context.event_id for context in self.contexts]

    @property
    def attempts(self) -> list[int]:
        return [context.attempt for context in self.contexts]

    async def has_run(self, times: int) -> None:
        """Return once the handler has begun this many times; fail if it has begun more often."""
        await until(lambda: self.runs >= times, what=f"{times} runs")
        assert self.runs == times

    def raises(self, *errors: BaseException | None) -> None:
        """Raise these errors, one in each run, then repeat the last error; None means success."""
        remaining = list(errors)

        def fail() -> None:
            error = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            if error is not None:
                raise error

        self.does = fail

    def waits(self) -> asyncio.Event:
        """Let each later run wait until the returned event is set."""
        gate = asyncio.Event()
        self.does = gate.wait
        return gate

    def succeeds(self) -> None:
        self.does = lambda: None


class Handlers:
    """Named handlers for every event; a test sets the errors that they raise."""

    def __init__(self, receiver: Router, *names: str) -> None:
        self.contexts: list[Context] = []
        self.raises: dict[str, BaseException | None] = {}
        for name in names:
            receiver.on("*", name=name)(self._run)

    async def _run(self, event: Event[Any], context: Context) -> None:
        assert event.id == context.event_id
        self.contexts.append(context)
        error = self.raises.get(context.handler)
        if error is not None:
            raise error

    def ran(self) -> list[str]:
        """Return the names of the handlers that ran since the last call, sorted."""
        ran, self.contexts = sorted(context.handler for context in self.contexts), []
        return ran


class Waiting:
    """A handler for comments that waits at a gate, and notes how each run ended."""

    def __init__(self, receiver: Router) -> None:
        self.gate = asyncio.Event()
        self.began: list[str] = []
        self.ended: list[str] = []
        on(receiver, "waiting", self)

    async def __call__(self, event: CommentReceived) -> None:
        self.began.append(event.id)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("finished")
