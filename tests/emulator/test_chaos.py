"""The same seed makes the same disturbances, and each kind does what is documented."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from starlette.types import Message, Receive, Scope, Send
from support.recorder import Received, Recorder, answering
from support.servers import serving
from support.waiting import PATIENCE_SECONDS

from hookonce import Receiver, VerificationError, verify
from hookonce.clock import Clock, system_clock
from hookonce.delivery.limits import Limits
from hookonce.emulator import (
    Chaos,
    DeliveryAttempt,
    Disturbance,
    EmulatedService,
    RequestFault,
    VirtualClock,
)
from hookonce.emulator.chaos import _LAST_KEPT_OUT as KEPT_OUT
from hookonce.emulator.chaos import Plan, moments_of, plan_of
from hookonce.events import CommentReceived
from hookonce.verification.secrets import new_secret

pytestmark = [pytest.mark.anyio, pytest.mark.sample(18, of="file")]

SECRET = new_secret()
EVENTS = 40


def only(*kinds: Disturbance, rate: float = 1.0) -> Chaos:
    return Chaos(rate, frozenset(kinds))


class Rotating:
    """A receiver's configured secrets: the newest and the previous one."""

    def __init__(self, secret: str) -> None:
        self.known = [secret]

    def current(self) -> Sequence[str]:
        return tuple(self.known[:2])

    def rotate(self, secret: str) -> None:
        self.known.insert(0, secret)


class Handling:
    """A receiver that counts how often it handled each event."""

    def __init__(self, clock: Clock = system_clock, *, limits: Limits | None = None) -> None:
        self.secrets = Rotating(SECRET)
        self.receiver = Receiver(
            secrets=self.secrets, store="memory://", limits=limits, clock=clock
        )
        self.runs: Counter[str] = Counter()
        self.order: list[str] = []
        self.receiver.on(CommentReceived, name="count")(self._count)

    async def _count(self, event: CommentReceived) -> None:
        self.runs[event.id] += 1
        self.order.append(event.id)
        await asyncio.sleep(0)


async def emit_all(service: EmulatedService, count: int = EVENTS, every: float = 1.0) -> list[str]:
    """Emit events one after the other, and wait until the service plans no more attempts."""
    ids = []
    for _ in range(count):
        ids.append((await service.emit(CommentReceived)).id)
        await service.advance(seconds=every)
    await service.settle()
    return ids


async def handle_all(
    chaos: Chaos, *, seed: int = 1, count: int = EVENTS
) -> tuple[Handling, list[str], list[DeliveryAttempt]]:
    """Run a receiver under chaos, and check that it handled every event once."""
    clock = VirtualClock()
    handling = Handling(clock)
    async with EmulatedService(
        handling.receiver, clock=clock, chaos=chaos, seed=seed, on_rotation=handling.secrets.rotate
    ) as service:
        ids = await emit_all(service, count)
        assert {row.status for row in service.deliveries()} == {"delivered"}
        attempts = service.attempts()
    assert handling.runs == Counter(ids), "every event once"
    return handling, ids, attempts


async def record_all(
    chaos: Chaos, *, seed: int = 1, count: int = EVENTS
) -> tuple[Recorder, list[str], list[DeliveryAttempt]]:
    """Run a recorder that accepts everything under chaos."""
    clock = VirtualClock()
    app = Recorder(clock=clock)
    async with EmulatedService(app, secret=SECRET, clock=clock, chaos=chaos, seed=seed) as service:
        ids = await emit_all(service, count)
        attempts = service.attempts()
    assert len(app.received) == len(attempts), "every request has become an attempt"
    return app, ids, attempts


def accepted(one: Received, secret: str = SECRET) -> bool:
    try:
        verify(one.body, one.headers, secret, now=one.at)
    except VerificationError:
        return False
    return True


# Disturbances chosen by a seed


