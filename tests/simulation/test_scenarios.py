"""A user can run the scenario of a report again, and leave out any part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hookonce import Context, Event, Inbox, Receiver
from hookonce.emulator import Disturbance, RequestFault
from hookonce.events import CommentReceived
from hookonce.simulation import (
    Breach,
    Fault,
    HandlerFault,
    Mode,
    PlannedEvent,
    Restart,
    Scenario,
    replay,
    simulate,
)
from hookonce.verification.secrets import new_secret

SECRET = new_secret()
NAME = "greet"


def greeting(seen: list[tuple[str, int]] | None = None, *, inbox: Inbox | None = None) -> Receiver:
    """Return a receiver that notes the events and the numbers of their attempts."""
    receiver = Receiver(secrets=SECRET, store="sqlite:///never-opened.db", inbox=inbox)

    @receiver.on("*", name=NAME)
    async def greet(event: Event[object], context: Context) -> None:
        if seen is not None:
            seen.append((event.id, context.attempt))

    return receiver


@pytest.mark.parametrize("inbox", [None, Inbox()], ids=["inline", "inbox"])
def test_the_scenario_of_a_report_replays_the_simulation(inbox: Inbox | None) -> None:
    first: list[tuple[str, int]] = []
    again: list[tuple[str, int]] = []
    report = simulate(greeting(first, inbox=inbox), events=80, seed=3)
    replayed = replay(greeting(again, inbox=inbox), report.scenario)
    assert first == again
    assert replayed == replace(report, hours=replayed.hours)
    assert replayed.scenario == report.scenario
    assert {type(fault) for fault in report.scenario.faults} == {
        RequestFault,
        HandlerFault,
        Restart,
    }


def test_events_that_are_left_out_do_not_change_the_faults_of_the_others() -> None:
    everything = simulate(greeting(), events=60, seed=4, store="memory://").scenario
    chosen = {event.id for event in everything.events[10:40:3]}
    scenario = everything.only(chosen)
    seen: list[tuple[str, int]] = []
    report = replay(greeting(seen), scenario, store="memory://")
    assert report.passed
    assert {event_id for event_id, _ in seen} == chosen
    assert len(report.scenario.events) == len(chosen)
    assert set(report.scenario.faults) == set(scenario.faults)


def test_a_renamed_scenario_does_the_same_to_other_ids() -> None:
    scenario = simulate(greeting(), events=30, seed=5, store="memory://").scenario
    renamed = scenario.renamed(lambda number: f"other_{number:02}")
    ids = {old.id: new.id for old, new in zip(scenario.events, renamed.events, strict=True)}
    assert len({*ids, *ids.values()}) == 2 * len(scenario.events)
    assert sorted(ids) == sorted(ids, key=lambda old: ids[old]), "the order of the ids is the same"
    seen: list[tuple[str, int]] = []
    replay(greeting(seen), renamed, store="memory://")
    assert {event_id for event_id, _ in seen} == set(ids.values())
    back = Counter(fault.event_id for fault in scenario.faults if not isinstance(fault, Restart))
    new = Counter(fault.event_id for fault in renamed.faults if not isinstance(fault, Restart))
    assert {ids[old]: count for old, count in back.items()} == new


def test_a_scenario_can_be_written_by_hand() -> None:
    seen: list[tuple[str, int]] = []
    report = replay(
        greeting(seen),
        Scenario(
            events=[PlannedEvent("evt_1", "comment.received", data={"text": "Rye?"})],
            faults=[
                RequestFault("evt_1", 1, Disturbance.LOST_ANSWER),
                HandlerFault("evt_1", NAME, 1, Fault.FAILS_BEFORE),
                Restart(20),
            ],
        ),
    )
    assert report.passed
    assert seen == [("evt_1", 2)]
    assert (report.requests, report.calls, report.restarts) == (2, 2, 1)


def test_a_burst_is_not_recorded_as_a_fault_of_one_attempt() -> None:
    with pytest.raises(ValueError, match="several events"):
        RequestFault("evt_1", 1, Disturbance.BURST)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_check_of_the_effects_is_asked_about_the_events_at_the_end(is_async: bool) -> None:
    effects: Counter[str] = Counter()
    receiver = Receiver(secrets=SECRET, store="memory://")

    @receiver.on(CommentReceived, name="count")
    async def count(event: CommentReceived) -> None:
        effects[event.id] += 1

    def check(events: Sequence[Event[Any]]) -> None:
        twice = [event.id for event in events if effects[event.id] > 1]
        assert not twice, f"{len(twice)} counted twice"

    async def check_later(events: Sequence[Event[Any]]) -> None:
        check(events)

    chosen = check_later if is_async else check
    report = simulate(receiver, events=60, seed=3, store="memory://", check=chosen)
    (finding,) = report.findings
    assert finding.breach is Breach.WRONG_EFFECT
    assert "counted twice" in finding.story[0]
    effects.clear()
    assert simulate(receiver, events=60, seed=3, chaos=0, store="memory://", check=chosen).passed


def test_a_function_makes_a_new_receiver_for_each_start() -> None:
    made: list[Receiver] = []

    def make() -> Receiver:
        made.append(greeting())
        return made[-1]

    scenario = Scenario(
        [PlannedEvent("evt_1", "comment.received"), PlannedEvent("evt_2", "comment.received", 60)],
        [Restart(30), Restart(90)],
    )
    report = replay(make, scenario, mode=Mode.INLINE)
    assert report.passed
    assert (report.restarts, len(made)) == (2, 3)
