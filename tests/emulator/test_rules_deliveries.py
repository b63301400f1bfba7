"""Attempts, their schedule and their log: Events, Delivery behaviour (interface v1)."""

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import TypeAlias

import pytest
from freezegun import freeze_time
from starlette.types import Receive, Scope, Send
from support.recorder import Recorder, add_endpoint, answering, ticking
from support.servers import serving

from hookonce import Receiver
from hookonce.emulator import DeliveryAttempt, EmulatedService, VirtualClock
from hookonce.events import CommentReceived
from hookonce.resources import WebhookDelivery
from hookonce.senders import publishing
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

WAITS = [30, 120, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600]
"""About 30 seconds, 2 minutes, 10 minutes, 30 minutes, 1 hour, 3 hours, 6 hours and 12 hours."""

DAY = 86_400


async def gaps_of(seed: int) -> list[float]:
    """Return the waits between the attempts at an event that always fails."""
    clock = VirtualClock()
    app = Recorder(500, clock)
    async with EmulatedService(app, clock=clock, seed=seed) as service:
        await service.emit("comment.received")
        await service.advance(days=13)
        (row,) = service.deliveries()
        assert [one.number for one in app.received] == list(range(1, 10))
        assert (row.status, row.attempts, row.next_attempt_at) == ("failed", 9, None)
    return [later.at - earlier.at for earlier, later in pairwise(app.received)]


# The schedule of attempts


async def test_nine_attempts_over_about_23_hours_each_wait_within_10_percent() -> None:
    """Interface, Events, Delivery behaviour; Limits, Delivery attempts: no attempt follows the
    ninth.
    """
    every = [await gaps_of(seed) for seed in range(150)]
    for gaps in every:
        for gap, wait in zip(gaps, WAITS, strict=True):
            assert 0.9 * wait - 1e-3 <= gap <= 1.1 * wait + 1e-3
        assert sum(gaps) == pytest.approx(23 * 3600, rel=0.12)
    for place, wait in enumerate(WAITS):
        ratios = [gaps[place] / wait for gaps in every]
        assert len(set(ratios)) == len(ratios), "no two waits are the same"
        assert min(ratios) < 0.92
        assert max(ratios) > 1.08
        assert sum(ratios) / len(ratios) == pytest.approx(1, abs=0.02)


async def test_the_waits_of_one_delivery_are_drawn_one_by_one() -> None:
    """Interface, Events, Delivery behaviour: "each give or take 10 percent"."""
    ratios = [gap / wait for gap, wait in zip(await gaps_of(7), WAITS, strict=True)]
    assert max(ratios) - min(ratios) > 0.03


async def test_each_delivery_has_waits_of_its_own() -> None:
    clock = VirtualClock()
    app = Recorder(answering(500), clock)
    async with EmulatedService(app, clock=clock) as service:
        events = [await service.emit("comment.received") for _ in range(20)]
        await service.advance(seconds=40)
        firsts = {service.attempts(event.id)[1].at for event in events}
    assert len(firsts) == 20


async def test_the_same_seed_brings_the_same_waits_and_another_seed_others() -> None:
    assert await gaps_of(11) == pytest.approx(await gaps_of(11), abs=1e-3)
    assert await gaps_of(11) != pytest.approx(await gaps_of(12), abs=1e-3)
    service = EmulatedService(Recorder())
    assert EmulatedService(Recorder()).seed != service.seed, "a new one by default"


async def test_the_next_attempt_comes_when_the_log_says() -> None:
    """Interface, Resources, Webhook delivery: nextAttemptAt."""
    clock = VirtualClock()
    app = Recorder(500, clock)
    async with EmulatedService(app, clock=clock) as service:
        await service.emit("comment.received")
        for number in range(1, 9):
            (row,) = service.deliveries()
            assert (row.status, row.attempts) == ("pending", number)
            assert row.next_attempt_at is not None
            until = row.next_attempt_at.timestamp() - clock()
            await service.advance(seconds=until - 0.01)
            assert len(app.received) == number
            await service.advance(seconds=0.02)
            assert len(app.received) == number + 1
            assert app.received[-1].at == pytest.approx(row.next_attempt_at.timestamp(), abs=1e-3)