def test_a_disturbance_depends_only_on_the_seed_the_delivery_and_the_attempt() -> None:
    chaos = Chaos(0.5)
    places = [(delivery, attempt) for delivery in range(1, 80) for attempt in range(1, 10)]
    plans = [plan_of(chaos, 5, *place) for place in places]
    assert plans == [plan_of(chaos, 5, *place) for place in places]
    backwards = [plan_of(Chaos(0.5), 5, *place) for place in reversed(places)]
    assert plans == backwards[::-1], "not on the order of asking"
    assert plans != [plan_of(chaos, 6, *place) for place in places]
    assert {plan.disturbance for plan in plans} == (set(Disturbance) | {None}) - {Disturbance.BURST}


async def requests_of(seed: int) -> list[object]:
    clock = VirtualClock(1_800_000_000.0)
    app = Recorder(answering(500, 204, 503, 204), clock)
    rotated: list[str] = []
    chaos = Chaos(0.6)
    async with EmulatedService(
        app, clock=clock, chaos=chaos, seed=seed, on_rotation=rotated.append
    ) as service:
        for _ in moments_of(chaos, service.seed, 60, 1):
            await service.emit("comment.received")
            await service.advance(seconds=1)
        await service.settle()
        ids = service.endpoint().id, service.workspace.id, len(rotated)
        return [
            ids,
            *((one.at, one.id, one.number, one.body) for one in app.received),
            *(
                replace(attempt, milliseconds=0)  # durations depend on the machine
                for attempt in service.attempts()
            ),
        ]


async def test_the_same_seed_brings_the_same_requests_and_another_seed_others() -> None:
    first = await requests_of(1)
    assert len(first) > 200
    assert await requests_of(1) == first
    assert await requests_of(2) != first


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_is_a_probability(rate: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        Chaos(rate)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7, 1.0])
def test_the_rate_determines_how_many_attempts_are_disturbed(rate: float) -> None:
    plans = [plan_of(Chaos(rate), 1, delivery, 1) for delivery in range(3000)]
    share = sum(plan.disturbance is not None for plan in plans) / len(plans)
    assert share == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize("kind", Disturbance)
def test_only_chosen_kinds_happen(kind: Disturbance) -> None:
    plans = [plan_of(only(kind), 1, delivery, 1) for delivery in range(200)]
    expected = None if kind is Disturbance.BURST else kind
    assert {plan.disturbance for plan in plans} == {expected}


@pytest.mark.parametrize("kind", Disturbance)
def test_attempts_from_the_fourth_on_always_arrive(kind: Disturbance) -> None:
    """Chaos never disturbs all nine attempts, so a receiver can handle every event."""
    assert 1 < KEPT_OUT < 8
    for attempt in range(KEPT_OUT + 1, 10):
        plan = plan_of(only(kind), 1, 1, attempt)
        assert not plan.loses_answer
        assert not plan.is_tampered
        assert (plan.skew_seconds, plan.delay_seconds, plan.network.breaks) == (0, 0, None)


async def test_without_chaos_every_event_arrives_once() -> None:
    for chaos in (Chaos(0), only()):
        app, ids, attempts = await record_all(chaos)
        assert app.ids == ids
        assert {attempt.disturbance for attempt in attempts} == {None}


async def test_chaos_does_not_disturb_test_events() -> None:
    clock = VirtualClock()
    app = Recorder(clock=clock)
    async with EmulatedService(app, clock=clock, chaos=Chaos(1), seed=1) as service:
        for _ in range(30):
            assert (await service.test()).status == "delivered"
    assert len(app.received) == 30


# Each kind of disturbance alone


async def test_a_duplicate_comes_up_to_two_minutes_after_the_success() -> None:
    app, ids, attempts = await record_all(only(Disturbance.DUPLICATE))
    assert Counter(app.ids) == dict.fromkeys(ids, 2)
    for event_id in ids:
        first, copy = (one for one in app.received if one.id == event_id)
        assert 0 < copy.at - first.at <= 120
        assert copy.body == first.body
        assert (first.number, copy.number) == (1, 1)
        assert accepted(copy)
        assert copy.timestamp == int(copy.at), "signed afresh"
    assert [one.is_extra for one in attempts].count(True) == len(ids)
    _, ids, attempts = await handle_all(only(Disturbance.DUPLICATE))
    assert Counter(one.reason for one in attempts) == {"handled": EVENTS, "duplicate": EVENTS}


