"""All unfinished bodies share a memory limit; above it, the receiver evicts the oldest body."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support.servers import RawConnection, Site, request_bytes, serving
from support.waiting import until

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.http.body import BodyBudget, PartialBody, RequestRefusedError, read_rest
from hookonce.testing import SignedRequest, make_event, signed_request
from hookonce.verification.secrets import new_secret
from hookonce.watching.records import DeliveryAnswered, Observer

pytestmark = pytest.mark.anyio

SECRET = new_secret()
SIZE = 200_000
LIMITS = Limits(body_bytes=SIZE, bodies_bytes=2 * SIZE, body_seconds=20)


class Reasons(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        self.seen.append(record.outcome.reason)


def make_receiver(*observers: Observer) -> Receiver:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=LIMITS, observers=observers)

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    return receiver


def large() -> SignedRequest:
    """Return a delivery of the largest permitted size."""
    request = signed_request(make_event(CommentReceived), SECRET)
    return signed_request(request.body.ljust(SIZE), SECRET)


@asynccontextmanager
async def begun(receiver: Receiver, site: Site) -> AsyncIterator[RawConnection]:
    """Send a delivery without the last byte of its body, a space; yield the connection."""
    request = large()
    bodies = receiver._app._budget._bodies
    async with await RawConnection.to(site) as connection:
        head = request_bytes(request, headers={"content-length": str(SIZE)})
        before = set(bodies)
        await connection.write(head + request.body[:-1])
        await until(lambda: any(body.size == SIZE - 1 for body in {*bodies} - before))
        yield connection


async def test_the_oldest_unfinished_body_is_evicted_for_newer_ones() -> None:
    reasons = Reasons()
    receiver = make_receiver(reasons)
    async with serving(receiver) as site, AsyncExitStack() as stack:
        uploads = [await stack.enter_async_context(begun(receiver, site)) for _ in range(4)]
        assert receiver._app._budget._bytes <= LIMITS.bodies_bytes
        for upload in uploads:
            await upload.write(b" ")
        answers = [await upload.answer() for upload in uploads]
        assert [answer.reason for answer in answers] == [*["overloaded"] * 2, *["handled"] * 2]
        for answer in answers[:2]:
            answer.expect(503)
            assert answer.headers["retry-after"]
            assert answer.headers["connection"] == "close"
        assert reasons.seen.count("overloaded") == 2
        assert receiver._app._budget._bytes == 0


async def test_the_rest_of_an_evicted_body_evicts_no_other_body() -> None:
    budget, slow, quick = BodyBudget(8), PartialBody([b"123456"], 6), PartialBody([b"123456"], 6)

    async def receive() -> dict[str, object]:
        budget.hold(quick)
        return {"type": "http.request", "body": b"789", "more_body": True}

    with pytest.raises(RequestRefusedError, match="overloaded"):
        await read_rest(receive, 100, slow, budget)
    assert slow.is_evicted
    assert not quick.is_evicted


@pytest.mark.parametrize("messages", [1, 2])
async def test_no_bytes_of_an_evicted_body_are_kept_while_its_client_waits(
    messages: int,
) -> None:
    class Piece(bytes):
        """Bytes that hold an object: a weak reference to it shows whether the bytes still exist."""

        mark: object

    def begin() -> tuple[asyncio.Task[None], weakref.ref[object]]:
        mark, pieces = Reasons(), list[dict[str, object]]()
        for _ in range(messages):
            piece = Piece((SIZE - 1) // messages)
            piece.mark = mark
            pieces.append({"type": "http.request", "body": piece, "more_body": True})
        del piece

        async def receive() -> dict[str, object]:
            if not pieces:
                await asyncio.Event().wait()
            return pieces.pop()

        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        return asyncio.create_task(receiver(scope, receive, ignore)), weakref.ref(mark)

    async def ignore(_: object) -> None: ...

    receiver = make_receiver()
    tasks, marks = zip(*(begin() for _ in range(4)), strict=True)
    await until(lambda: marks[0]() is None and marks[1]() is None)
    assert not any(task.done() for task in tasks)
    assert marks[2]() is not None
    assert marks[3]() is not None
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_genuine_delivery_is_answered_among_bodies_that_never_end() -> None:
    receiver = make_receiver()
    async with serving(receiver) as site, AsyncExitStack() as stack:
        for _ in range(10):
            await stack.enter_async_context(begun(receiver, site))
        request = large()
        async with await RawConnection.to(site) as connection:
            head = request_bytes(request, headers={"content-length": str(SIZE)})
            await connection.write(head + request.body)
            (await connection.answer()).expect(200, "handled")
        await stack.aclose()
        await until(lambda: receiver._app._budget._bytes == 0, what="nothing is held of those gone")


async def test_a_cancelled_request_releases_its_body() -> None:
    receiver = make_receiver()
    pieces = iter([{"type": "http.request", "body": b"x" * 100, "more_body": True}])

    async def receive() -> dict[str, object]:
        try:
            return next(pieces)
        except StopIteration:
            await asyncio.Event().wait()
            raise

    async def send(_: object) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    task = asyncio.create_task(receiver(scope, receive, send))
    await until(lambda: receiver._app._budget._bytes == 100)
    task.cancel()
    await asyncio.wait({task})
    assert receiver._app._budget._bytes == 0


def test_a_budget_below_the_largest_body_is_refused() -> None:
    with pytest.raises(ValueError, match="bodies_bytes must be at least body_bytes, 2097152"):
        Limits(bodies_bytes=1000)