# What counts as success


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
@pytest.mark.parametrize("failures", [0, 3, 8])
async def test_any_2xx_ends_the_delivery(status: int, failures: int) -> None:
    """Interface, States: delivery | attempt | answer 2xx within 10 s | delivered."""
    clock = VirtualClock()
    app = Recorder(answering(*[500] * failures, status), clock)
    async with EmulatedService(app, clock=clock) as service:
        await service.emit("comment.received")
        await service.advance(days=3)
        (row,) = service.deliveries()
    assert len(app.received) == failures + 1
    assert (row.status, row.response_status, row.error_message) == ("delivered", status, None)
    assert row.attempts == failures + 1
    assert row.delivered_at is not None
    assert row.delivered_at.timestamp() == pytest.approx(app.received[-1].at, abs=1e-3)
    assert row.next_attempt_at is None


@pytest.mark.parametrize(
    "status",
    [
        *(101, 103, 199),
        *(300, 301, 302, 303, 304, 307, 308, 399),
        *(400, 401, 404, 408, 413, 429, 499),
        *(500, 502, 503, 504, 599),
    ],
)
async def test_any_other_status_is_a_failed_attempt(status: int) -> None:
    """Interface, States: delivery | attempt | non-2xx | retry scheduled; delivery | attempt |
    redirect.
    """
    clock = VirtualClock()
    app = Recorder(answering(status, 204), clock)
    async with EmulatedService(app, clock=clock) as service:
        await service.emit("comment.received")
        (row,) = service.deliveries()
        assert (row.status, row.response_status, row.attempts) == ("pending", status, 1)
        assert str(status) in (row.error_message or "")
        assert service.endpoint().consecutive_failures == 1
        await service.advance(minutes=1)
        (row,) = service.deliveries()
        assert (row.status, row.attempts) == ("delivered", 2)
    assert [one.number for one in app.received] == [1, 2]
    assert {one.path for one in app.received} == {"/webhooks"}, "redirects are not followed"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    """Interface, Events, rule 3: redirects over HTTP are not followed, even if their target
    answers.
    """
    app = Recorder(answering(status))
    async with serving(app) as site, EmulatedService(f"{site.url}/webhooks") as service:
        await service.emit("comment.received")
        await service.advance(minutes=5)
        (row,) = service.deliveries()
    assert [one.path for one in app.received] == ["/webhooks"] * 3
    assert (row.status, row.response_status) == ("pending", status)


async def test_an_application_that_raises_has_answered_500() -> None:
    """Interface, Events, Delivery behaviour: any other status is a failed attempt; a real server
    answers 500 for an application that raises.
    """

    class Broken(Recorder):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await super().__call__(scope, receive, send)
            if scope["type"] == "http" and len(self.received) == 1:
                raise LookupError("a bug")

    app = Broken()
    async with EmulatedService(app) as service:
        await service.emit("comment.received")
        (row,) = service.deliveries()
        assert (row.status, row.response_status) == ("pending", 500)
        await service.advance(minutes=1)
        assert service.deliveries()[0].status == "delivered"


# The limit of ten seconds


async def test_an_answer_within_ten_seconds_is_in_time_and_a_later_one_is_not() -> None:
    """Interface, Events, Delivery behaviour; Limits, Webhook answer time: 10 seconds, in frozen
    time.
    """
    assert publishing.rules.answer_seconds == 10

    class Slow(Recorder):
        """A receiver that moves the frozen time by given seconds before each answer."""

        def __init__(self, *seconds: float) -> None:
            super().__init__()
            self.seconds = list(seconds)

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                frozen.tick(self.seconds.pop(0))
                for _ in range(10):
                    await asyncio.sleep(0)  # let due timers run
            await super().__call__(scope, receive, send)

    with freeze_time(datetime(2026, 5, 6, tzinfo=UTC)) as frozen:
        app = Slow(10.1, 10.01, 9.9)
        async with EmulatedService(app, clock=frozen) as service:
            await service.emit("comment.received")
            (row,) = service.deliveries()
            assert (row.status, row.response_status) == ("pending", None)
            assert row.error_message == "no answer within 10 s"
            await service.advance(hours=1)
            (row,) = service.deliveries()
    assert (row.status, row.attempts) == ("delivered", 3)
    assert row.duration_ms == pytest.approx(9900, abs=5)