async def test_no_duplicate_follows_a_failed_attempt_or_goes_to_a_disabled_endpoint() -> None:
    """Duplicates follow only a success; a disabled endpoint receives nothing."""
    chaos = only(Disturbance.DUPLICATE)
    for status, requests in ((410, 1), (500, 9)):
        clock = VirtualClock()
        app = Recorder(status, clock)
        async with EmulatedService(app, clock=clock, chaos=chaos, seed=1) as service:
            await service.emit("comment.received")
            await service.settle()
        assert len(app.received) == requests
    clock = VirtualClock()
    app = Recorder(clock=clock)
    async with EmulatedService(app, clock=clock, chaos=chaos, seed=1) as service:
        await service.emit("comment.received")
        service.disable()
        await service.settle()
    assert len(app.received) == 1


async def test_concurrent_duplicates_come_two_or_three_at_the_same_moment() -> None:
    app, ids, _ = await record_all(only(Disturbance.CONCURRENT_DUPLICATE))
    copies = Counter(app.ids)
    assert set(copies) == set(ids)
    assert set(copies.values()) == {2, 3}
    assert app.most_at_once == 3, "they overlap"
    for event_id in ids:
        same = [one for one in app.received if one.id == event_id]
        assert len({(one.at, one.body, one.number) for one in same}) == 1
    _, _, attempts = await handle_all(only(Disturbance.CONCURRENT_DUPLICATE))
    assert all(one.status == 200 for one in attempts)


async def test_a_delay_lets_later_events_overtake() -> None:
    app, ids, attempts = await record_all(only(Disturbance.DELAY))
    assert sorted(app.ids) == sorted(ids)
    assert app.ids != ids
    assert {one.number for one in app.received} == {1}
    moments = {one.event_id: one.at_unix for one in attempts}
    clock = VirtualClock()
    async with EmulatedService(
        Recorder(clock=clock), clock=clock, chaos=only(Disturbance.DELAY), seed=1
    ) as service:
        began = clock()
        await service.emit("comment.received")
        assert service.attempts() == []
        (row,) = service.deliveries()
        assert row.next_attempt_at is not None
        assert 60 <= row.next_attempt_at.timestamp() - began <= 1800
        await service.advance(minutes=30)
        assert len(service.attempts()) == 1
    assert max(moments.values()) - min(moments.values()) > 900
    await handle_all(only(Disturbance.DELAY))


async def test_reordering_lets_events_that_were_emitted_later_come_first() -> None:
    clock = VirtualClock()
    app = Recorder(clock=clock)
    async with EmulatedService(
        app, clock=clock, chaos=only(Disturbance.REORDERING), seed=1
    ) as service:
        began = clock()
        ids = [(await service.emit("comment.received")).id for _ in range(10)]
        assert app.received == []
        await service.advance(seconds=5)
    assert sorted(app.ids) == sorted(ids)
    assert app.ids != ids
    assert all(0 < one.at - began <= 5 for one in app.received)
    await handle_all(only(Disturbance.REORDERING))


async def test_only_the_first_attempt_is_late() -> None:
    clock = VirtualClock()
    app = Recorder(answering(500), clock)
    chaos = only(Disturbance.DELAY)
    async with EmulatedService(app, clock=clock, chaos=chaos, seed=1) as service:
        await service.emit("comment.received")
        await service.settle()
    gaps = [later.at - earlier.at for earlier, later in pairwise(app.received)]
    waits = [30, 120, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600]
    assert gaps == pytest.approx(waits, rel=0.1001)


