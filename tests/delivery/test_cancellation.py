"""A cancellation at any turn of the loop loses no event, repeats no success, leaves no claim.

A server cancels a delivery's request when the client disconnects; a shutdown cancels the work on an
event.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import cast

import pytest
from support.waiting import until, until_async

from hookonce import Context, Inbox, Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.outcome import Outcome
from hookonce.testing import make_event, signed_request
from hookonce.verification.secrets import new_secret

SECRET = new_secret()
TURNS = 201
# A usual run tests some turns of the loop, chosen by the seed; a full run tests all turns.
DRAWN = pytest.mark.parametrize(
    "count", [20, pytest.param(TURNS, marks=pytest.mark.full("up to 8 s of waiting", draw=2))]
)
EACH_WAY = pytest.mark.parametrize(
    ("store_url", "has_inbox"),
    [
        pytest.param("memory", False, id="memory-inline"),  # the memory store has no inbox
        *(
            pytest.param(kind, has_inbox, id=f"{kind}-{'inbox' if has_inbox else 'inline'}")
            for kind in ("sqlite", "valkey")
            for has_inbox in (False, True)
        ),
    ],
    indirect=["store_url"],
)
_QUIET_SECONDS = 0.03
# The lease is so long that these tests fail if an attempt leaves its claim behind.
LIMITS = Limits(lease_seconds=300.0, answer_seconds=3.0, drain_seconds=0.001)


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that calls a function after a number of its turns."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 0
        self._action: Callable[[], object] | None = None

    def after(self, turns: int, action: Callable[[], object]) -> None:
        """Call a function after this many more turns, or after a pause if the loop makes fewer."""
        self._left, self._action = turns, action
        self.call_later(_QUIET_SECONDS, self._act, action)

    def _act(self, action: Callable[[], object]) -> None:
        if self._action is action:
            self._action = None
            action()

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc] # typeshed does not declare this method
        self._left -= 1
        if self._left < 0 and self._action is not None:
            self._act(self._action)


class Application:
    """A receiver with several handlers, and the results of their runs."""

    def __init__(self, store_url: str, *, has_inbox: bool, has_threads: bool) -> None:
        inbox = Inbox(embedded=False) if has_inbox else None
        self.receiver = Receiver(secrets=SECRET, store=store_url, inbox=inbox, limits=LIMITS)
        self.succeeded: Counter[tuple[str, str]] = Counter()
        self.attempts: Counter[int] = Counter()
        self.names = ["brief", "long"]
        self.receiver.on(CommentReceived, name="brief")(self.brief)
        self.receiver.on(CommentReceived, name="long")(self.long)
        if has_threads:
            self.names.append("threaded")
            self.receiver.on(CommentReceived, name="threaded")(self.threaded)

    async def brief(self, event: CommentReceived, context: Context) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        self.threaded(event, context)

    async def long(self, event: CommentReceived, context: Context) -> None:
        await asyncio.sleep(0.005)
        self.threaded(event, context)

    def threaded(self, event: CommentReceived, context: Context) -> None:
        self.succeeded[event.id, context.handler] += 1
        self.attempts[context.attempt] += 1

    async def deliver(self, event: CommentReceived) -> Outcome:
        request = signed_request(event, SECRET)
        return await self.receiver.handle(request.body, request.headers)

    def has_succeeded(self, event: CommentReceived) -> bool:
        return all(self.succeeded[event.id, name] for name in self.names)

    async def problems(self, turn: int, event: CommentReceived) -> list[str]:
        """Deliver an event again; return what is wrong if the event is not handled once."""
        outcome = await self.deliver(event)
        if outcome.status not in {200, 202}:
            return [f"at turn {turn} the next delivery is answered {outcome.reason}"]
        try:
            await until(lambda: self.has_succeeded(event), seconds=5.0)
        except AssertionError:
            return [f"at turn {turn} it is not handled: {self.succeeded}"]
        return [
            f"at turn {turn} {name} succeeds {self.succeeded[event.id, name]} times"
            for name in self.names
            if self.succeeded[event.id, name] != 1
        ]

    async def is_idle(self) -> bool:
        stats = await self.receiver.stats()
        return (stats.in_flight, stats.depth, stats.dead) == (0, 0, 0)


def run(main: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main)


def after(turns: int, action: Callable[[], object]) -> None:
    cast("CountingLoop", asyncio.get_running_loop()).after(turns, action)


async def cancelled_after(turns: int, work: Coroutine[None, None, object]) -> None:
    """Start the work in a task, cancel the task after this many turns, and wait for its end."""
    task = asyncio.create_task(work)
    after(turns, task.cancel)
    await asyncio.wait([task])


@DRAWN
@EACH_WAY
def test_a_request_may_be_cancelled_at_any_turn(
    store_url: str, has_inbox: bool, count: int
) -> None:
    app = Application(store_url, has_inbox=has_inbox, has_threads=True)
    problems: list[str] = []

    async def cancel_at_each_turn() -> None:
        for turn in random.sample(range(TURNS), count):
            event = make_event(CommentReceived)
            await cancelled_after(turn, app.deliver(event))
            problems.extend(await app.problems(turn, event))
            if problems:
                return
        await until_async(app.is_idle, what="nothing is held")

    async def main() -> None:
        async with app.receiver:
            if not has_inbox:
                await cancel_at_each_turn()
                return
            async with app.receiver.working():
                await cancel_at_each_turn()

    run(main())
    assert not problems
    assert set(app.attempts) == {1}


@DRAWN
@EACH_WAY
def test_work_on_an_event_may_end_with_a_shutdown_at_any_turn(
    store_url: str, has_inbox: bool, count: int
) -> None:
    app = Application(store_url, has_inbox=has_inbox, has_threads=False)
    problems: list[str] = []

    async def work() -> None:
        async with app.receiver.working():
            await asyncio.Event().wait()

    async def serve(event: CommentReceived) -> None:
        requests: set[asyncio.Task[Outcome]] = set()
        try:
            async with app.receiver:
                requests.add(asyncio.create_task(app.deliver(event)))
                await asyncio.Event().wait()
        finally:
            await asyncio.gather(*requests)

    async def main() -> None:
        for turn in random.sample(range(TURNS), count):
            event = make_event(CommentReceived)
            if has_inbox:
                await app.deliver(event)
                await cancelled_after(turn, work())
                async with app.receiver.working():
                    problems.extend(await app.problems(turn, event))
            else:
                await cancelled_after(turn, serve(event))
                async with app.receiver:
                    problems.extend(await app.problems(turn, event))
            if problems:
                return
        async with app.receiver.opened():
            await until_async(app.is_idle, what="nothing is held")

    run(main())
    assert not problems
