"""Time in the emulated service: moved by a test, shared with a receiver, frozen, or flowing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from freezegun import freeze_time
from starlette.types import Receive, Scope, Send
from support.recorder import Received, Recorder, answering
from support.servers import serving
from support.waiting import PATIENCE_SECONDS, until

from hookonce import Receiver, Retry
from hookonce.clock import system_clock
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.emulator.timeline import ServiceTime, Timeline
from hookonce.events import ChannelUnhealthy, CommentReceived
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 5, 6, 12, tzinfo=UTC)
SECRET = new_secret()


def receiver_with(clock: Callable[[], float] = system_clock) -> Receiver:
    return Receiver(secrets=SECRET, store="memory://", clock=clock)


@asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    """Check after the block that every task begun in the block has ended."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before
    assert not left, left


# The clock


def test_a_virtual_clock_moves_only_forward_and_only_by_tick() -> None:
    clock = VirtualClock(100.0)
    assert clock() == clock() == 100.0
    clock.tick(timedelta(hours=1))
    assert clock() == 3700.0
    clock.tick(timedelta())
    clock.tick(0)
    with pytest.raises(ValueError, match="delta takes a finite number of seconds from 0"):
        clock.tick(timedelta(microseconds=-1))
    assert clock() == 3700.0
    assert repr(clock) == "VirtualClock(3700.0)"


def test_a_virtual_clock_starts_now_by_default() -> None:
    with freeze_time(NOON):
        assert VirtualClock()() == NOON.timestamp()


# Time that a test moves


async def test_nothing_happens_before_its_time_and_no_real_time_passes() -> None:
    """Interface, Events, Delivery behaviour: the 23 hours of a schedule, in a loop that never
    waits.
    """
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    real = loop.call_at

    def call_at(when: float, *args: object, **named: object) -> asyncio.TimerHandle:
        delays.append(when - loop.time())
        return real(when, *args, **named)  # type: ignore[arg-type]  # the arguments are passed on unchanged

    clock = VirtualClock()
    app = Recorder(500, clock)
    loop.call_at = call_at  # type: ignore[method-assign]  # the test records every timer
    try:
        async with EmulatedService(app, clock=clock) as service:
            await service.emit("comment.received")
            await service.advance(hours=26)
    finally:
        loop.call_at = real  # type: ignore[method-assign]  # restore the loop's own method
    assert len(app.received) == 9
    assert delays, "the ten seconds of each attempt"
    assert all(9 < delay <= 10 for delay in delays), "no timer but that of an answer"


async def test_attempts_are_made_in_order_across_deliveries_each_at_its_time() -> None:
    clock = VirtualClock()
    app = Recorder(500, clock)
    async with EmulatedService(app, clock=clock) as service:
        for _ in range(20):
            await service.emit("comment.received")
            await service.advance(minutes=7)
        await service.advance(days=2)
        attempts = service.attempts()
    assert len(attempts) == 180
    assert [attempt.at for attempt in attempts] == sorted(attempt.at for attempt in attempts)
    assert [one.at for one in app.received] == pytest.approx(
        [one.at_unix for one in attempts], abs=1e-5
    )
    assert app.ids == [attempt.event_id for attempt in attempts]
    assert app.ids[:40] != sorted(app.ids[:40], key=app.ids.index), "deliveries take turns"


async def test_advance_stops_at_the_given_time() -> None:
    clock = VirtualClock(NOON.timestamp())
    async with EmulatedService(Recorder(500, clock), clock=clock) as service:
        await service.emit("comment.received")
        await service.advance(timedelta(seconds=1), days=1, hours=2, minutes=3, seconds=4)
        expected = NOON + timedelta(days=1, hours=2, minutes=3, seconds=5)
        assert service.now.timestamp() == pytest.approx(expected.timestamp(), abs=1e-5)
        assert clock() == pytest.approx(service.now.timestamp(), abs=2e-6)


async def test_advance_refuses_a_negative_time() -> None:
    async with EmulatedService(Recorder()) as service:
        with pytest.raises(ValueError, match=r"advance\(\) takes .* seconds from 0"):
            await service.advance(hours=1, minutes=-61)