async def test_a_time_out_is_a_failed_attempt_and_retried() -> None:
    """Interface, States: delivery | attempt | timeout | retry scheduled."""
    is_free = asyncio.Event()

    class Stuck(Recorder):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await is_free.wait()
            await super().__call__(scope, receive, send)

    app = Stuck()
    async with EmulatedService(app, answer_seconds=0.02) as service:
        await service.emit("comment.received")
        (attempt,) = service.attempts()
        assert (attempt.status, attempt.failure) == (None, "no answer within 0.02 s")
        is_free.set()
        await service.advance(minutes=1)
        (row,) = service.deliveries()
    assert (row.status, row.attempts) == ("delivered", 2)
    assert [one.number for one in app.received] == [1, 2], "the first was handled after all"


async def test_a_server_that_does_not_answer_times_out() -> None:
    """Interface, Events, Delivery behaviour: a timeout over HTTP is a failed attempt."""
    async with (
        raw_server(silence) as port,
        EmulatedService(f"http://127.0.0.1:{port}/", answer_seconds=0.05) as service,
    ):
        await service.emit("comment.received")
        (row,) = service.deliveries()
    assert (row.status, row.error_message) == ("pending", "no answer within 0.05 s")


# Connections that break or are refused


Reaction: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def silence(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def reset(writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def close(_: asyncio.StreamWriter) -> None:
    """Close the connection without an answer."""


async def babble(writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello\r\n\r\n")
    await writer.drain()


async def promise(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nten bytes.")
    await writer.drain()


@asynccontextmanager
async def raw_server(react: Reaction) -> AsyncIterator[int]:
    """Listen on a port; read each request, call ``react``, and close the connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            await react(writer)
        finally:
            writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("react", [reset, close, babble, promise])
async def test_a_connection_that_breaks_is_a_failed_attempt(react: Reaction) -> None:
    """Interface, Events, Delivery behaviour: only a 2xx that arrives is success."""
    async with (
        raw_server(react) as port,
        EmulatedService(f"http://127.0.0.1:{port}/in") as service,
    ):
        await service.emit("comment.received")
        await service.advance(minutes=3)
        (row,) = service.deliveries()
        assert [attempt.status for attempt in service.attempts()] == [None] * 3
    assert (row.status, row.attempts, row.response_status) == ("pending", 3, None)
    assert row.error_message


async def test_a_server_that_is_down_gets_retries_until_it_is_up() -> None:
    """Interface, States, delivery: a connection that is refused is retried like any failure."""
    app = Recorder()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with EmulatedService(f"http://127.0.0.1:{port}/webhooks") as service:
        await service.emit("comment.received")
        await service.advance(minutes=2)
        (row,) = service.deliveries()
        assert (row.status, row.response_status) == ("pending", None)
        assert "ConnectError" in (row.error_message or "")
        async with serving(app) as site:
            service.workspace.endpoints[service.endpoint().id].url = f"{site.url}/webhooks"
            await service.advance(minutes=15)
        (row,) = service.deliveries()
    assert row.status == "delivered"
    assert [one.number for one in app.received] == [row.attempts]


@pytest.mark.parametrize(
    "url",
    ["receiver.example", "ftp://x/", "http://", "", "//x/y", "http://x:99999/", "http://[::/"],
)
def test_an_invalid_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="not a URL to deliver to"):
        EmulatedService(url)


# The delivery log


async def test_a_delivery_is_shown_with_every_documented_field() -> None:
    """Interface, Resources, Webhook delivery: the names of its fields."""
    async with EmulatedService(Recorder()) as service:
        event = await service.emit("comment.received")
        (row,) = service.deliveries()
    assert isinstance(row, WebhookDelivery)
    shown = row.model_dump(mode="json", by_alias=True)
    assert set(shown) == {
        *("id", "eventId", "eventType", "status", "attempts", "responseStatus", "errorMessage"),
        *("durationMs", "isTest", "createdAt", "deliveredAt", "nextAttemptAt"),
    }
    assert (row.event_id, row.event_type, row.is_test) == (event.id, "comment.received", False)
    assert row.duration_ms is not None
    assert 0 <= row.duration_ms < 5000


async def test_the_log_is_newest_first_and_can_be_filtered() -> None:
    """Interface, Endpoints, Webhooks: deliveries are listed newest first."""
    clock = VirtualClock()
    first, second = Recorder(answering(204, 500, 204), clock), Recorder(clock=clock)
    async with EmulatedService(first, clock=clock, events=["comment.received"]) as service:
        own, other = service.endpoint().id, add_endpoint(service, second).id
        events = []
        for _ in range(3):
            events.append(await service.emit("comment.received"))
            await service.advance(seconds=1)
        ids = [event.id for event in events]
        assert [row.event_id for row in service.deliveries(own)] == ids[::-1]
        assert [row.event_id for row in service.deliveries(other)] == ids[::-1]
        assert len(service.deliveries()) == 6
        created = [row.created_at for row in service.deliveries(own)]
        assert created == sorted(created, reverse=True)
        assert [row.event_id for row in service.deliveries(status="pending")] == [ids[1]]
        assert len(service.deliveries(status="delivered")) == 5
        assert service.deliveries(status="failed") == []
        assert {row.event_id for row in service.deliveries(event_id=ids[0])} == {ids[0]}
        assert len(service.deliveries(event_id=ids[0])) == 2
        assert len({row.id for row in service.deliveries()}) == 6


async def test_the_log_is_kept_14_days() -> None:
    """Interface, Limits, Delivery log retention: 14 days."""
    clock = VirtualClock()
    async with EmulatedService(Recorder(), clock=clock) as service:
        old = await service.emit("comment.received")
        await service.advance(days=1)
        young = await service.emit("comment.received")
        await service.advance(days=13)
        assert [row.event_id for row in service.deliveries()] == [young.id, old.id]
        await service.advance(seconds=1)
        assert [row.event_id for row in service.deliveries()] == [young.id]
        await service.advance(days=1)
        assert service.deliveries() == []
        assert len(service.attempts()) == 2, "what was sent is for the test, not the log"


async def test_a_test_is_marked_in_the_log() -> None:
    """Interface, Resources, Webhook delivery: isTest."""
    async with EmulatedService(Recorder()) as service:
        shown = await service.test()
        assert (shown.is_test, shown.status, shown.attempts) == (True, "delivered", 1)
        assert service.deliveries() == [shown]


# What a test can read about each attempt


async def test_an_attempt_has_the_request_and_its_result() -> None:
    clock = VirtualClock()
    receiver = Receiver(secrets=new_secret(), store="memory://", clock=clock)
    told: list[DeliveryAttempt] = []

    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None:
        if len(told) == 0:
            raise LookupError("not yet")

    async with EmulatedService(receiver, clock=clock, on_attempt=told.append) as service:
        event = await service.emit(CommentReceived)
        await service.advance(minutes=1)
        first, second = service.attempts(event.id)
        (row,) = service.deliveries()
        assert service.attempts("evt_other") == []
    assert told == [first, second]
    for number, attempt in enumerate((first, second), start=1):
        assert (attempt.delivery_id, attempt.event_id) == (row.id, event.id)
        assert attempt.endpoint_id == service.endpoint().id
        assert (attempt.event_type, attempt.number) == ("comment.received", number)
        assert attempt.timestamp == int(attempt.at_unix)
        assert (attempt.is_genuine, attempt.is_extra, attempt.disturbance) == (True, False, None)
    assert (first.status, first.reason, first.failure) == (500, "handler_failed", "answered 500")
    assert (second.status, second.reason, second.failure) == (200, "handled", None)


async def test_the_wait_for_a_retry_counts_from_the_start_of_the_attempt() -> None:
    """Interface, Events, Delivery behaviour: the time that the receiver took for its answer does
    not matter.
    """
    clock = VirtualClock()
    tick = [lambda: clock.tick(datetime(2026, 1, 1, 0, 0, 9) - datetime(2026, 1, 1))]  # noqa: DTZ001
    app = Recorder(ticking(answering(500, 204), *tick), clock)
    async with EmulatedService(app, clock=clock, seed=3) as service:
        began = clock()
        await service.emit("comment.received")
        await service.advance(minutes=2)
        first, second = service.attempts()
    assert first.at_unix == began
    assert 27 <= second.at_unix - began <= 33
