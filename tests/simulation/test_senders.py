"""A simulation delivers as the receiver's own sender does: its headers, bodies and rules."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from hookonce import Event, Receiver, Retry
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.emulator.chaos import Chaos
from hookonce.events.openai import ResponseCompleted
from hookonce.senders import Envelope, Rules, Sender, openai, publishing, standard, svix
from hookonce.simulation import Mode, SimulationReport, simulate
from hookonce.stores.memory import MemoryStore
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.sample(3, of="file")

BUILT_IN = [publishing, standard, svix, openai]
HOUR = 3600.0
SECRET = new_secret()


def received_by(sender: Sender, *wanted: Any, **settings: Any) -> Receiver:
    receiver = Receiver(
        secrets=SECRET, store="sqlite:///never-opened.db", sender=sender, **settings
    )

    @receiver.on(*(wanted or ("*",)), name="note")
    async def note(event: Event[Any]) -> None: ...

    return receiver


def simulated(receiver: Receiver, **arguments: Any) -> SimulationReport:
    return simulate(receiver, **{"events": 60, "seed": 7, "store": "memory://", **arguments})


@pytest.mark.costs("2 s")
@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.INBOX], ids=lambda mode: mode.name)
@pytest.mark.parametrize("sender", BUILT_IN, ids=lambda sender: sender.name)
def test_a_correct_receiver_of_each_sender_passes(sender: Sender, mode: Mode) -> None:
    report = simulated(received_by(sender), mode=mode, store=None, chaos=0.5)
    assert report.passed, report.findings[:3]
    assert report.handled == report.events == 60
    assert report.injected
    assert report.disturbed


def test_a_sender_of_few_attempts_leaves_a_correct_receiver_enough_of_them() -> None:
    brief = Sender(name="brief", rules=Rules(retry_seconds=(60.0, 600.0), attempts=3))
    report = simulated(received_by(brief), chaos=0.8)
    assert report.passed, report.findings[:3]
    assert report.handled + sum(report.dead_letters.values()) == 60
    assert report.handled > 30


def test_a_receiver_that_fails_every_openai_event_does_not_pass() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", sender=openai)

    @receiver.on(ResponseCompleted, name="fail")
    async def fail(event: ResponseCompleted) -> None:
        raise LookupError(event.data.id)

    report = simulated(receiver, events=3, chaos=0)
    assert {finding.event_type for finding in report.findings} == {"response.completed"}


class User(BaseModel):
    user_id: str = Field(alias="userId")


class UserCreated(Event[User]):
    type: Literal["user.created"]


def test_a_sender_whose_envelope_has_a_function_cannot_be_simulated() -> None:
    sender = Sender(name="acme", envelope=Envelope(type=lambda body: body["kind"]))
    with pytest.raises(ValueError, match=r"'acme' cannot be simulated.* has a function; simulate"):
        simulated(received_by(sender, "user.created"))


def test_events_of_a_users_type_get_their_data_from_the_user() -> None:
    receiver = received_by(svix, UserCreated)
    with pytest.raises(ValueError, match=r"userId.*give them as data=\{'user\.created'"):
        simulated(receiver)
    users: list[str] = []

    @receiver.on(UserCreated, name="users")
    async def keep(event: UserCreated) -> None:
        users.append(event.data.user_id)

    report = simulated(receiver, data={"user.created": {"userId": "u_7"}}, events=20)
    assert report.passed, report.findings[:3]
    assert report.handled == 20
    assert set(users) == {"u_7"}


def test_an_envelope_with_a_function_cannot_be_simulated() -> None:
    sender = Sender(name="odd", envelope=replace(standard.envelope, type=lambda body: body["kind"]))
    with pytest.raises(ValueError, match="function"):
        simulated(received_by(sender))


@pytest.mark.anyio
@pytest.mark.parametrize("sender", BUILT_IN, ids=lambda sender: sender.name)
async def test_failed_attempts_follow_the_schedule_of_the_sender(sender: Sender) -> None:
    clock = VirtualClock()
    span = sender.rules.span_seconds
    store = MemoryStore(retention=2 * span, clock=clock)
    receiver = Receiver(secrets=SECRET, store=store, sender=sender, clock=clock)

    @receiver.on("*", name="fail")
    async def fail(_: Event[Any]) -> None:
        raise LookupError

    event_type = next(iter(sender.event_classes), None)
    async with EmulatedService(receiver, clock=clock) as service:
        await service.emit("example" if event_type is None else event_type)
        await service.settle()
        attempts = service.attempts()
    jitter = sender.rules.retry_jitter or 0.0
    waits = [later.at_unix - earlier.at_unix for earlier, later in pairwise(attempts)]
    if sender.rules.attempts is not None:
        assert len(attempts) == sender.rules.attempts
    assert len(waits) == len(sender.rules.tried_retry_seconds)
    for wait, nominal in zip(waits, sender.rules.tried_retry_seconds, strict=True):
        assert abs(wait - nominal) <= nominal * jitter + 1
    assert sum(waits) <= span


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reads_retry_after", "waits"),
    [(True, [90, 90, 90]), (False, [10, 20, 40]), (None, [10, 20, 40])],
)
async def test_only_a_sender_that_reads_retry_after_waits_as_the_answer_asks(
    reads_retry_after: bool | None, waits: list[float]
) -> None:
    rules = Rules(retry_seconds=(10, 20, 40), reads_retry_after=reads_retry_after)
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    sender = Sender(name="acme", rules=rules)
    receiver = Receiver(secrets=SECRET, store=store, sender=sender, clock=clock)

    @receiver.on("*", name="wait")
    async def wait(_: Event[Any]) -> None:
        raise Retry(after=90)

    async with EmulatedService(receiver, clock=clock) as service:
        await service.emit("example")
        await service.settle()
        attempts = service.attempts()
    times = [attempt.at_unix for attempt in attempts]
    assert [round(later - earlier) for earlier, later in pairwise(times)] == waits
    assert [attempt.retry_after_seconds for attempt in attempts] == [90] * 4


@pytest.mark.parametrize(
    ("rules", "waits"),
    [
        (Rules(), 9),  # the whole example of the specification
        (Rules(retry_span_seconds=72 * HOUR), 8),
        (Rules(retry_span_seconds=HOUR), 3),
        (Rules(attempts=4), 3),
        (Rules(retry_seconds=(1.0, 2.0)), 2),
    ],
)
def test_a_sender_without_a_schedule_retries_by_the_example_within_its_span(
    rules: Rules, waits: int
) -> None:
    assert len(rules.tried_retry_seconds) == waits


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("sender", "days"), [(publishing, 3), (svix, 5), (standard, None), (openai, None)]
)
async def test_an_endpoint_is_disabled_by_the_rules_of_the_sender(
    sender: Sender, days: int | None
) -> None:
    clock = VirtualClock()
    receiver = Receiver(
        secrets=SECRET,
        store=MemoryStore(retention=30 * 24 * HOUR, clock=clock),
        sender=sender,
        clock=clock,
    )

    @receiver.on("*", name="fail")
    async def fail(_: Event[Any]) -> None:
        raise LookupError

    event_type = next(iter(sender.event_classes), None)
    active = []
    async with EmulatedService(receiver, clock=clock) as service:
        for _ in range(8):
            active.append(service.endpoint().status == "active")
            await service.emit("example" if event_type is None else event_type)
            await service.advance(days=1)
    expected = [True] * 8 if days is None else [True] * (days + 1) + [False] * (7 - days)
    assert active == expected


@pytest.mark.anyio
async def test_a_rotation_lasts_as_long_as_the_rules_say_and_without_a_rule_no_time() -> None:
    for sender, both in ((svix, 2), (standard, 1)):
        clock = VirtualClock()
        receiver = received_by(sender, clock=clock)
        rotated: list[str] = []
        async with EmulatedService(
            receiver,
            clock=clock,
            chaos=Chaos(1.0),
            on_rotation=rotated.append,
        ) as service:
            row = next(iter(service.workspace.endpoints.values()))
            service.rotate_secret()
            assert len(row.secrets(clock())) == both
            assert len(row.secrets(clock() + 25 * HOUR)) == 1


@pytest.mark.anyio
async def test_chaos_rotates_no_secret_of_a_sender_that_does_not_say_how_long_both_sign() -> None:
    counts = {}
    for sender in (standard, svix):
        clock = VirtualClock()
        receiver = received_by(sender, clock=clock).copy(
            store=MemoryStore(retention=30 * 24 * HOUR, clock=clock)
        )
        rotated: list[str] = []
        async with EmulatedService(
            receiver, clock=clock, chaos=Chaos(1.0), seed=3, on_rotation=rotated.append
        ) as service:
            for _ in range(30):
                await service.emit("example")
            await service.settle()
        counts[sender.name] = len(rotated)
    assert counts["standard"] == 0 < counts["svix"]


@pytest.mark.anyio
async def test_only_a_sender_with_a_test_event_can_send_one() -> None:
    async with EmulatedService(received_by(svix)) as service:
        with pytest.raises(LookupError, match="'svix' has no test event"):
            await service.test()