async def test_settle_moves_time_as_far_as_needed() -> None:
    clock = VirtualClock(NOON.timestamp())
    async with EmulatedService(Recorder(500, clock), clock=clock) as service:
        await service.settle()
        assert clock() == NOON.timestamp(), "nothing was due"
        await service.emit("comment.received")
        await service.settle()
        (row,) = service.deliveries()
        assert row.status == "failed"
        hours = (clock() - NOON.timestamp()) / 3600
    assert 20 < hours < 26


async def test_many_small_steps_keep_the_service_and_its_clock_together() -> None:
    clock = VirtualClock(NOON.timestamp())
    async with EmulatedService(clock=clock) as service:
        for step in range(3000):
            await service.advance(seconds=step / 7919)
        assert service.now.timestamp() == pytest.approx(clock(), abs=2e-6)


# Time shared with a receiver


async def test_a_receiver_on_the_same_clock_accepts_every_attempt() -> None:
    """Interface, Events, Signature, rule 5: a timestamp more than five minutes away is rejected."""
    clock = VirtualClock()
    receiver = receiver_with(clock)
    ran_at = []

    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None:
        ran_at.append(clock())
        if len(ran_at) < 8:
            raise Retry

    async with EmulatedService(receiver, clock=clock) as service:
        await service.emit(CommentReceived)
        await service.advance(days=2)
        statuses = [attempt.status for attempt in service.attempts()]
        assert [attempt.at_unix for attempt in service.attempts()] == pytest.approx(
            ran_at, abs=1e-5
        )
    assert statuses == [503] * 7 + [200]


async def test_with_the_systems_clock_a_receiver_accepts_the_attempt_of_hour_23() -> None:
    """Without a shared clock, the service signs with the system's time, so the receiver accepts the
    attempt.
    """
    receiver = receiver_with()
    ran = []

    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None:
        ran.append(1)
        if len(ran) < 8:
            raise Retry

    began = system_clock()
    async with EmulatedService(receiver) as service:
        event = await service.emit(CommentReceived)
        await service.advance(hours=26)
        attempts = service.attempts()
        assert service.now.timestamp() - began > 26 * 3600
        (row,) = service.deliveries()
    assert (row.status, row.attempts) == ("delivered", 8)
    assert attempts[-1].at - attempts[0].at > timedelta(hours=9)
    assert all(abs(attempt.timestamp - system_clock()) < 60 for attempt in attempts)
    assert abs(event.created_at.timestamp() - began) < 60


async def test_a_given_clock_function_determines_the_signed_time() -> None:
    app = Recorder()
    async with EmulatedService(app, clock=lambda: 1_800_000_000.5) as service:
        await service.emit("comment.received")
        assert service.now.timestamp() == 1_800_000_000.5
        await service.advance(hours=1)
        assert service.now.timestamp() == 1_800_003_600.5
    assert [one.timestamp for one in app.received] == [1_800_000_000]


# Time frozen by freezegun


async def test_frozen_time_moves_with_advance() -> None:
    receiver = receiver_with()
    ran_at = []

    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None:
        ran_at.append(datetime.now(UTC))
        if len(ran_at) < 6:
            raise Retry

    with freeze_time(NOON) as frozen:
        async with EmulatedService(receiver, clock=frozen) as service:
            await service.emit(CommentReceived)
            await service.advance(hours=23)
            (row,) = service.deliveries()
            now = datetime.now(UTC)
            assert service.now.timestamp() == pytest.approx(now.timestamp(), abs=1e-5)
    assert (row.status, row.attempts) == ("delivered", 6)
    assert ran_at[0] == NOON
    assert timedelta(hours=1.4) < ran_at[-1] - NOON < timedelta(hours=2)
    assert abs(now - NOON - timedelta(hours=23)) < timedelta(milliseconds=1)