async def test_a_lost_answer_is_retried_although_the_event_was_handled() -> None:
    """Interface, Events, Delivery behaviour: delivery is at least once."""
    handling, ids, attempts = await handle_all(only(Disturbance.LOST_ANSWER), count=5)
    assert handling.order == ids, "handled at the first attempt"
    for event_id in ids:
        mine = [one for one in attempts if one.event_id == event_id]
        assert [one.number for one in mine] == list(range(1, KEPT_OUT + 2))
        assert [one.status for one in mine] == [None] * KEPT_OUT + [200]
        assert {one.failure for one in mine[:-1]} == {"no answer within 10 s"}
        assert mine[-1].reason == "duplicate"


@pytest.mark.parametrize("seed", range(3))
async def test_a_reset_breaks_in_the_body_or_before_the_answer(seed: int) -> None:
    app, ids, attempts = await record_all(only(Disturbance.RESET), seed=seed)
    broken = [one for one in app.received if not one.is_complete]
    whole = [one for one in app.received if one.is_complete]
    assert all(one.number <= KEPT_OUT for one in broken)
    assert all(0 < len(one.body) < int(one.headers["content-length"]) for one in broken)
    assert len(whole) > 1.5 * EVENTS, "some were handled, though their answers were lost"
    assert len(broken) > EVENTS
    failures = {one.failure for one in attempts if one.number <= KEPT_OUT}
    assert failures == {
        "the connection broke in the middle of the body",
        "the connection broke before the answer",
    }
    assert {one.status for one in attempts if one.number <= KEPT_OUT} == {None}
    assert [one.failure for one in attempts if one.number > KEPT_OUT] == [None] * len(ids)


async def test_an_event_is_handled_once_however_often_the_connection_breaks() -> None:
    await handle_all(only(Disturbance.RESET))


async def test_a_replay_repeats_an_earlier_request_byte_for_byte() -> None:
    app, _, attempts = await record_all(only(Disturbance.REPLAY))
    extra = [one for one in attempts if one.is_extra]
    assert len(extra) == EVENTS
    assert all(one.disturbance is Disturbance.REPLAY for one in extra)
    seen = Counter((one.body, tuple(sorted(one.headers.items()))) for one in app.received)
    assert len(seen) == EVENTS, "nothing but what was sent once already"
    assert sum(seen.values()) == 2 * EVENTS
    assert any(one.at - one.timestamp > 10 for one in app.received), "some of it is old"


async def test_a_replay_is_a_duplicate_or_too_old() -> None:
    clock = VirtualClock()
    handling = Handling(clock)
    async with EmulatedService(
        handling.receiver, clock=clock, chaos=only(Disturbance.REPLAY), seed=1
    ) as service:
        ids = await emit_all(service, every=30)
        extra = [one for one in service.attempts() if one.is_extra]
    assert handling.runs == Counter(ids)
    for one in extra:
        age = one.at_unix - one.timestamp
        if not 300 < age < 301:  # in between, both are right: timestamps are whole seconds
            assert one.status == (401 if age > 300 else 200)
    assert {one.status for one in extra} == {200, 401}


async def test_a_tampered_body_is_refused_and_retried() -> None:
    app, ids, _ = await record_all(only(Disturbance.TAMPERING))
    for one in app.received:
        assert not accepted(one)
    assert app.ids == ids, "a receiver that does not verify takes it"
    handling, ids, attempts = await handle_all(only(Disturbance.TAMPERING), count=5)
    assert sorted(handling.order) == sorted(ids)
    for event_id in ids:
        mine = [one for one in attempts if one.event_id == event_id]
        assert [one.is_genuine for one in mine] == [False] * KEPT_OUT + [True]
        assert [one.status for one in mine] == [401] * KEPT_OUT + [200]


