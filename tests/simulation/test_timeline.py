"""A timeline shows the steps of each actor in order, and the step that broke the rule."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hookonce import Receiver
from hookonce.emulator import Disturbance, RequestFault
from hookonce.events import CommentReceived
from hookonce.simulation import (
    Fault,
    HandlerFault,
    PlannedEvent,
    PlannedFault,
    Restart,
    Scenario,
    SimulationReport,
    reduced,
    replay,
    simulate,
    timeline,
)
from hookonce.verification.secrets import new_secret

from .planted import NAME, PLANTED

EVENT = "evt_1"


def shown(bug: str, *faults: PlannedFault, event_type: str = "comment.received") -> str:
    """Return the timeline of a bug with one event and these faults."""
    source, check = PLANTED[bug].make(False)
    scenario = Scenario([PlannedEvent(EVENT, event_type)], faults)
    return timeline(replay(source, scenario, store="memory://", check=check))


def columns(text: str) -> list[tuple[str, str]]:
    """Return the actor and the action of each line below the title."""
    return [
        (found[1], found[2])
        for line in text.splitlines()[1:]
        if (found := re.fullmatch(r" +\+.*?(?:s|min)  (\w+) +(.*)", line))
    ]


def test_the_lines_of_a_lost_event_are_in_order() -> None:
    fault = HandlerFault(EVENT, NAME, 1, Fault.FAILS_BEFORE)
    assert columns(shown("an event is marked before it is handled", fault)) == [
        ("sender", "emits comment.received evt_1"),
        ("sender", "delivers, attempt 1"),
        ("handler", "handler call 1 fails before its own code (injected)"),
        ("receiver", "answers 500 handler_failed"),
        ("sender", "delivers, attempt 2"),
        ("receiver", "answers 200 duplicate"),
        ("BROKEN", "handler has not succeeded, and nobody will try again"),
    ]


def test_the_line_of_an_answer_that_got_lost_says_so() -> None:
    bug = "an effect is repeated after a crash"
    text = shown(
        bug,
        RequestFault(EVENT, 1, Disturbance.LOST_ANSWER),
        HandlerFault(EVENT, NAME, 1, Fault.FAILS_AFTER),
    )
    lines = columns(text)
    assert lines[2] == ("network", "loses the answer")
    assert ("sender", "gets no answer: no answer within 10 s") in lines
    assert lines[-1] == ("BROKEN", "the effects are wrong")


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (RequestFault(EVENT, 1, Disturbance.TAMPERING), ("network", "changes the body")),
        (
            RequestFault(EVENT, 1, Disturbance.CLOCK_SKEW, -400),
            ("sender", "signs with a clock that is 6 min 40 s behind"),
        ),
        (RequestFault(EVENT, 1, Disturbance.DELAY, 90), ("network", "delayed it by 90.0 s")),
        (
            RequestFault(EVENT, 1, Disturbance.RESET, 1),
            ("network", "breaks the connection before the answer"),
        ),
        (
            RequestFault(EVENT, 1, Disturbance.SLOW_CONNECTION, 4),
            ("network", "takes 4.0 s for the body"),
        ),
        (RequestFault(EVENT, 1, Disturbance.ROTATION), ("sender", "rotates the secret")),
        (
            RequestFault(EVENT, 1, Disturbance.DUPLICATE, 7),
            ("network", "delivers a copy of attempt 1"),
        ),
        (
            RequestFault(EVENT, 1, Disturbance.REPLAY),
            ("network", "an attacker sends attempt 1 again"),
        ),
        (
            HandlerFault(EVENT, NAME, 1, Fault.SLOW, 9),
            ("handler", "handler call 1 succeeds after 9.0 s"),
        ),
        (Restart(3), ("receiver", "has restarted")),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_each_fault_has_a_line(fault: PlannedFault, line: tuple[str, str]) -> None:
    receiver = Receiver(secrets=new_secret(), store="memory://")

    @receiver.on(CommentReceived, name=NAME)
    async def handle(event: CommentReceived) -> None: ...

    def check(_: object) -> None:
        raise AssertionError("the timeline of this run is wanted")

    scenario = Scenario([PlannedEvent(EVENT, "comment.received")], [fault])
    report = replay(receiver, scenario, store="memory://", check=check)
    assert line in columns(timeline(report))


def test_a_forgery_is_broken_at_its_own_answer() -> None:
    flood = RequestFault(EVENT, 1, Disturbance.FLOOD, 10)
    lines = columns(shown("a forgery is accepted", flood))
    broken = [number for number, (who, _) in enumerate(lines) if who == "BROKEN"]
    assert lines[broken[0] - 1] == ("receiver", "answers 200 handled")
    assert ("network", "an attacker sends a forged request") in lines[: broken[0]]


def test_several_events_have_labels_and_the_columns_are_aligned() -> None:
    source, check = PLANTED["serial_by has the wrong key"].make(False)
    events = [PlannedEvent(f"evt_{number}", "comment.received") for number in (1, 2)]
    events[1] = replace(events[1], data={"id": "cmt_2"})
    text = timeline(replay(source, Scenario(events), store="memory://", check=check))
    rows = text.splitlines()[1:]
    assert any("  event 2  delivers, attempt 1" in row for row in rows)
    own = [row for row in rows if "  event " in row]
    assert len({row.index("  event ") for row in own}) == 1


def test_a_passing_run_says_so_and_cannot_be_reduced() -> None:
    receiver = Receiver(secrets=new_secret(), store="memory://")

    @receiver.on(CommentReceived, name=NAME)
    async def handle(event: CommentReceived) -> None: ...

    report = simulate(receiver, events=10, seed=1, store="memory://")
    assert timeline(report) == "the receiver broke no rule in 10 events"
    assert reduced(report) is report


def test_a_report_that_nothing_ran_for_cannot_be_explained() -> None:
    receiver = Receiver(secrets=new_secret(), store="memory://")
    receiver.on(CommentReceived, name=NAME)(print)
    report = simulate(receiver, events=1, seed=1, store="memory://")
    names = list(SimulationReport.__match_args__)
    plain = SimulationReport(**{name: getattr(report, name) for name in names})
    for explain in (timeline, reduced):
        with pytest.raises(TypeError, match="simulate or replay"):
            explain(plain)