@pytest.mark.parametrize("source", ["freezegun", "the system's clock, frozen", "VirtualClock"])
async def test_advance_notices_time_that_the_test_moved(source: str) -> None:
    with freeze_time(NOON) as frozen:
        virtual = VirtualClock(NOON.timestamp())
        move = virtual.tick if source == "VirtualClock" else frozen.tick
        app = Recorder(500)
        if source == "VirtualClock":
            service = EmulatedService(app, clock=virtual)
        elif source == "freezegun":
            service = EmulatedService(app, clock=frozen)
        else:
            service = EmulatedService(app)
        async with service:
            await service.emit("comment.received")
            move(timedelta(seconds=40))
            assert len(app.received) == 1, "nothing happens by itself"
            await service.advance()
            assert len(app.received) == 2
            move(timedelta(seconds=40))
            await service.advance(minutes=2)
            assert len(app.received) == 3
            assert service.now.timestamp() == pytest.approx(NOON.timestamp() + 200, abs=1e-5)
            assert app.received[-1].timestamp - NOON.timestamp() in range(80, 201) or (
                source == "the system's clock, frozen"
            )


# Receivers may call the service


@pytest.mark.parametrize("by", ["emit", "advance", "flow"])
async def test_a_handler_can_make_the_service_emit(by: str) -> None:
    """The handler does not deadlock, and the event is delivered."""
    receiver = receiver_with()
    handled: list[str] = []

    @receiver.on(CommentReceived)
    async def answer(event: CommentReceived) -> None:
        handled.append(event.type)
        if by == "advance" and len(handled) == 1:
            raise Retry
        await service.emit(ChannelUnhealthy)
        service.rotate_secret(secret=SECRET)
        await service.test()

    @receiver.on(ChannelUnhealthy)
    async def note(event: ChannelUnhealthy) -> None:
        handled.append(event.type)

    async with asyncio.timeout(5):
        service = EmulatedService(receiver, speed=1000 if by == "flow" else None)
        async with service:
            await service.emit(CommentReceived)
            if by == "advance":
                await service.advance(minutes=1)
            await service.settle()
            delivered = service.deliveries(status="delivered")
    assert handled.count("channel.unhealthy") == 1
    assert len(delivered) == 3


async def test_events_can_be_emitted_at_the_same_time() -> None:
    app = Recorder()
    async with EmulatedService(app) as service:
        await asyncio.gather(*(service.emit("comment.received") for _ in range(50)))
    assert len(set(app.ids)) == 50
    assert app.most_at_once > 1


# Time that flows by itself


SPEED = 100_000
DAY = 86_400


async def test_flowing_time_runs_the_whole_schedule_over_http() -> None:
    """Interface, Events, Delivery behaviour: 23 hours in a second, to a real server."""
    app = Recorder(500)
    async with (
        no_task_left(),
        serving(app) as site,
        EmulatedService(f"{site.url}/webhooks", speed=SPEED) as service,
    ):
        event = await service.emit("comment.received")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await service.settle()
        (row,) = service.deliveries()
        assert (row.status, row.attempts) == ("failed", 9)
        attempts = service.attempts(event.id)
    assert [one.number for one in app.received] == list(range(1, 10))
    assert app.ids == [event.id] * 9
    assert attempts[-1].at - attempts[0].at > timedelta(hours=20) / SPEED
    assert all(abs(one.timestamp - system_clock()) < 60 for one in app.received)


async def test_settle_waits_for_later_attempts_in_flowing_time() -> None:
    app = Recorder(answering(500, 204))
    async with EmulatedService(app, speed=300) as service:
        await service.emit("comment.received")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await service.settle()
        first, second = service.attempts()
    assert 27 / 300 <= second.at_unix - first.at_unix < 27 + 30, "not minutes of real time"