async def test_a_skewed_clock_is_wrong_by_up_to_ten_minutes() -> None:
    """Interface, Events, Signature, rule 5: a timestamp more than five minutes away is rejected."""
    app, _, _ = await record_all(only(Disturbance.CLOCK_SKEW), count=200)
    skews = [one.timestamp - one.at for one in app.received]
    assert all(-601 <= skew <= 600 for skew in skews)
    assert min(skews) < -500
    assert max(skews) > 500
    for one, skew in zip(app.received, skews, strict=True):
        assert accepted(one) == (abs(skew) <= 300)
    _, _, attempts = await handle_all(only(Disturbance.CLOCK_SKEW))
    for attempt in attempts:
        if abs(attempt.timestamp - attempt.at_unix) > 301:
            assert attempt.status == 401
    assert {attempt.status for attempt in attempts} == {200, 401}


async def test_a_rotation_reports_the_new_secret_and_both_verify() -> None:
    """Interface, Events, Secret rotation: two signatures for 24 hours."""
    clock = VirtualClock()
    app = Recorder(clock=clock)
    told: list[tuple[float, str]] = []
    async with EmulatedService(
        app,
        secret=SECRET,
        clock=clock,
        chaos=only(Disturbance.ROTATION),
        seed=1,
        on_rotation=lambda secret: told.append((clock(), secret)),
    ) as service:
        await emit_all(service, 30, every=3600)
        assert service.secret() == told[-1][1]
    assert len(told) == 2, "not again within 24 hours"
    assert told[1][0] - told[0][0] >= 24 * 3600
    secrets = [SECRET, *(secret for _, secret in told)]
    for one in app.received:
        newest = max(n for n, at in enumerate((0.0, *(at for at, _ in told))) if at <= one.at)
        assert len(one.signatures) == 2
        assert accepted(one, secrets[newest])
        assert accepted(one, secrets[newest - 1])
        assert [accepted(one, secret) for secret in secrets].count(True) == 2


async def test_a_receiver_that_follows_rotations_handles_everything() -> None:
    handling, _, _ = await handle_all(only(Disturbance.ROTATION))
    assert len(handling.secrets.known) > 1


async def test_without_on_rotation_no_secret_is_rotated() -> None:
    app, _, attempts = await record_all(only(Disturbance.ROTATION))
    assert all(accepted(one) and len(one.signatures) == 1 for one in app.received)
    assert {attempt.disturbance for attempt in attempts} == {None}


async def test_a_flood_is_refused_and_genuine_requests_get_through() -> None:
    app, ids, attempts = await record_all(only(Disturbance.FLOOD))
    genuine = [one for one in app.received if one.id in set(ids)]
    forged = [one for one in app.received if one.id not in set(ids)]
    assert [one.id for one in genuine] == ids
    assert 10 * EVENTS <= len(forged) <= 40 * EVENTS
    assert app.most_at_once > 10, "all at once"
    handling, ids, attempts = await handle_all(only(Disturbance.FLOOD))
    assert handling.order == ids
    for one in attempts:
        assert one.is_extra != one.is_genuine
        assert (one.status == 200) if one.is_genuine else (one.status in {400, 401})
    assert {one.reason for one in attempts if one.is_extra} >= {
        "missing_signature",
        "malformed_timestamp",
        "no_matching_signature",
    }


def test_a_burst_has_many_events_at_once_and_the_same_average() -> None:
    chaos = only(Disturbance.BURST)
    moments = list(moments_of(chaos, 1, 2000, per_second=10))
    assert len(moments) == 2000
    assert moments == sorted(moments)
    sizes = Counter(moments)
    assert max(sizes.values()) > 20
    assert max(sizes.values()) <= 40
    assert Counter(sizes.values())[1] > 50, "most are alone"
    assert moments[-1] == pytest.approx(200, abs=5)
    assert moments == list(moments_of(chaos, 1, 2000, per_second=10))
    assert moments != list(moments_of(chaos, 2, 2000, per_second=10))
    assert list(moments_of(Chaos(1, frozenset({Disturbance.RESET})), 1, 5, 2)) == [
        0,
        0.5,
        1,
        1.5,
        2,
    ]
    assert list(moments_of(chaos, 1, 0, 1)) == []