async def test_at_any_speed_all_times_are_those_of_the_clock() -> None:
    """The service's times are those of the system's clock, so a receiver can compare them with its
    own clock.
    """
    app = Recorder(answering(500, 204))
    begun = system_clock()
    async with EmulatedService(app, speed=10_000, plan="agency") as service:
        key = service.new_key()
        transport = httpx2.ASGITransport(service.api)
        async with httpx2.AsyncClient(
            transport=transport, base_url="https://service.test", headers={"x-api-key": key}
        ) as api:
            await asyncio.sleep(0.1)  # at this speed, 1000 seconds of the service
            event = await service.emit("comment.received")
            async with asyncio.timeout(PATIENCE_SECONDS):
                await service.settle()
            channel = {"channelId": "ch_6Py3sFgN"}
            post = {"caption": "Rye.", "targets": [channel], "mode": "now"}
            post_id = (await api.post("/v1/posts", json=post)).json()["data"]["id"]
            await service.settle()
            shown = (await api.get(f"/v1/posts/{post_id}")).json()["data"]
            webhook = service.endpoint().id
            (_, log) = (await api.get(f"/v1/webhooks/{webhook}/deliveries")).json()["data"]
            listed = (await api.get("/v1/comments")).json()["data"][0]
            quota = await api.get("/v1/me")
            service.leave_quota(0)
            refused = await api.get("/v1/me")
    assert isinstance(event, CommentReceived)
    first, *_ = service.attempts(event.id)
    moments = {
        "the event": event.created_at.timestamp(),
        "the attempt": first.at_unix,
        "the log's entry": moment(log["createdAt"]),
        "the log's success": moment(log["deliveredAt"]),
        "the endpoint's success": moment(service.endpoint().last_success_at),
        "the post": moment(shown["createdAt"]),
        "its publication": moment(shown["publishedAt"]),
        "the clock of the service": service.now.timestamp(),
    }
    ended = system_clock()
    assert {name: at for name, at in moments.items() if not begun - 0.01 <= at <= ended} == {}
    assert first.timestamp == int(first.at_unix)
    assert abs(moment(log["createdAt"]) - event.created_at.timestamp()) < 1
    assert listed["id"] == event.data.id
    # The speed shortens the quota's day by the same factor as every wait.
    reset = int(quota.headers["x-ratelimit-reset"])
    assert begun <= reset <= ended + DAY / 10_000 + 1
    assert int(refused.headers["retry-after"]) <= DAY / 10_000 + 2  # two times are rounded up


def moment(shown: str | datetime | None) -> float:
    assert shown is not None
    return (datetime.fromisoformat(shown) if isinstance(shown, str) else shown).timestamp()


async def test_a_speed_shortens_rotations_the_log_and_disabling() -> None:
    clock = [1_700_000_000.0]
    app = Recorder(500)
    async with EmulatedService(app, clock=lambda: clock[0], speed=1000) as service:
        row = service.workspace.endpoints[service.endpoint().id]
        service.rotate_secret()
        assert len(row.secrets(clock[0] + 0.9 * DAY / 1000)) == 2
        assert len(row.secrets(clock[0] + 1.1 * DAY / 1000)) == 1
        await service.emit("comment.received")
        await until(lambda: app.received)
        assert len(service.deliveries()) == 1
        service.disable()  # the log drops only deliveries that have ended
        clock[0] += 14.1 * DAY / 1000
        assert service.deliveries() == []
        assert not row.is_failing_too_long(clock[0], 72 * 3600 / 1000, 10), "too few attempts"


async def test_advance_refuses_to_move_flowing_time() -> None:
    async with EmulatedService(Recorder(), speed=10) as service:
        with pytest.raises(RuntimeError, match="passes by itself"):
            await service.advance(hours=1)


@pytest.mark.parametrize("speed", [0, -1, float("inf"), float("nan")])
def test_a_speed_is_a_number_above_0(speed: float) -> None:
    with pytest.raises(ValueError, match="speed"):
        EmulatedService(Recorder(), speed=speed)


def test_a_movable_clock_with_a_speed_is_refused() -> None:
    """With a movable clock, the service would never retry, and would report no error."""
    with pytest.raises(ValueError, match="does not flow"):
        EmulatedService(Recorder(), clock=VirtualClock(), speed=10)


async def test_settle_returns_at_once_if_nothing_is_planned() -> None:
    async with asyncio.timeout(5), EmulatedService(Recorder(), speed=1) as service:
        await service.settle()
        await service.emit("comment.received")
        await service.settle()
        await service.settle()
        assert [row.status for row in service.deliveries()] == ["delivered"]


class Stuck(Recorder):
    """A recorder that answers only after the test has released it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = asyncio.Event()
        self.begun = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.begun += 1
            await self.is_free.wait()
        await super().__call__(scope, receive, send)


async def test_a_service_under_load_goes_on_after_an_endpoint_is_disabled() -> None:
    """Disabling an endpoint may cancel waiting work, which must not stop the service."""
    app = Stuck()
    async with asyncio.timeout(PATIENCE_SECONDS), EmulatedService(app, speed=1) as service:
        for _ in range(150):
            await service.emit("comment.received")
        await until(lambda: app.begun)
        service.disable()
        app.is_free.set()
        await service.settle()
        assert 1 <= len(app.received) < 150
        service.enable()
        event = await service.emit("comment.received")
        await service.settle()
        assert service.deliveries(event_id=event.id)[0].status == "delivered"


@pytest.mark.parametrize("turns", range(6))
async def test_settle_never_misses_new_work(turns: int) -> None:
    """New work may arrive at any step of the timeline's loop; ``turns`` chooses the step."""
    done = asyncio.Event()

    async def work() -> None:
        done.set()

    async def later() -> None:
        raise AssertionError("an hour has not passed")

    timeline = Timeline(ServiceTime(system_clock))
    async with timeline.flow():
        timeline.at(system_clock() + 3600, "later", later)
        for _ in range(turns):
            await asyncio.sleep(0)
        timeline.at(system_clock(), "now", work)
        settled = asyncio.create_task(timeline.settled())
        async with asyncio.timeout(5):
            await done.wait()
        assert not settled.done()
        timeline.forget({"later"})
        async with asyncio.timeout(5):
            await settled


# The end of the service


async def in_process(speed: float | None) -> None:
    app = Stuck()
    async with EmulatedService(app, speed=speed, answer_seconds=0.01) as service:
        await service.emit("comment.received")
        await until(lambda: app.begun)
        asyncio.get_running_loop().call_later(0.05, app.is_free.set)
    assert len(app.received) == 1, "what had begun has ended within the receiver"


async def over_http(speed: float | None) -> None:
    app = Stuck()
    async with serving(app) as site:
        async with EmulatedService(site.url, speed=speed, answer_seconds=0.2) as service:
            while not app.begun:  # an attempt may time out before it arrives: emit again
                await service.emit("comment.received")
                await asyncio.sleep(0.01)
        app.is_free.set()


async def planned(speed: float | None) -> None:
    async with EmulatedService(Recorder(500), speed=speed) as service:
        for _ in range(20):
            await service.emit("comment.received")


async def failing(speed: float | None) -> None:
    async def use() -> None:
        async with EmulatedService(Recorder(500), speed=speed) as service:
            await service.emit("comment.received")
            raise LookupError("of the test's own")

    with pytest.raises(LookupError, match="own"):
        await use()


@pytest.mark.parametrize("speed", [None, 1, 100_000])
@pytest.mark.parametrize("use", [in_process, over_http, planned, failing])
async def test_closing_cancels_all_tasks(
    use: Callable[[float | None], Awaitable[None]], speed: float | None
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), no_task_left():
        await use(speed)


async def test_closing_cancels_a_running_attempt() -> None:
    """The receiver still finishes its request, but the service does not wait for the answer."""
    app = Stuck()
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        no_task_left(),
        EmulatedService(app, speed=1) as service,
    ):
        await service.emit("comment.received")
        await until(lambda: app.begun)
        asyncio.get_running_loop().call_later(0.05, app.is_free.set)
    assert len(app.received) == 1
    assert service.attempts() == []
    assert [row.status for row in service.deliveries()] == ["pending"]


async def test_a_service_can_be_entered_again() -> None:
    app = Recorder()
    service = EmulatedService(app, speed=1)
    for _ in range(2):
        async with asyncio.timeout(PATIENCE_SECONDS), service:
            await service.emit("comment.received")
            await service.settle()
    assert len(app.received) == 2
    assert all(isinstance(one, Received) for one in app.received)