# Faults that need real time or a real connection


class InPieces(Recorder):
    """A recorder that notes when each piece of a body arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: list[list[float]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrivals: list[float] = []

        async def noted() -> Message:
            message = await receive()
            if message.get("body"):
                arrivals.append(asyncio.get_running_loop().time())
            return message

        if scope["type"] == "http":
            self.arrivals.append(arrivals)
        await super().__call__(scope, noted, send)


async def test_a_slow_connection_brings_the_body_in_pieces() -> None:
    app = InPieces()
    chaos = only(Disturbance.SLOW_CONNECTION)
    seed = next(n for n in range(1000) if 0.2 < plan_of(chaos, n, 1, 1).network.body_seconds < 0.4)
    expected = plan_of(chaos, seed, 1, 1).network.body_seconds
    async with serving(app) as site:
        for target in (app, f"{site.url}/webhooks"):
            async with EmulatedService(target, speed=1, chaos=chaos, seed=seed) as service:
                await service.emit("comment.received")
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await service.settle()
                assert [row.status for row in service.deliveries()] == ["delivered"]
    for arrivals in app.arrivals:
        assert 2 <= len(arrivals) <= 4  # a busy server may read two pieces at once
        assert arrivals[-1] - arrivals[0] > expected / 2


async def test_a_body_that_is_too_slow_is_retried_and_handled() -> None:
    """A real server answers 408 and closes the connection, so the sender may miss the answer."""
    handling = Handling(limits=Limits(body_seconds=0.1))
    chaos = only(Disturbance.SLOW_CONNECTION, rate=0.5)
    seed = next(
        n
        for n in range(1000)
        if 0.2 < plan_of(chaos, n, 1, 1).network.body_seconds < 0.5
        and plan_of(chaos, n, 1, 2).disturbance is None
    )
    async with (
        serving(handling.receiver) as site,
        EmulatedService(site.url, secret=SECRET, speed=1000, chaos=chaos, seed=seed) as service,
    ):
        event = await service.emit(CommentReceived)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await service.settle()
        statuses = [attempt.status for attempt in service.attempts()]
    assert statuses in ([408, 200], [None, 200])
    assert handling.runs == Counter([event.id])


async def test_a_slow_connection_takes_no_time_if_time_stands_still() -> None:
    app, ids, _ = await record_all(only(Disturbance.SLOW_CONNECTION))
    assert app.ids == ids


@pytest.mark.parametrize(
    ("kind", "seconds_of", "most"),
    [
        (Disturbance.SLOW_CONNECTION, lambda plan: plan.network.body_seconds, 6),
        (Disturbance.DELAY, lambda plan: plan.delay_seconds, 1800),
        (Disturbance.REORDERING, lambda plan: plan.delay_seconds, 5),
        (Disturbance.DUPLICATE, lambda plan: plan.copy_after_seconds, 120),
    ],
)
def test_delays_cover_the_documented_range(
    kind: Disturbance, seconds_of: Callable[[Plan], float], most: float
) -> None:
    waits = [seconds_of(plan_of(only(kind), 1, delivery, 1)) for delivery in range(500)]
    assert 0 < min(waits) < most / 10
    assert 0.95 * most < max(waits) <= most


async def test_a_real_server_sees_resets_over_http() -> None:
    app = Recorder()
    async with (
        serving(app) as site,
        EmulatedService(f"{site.url}/webhooks", chaos=only(Disturbance.RESET), seed=2) as service,
    ):
        ids = [(await service.emit("comment.received")).id for _ in range(10)]
        await service.settle()
        assert {row.status for row in service.deliveries()} == {"delivered"}
        attempts = service.attempts()
    assert {one.status for one in attempts if one.number <= KEPT_OUT} == {None}
    whole = [one for one in app.received if one.is_complete]
    broken = [one for one in app.received if not one.is_complete]
    assert {one.id for one in whole if one.number > KEPT_OUT} == set(ids)
    assert broken
    assert [one for one in whole if one.number <= KEPT_OUT], (
        "handled, though the answer was not waited for"
    )
    assert all(len(one.body) < int(one.headers["content-length"]) for one in broken)


async def test_a_real_receiver_over_http_handles_everything_once_in_flowing_time() -> None:
    handling = Handling()
    kinds = set(Disturbance) - {Disturbance.DELAY, Disturbance.SLOW_CONNECTION}
    async with serving(handling.receiver) as site:
        service = EmulatedService(
            f"{site.url}/webhooks",
            secret=SECRET,
            speed=20_000,
            chaos=Chaos(0.6, frozenset(kinds)),
            seed=4,
            on_rotation=handling.secrets.rotate,
        )
        async with service:
            ids = [(await service.emit(CommentReceived)).id for _ in range(30)]
            async with asyncio.timeout(PATIENCE_SECONDS):
                await service.settle()
            statuses = {row.status for row in service.deliveries()}
            kinds_seen = {one.disturbance for one in service.attempts()}
    assert statuses == {"delivered"}
    assert len(kinds_seen) > 6
    assert handling.runs == Counter(ids)


# Faults that a function chooses


async def test_a_function_chooses_the_fault_of_each_attempt() -> None:
    asked: list[tuple[str, int]] = []

    def lose_first_two_answers(event_id: str, attempt: int) -> RequestFault | None:
        asked.append((event_id, attempt))
        return RequestFault(event_id, attempt, Disturbance.LOST_ANSWER) if attempt < 3 else None

    clock = VirtualClock()
    handling = Handling(clock)
    async with EmulatedService(
        handling.receiver, clock=clock, chaos=lose_first_two_answers
    ) as service:
        event = await service.emit(CommentReceived)
        await service.settle()
        attempts = service.attempts()
    assert [attempt.status for attempt in attempts] == [None, None, 200]
    assert set(asked) == {(event.id, number) for number in (1, 2, 3)}
    assert handling.runs == Counter([event.id])


async def test_the_other_events_do_not_change_when_an_event_is_retried() -> None:
    """An event's waits depend only on its id and the seed, so a run may leave out other events."""

    async def waits(ids: list[str]) -> dict[str, list[float]]:
        clock = VirtualClock(1_000_000)
        app = Recorder(answering(500), clock)
        async with EmulatedService(app, clock=clock, chaos=lambda *_: None, seed=1) as service:
            for event_id in ids:
                await service.emit(CommentReceived, event_id=event_id)
            await service.settle()
        own = {name: [one.at for one in app.received if one.id == name] for name in ids}
        return {
            name: [later - earlier for earlier, later in pairwise(times)]
            for name, times in own.items()
        }

    both = await waits(["evt_1", "evt_2"])
    alone = await waits(["evt_2"])
    assert alone["evt_2"] == pytest.approx(both["evt_2"])
    assert both["evt_1"] != pytest.approx(both["evt_2"])


# All disturbances together


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
async def test_a_receiver_handles_300_events_once_each_whatever_happens(seed: int) -> None:
    """The library's promise: a receiver handles every event, and handles it once."""
    chaos = Chaos(0.8)
    clock = VirtualClock()
    handling = Handling(clock)
    async with EmulatedService(
        handling.receiver, clock=clock, chaos=chaos, seed=seed, on_rotation=handling.secrets.rotate
    ) as service:
        ids = []
        began = service.now.timestamp()
        for moment in moments_of(chaos, seed, 300, per_second=0.5):
            await service.advance(seconds=max(0.0, began + moment - service.now.timestamp()))
            ids.append((await service.emit(CommentReceived)).id)
        await service.settle()
        assert {row.status for row in service.deliveries()} == {"delivered"}
        attempts = service.attempts()
    assert handling.runs == Counter(ids)
    assert {one.disturbance for one in attempts} > set(Disturbance) - {Disturbance.BURST}
    assert not [one for one in attempts if not one.is_genuine and one.status == 200]
