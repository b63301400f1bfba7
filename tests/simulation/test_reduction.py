"""`reduced` finds the fewest events and faults with which a simulation still fails."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hookonce.simulation import SimulationReport, reduced, replay, simulate, timeline

from .planted import PLANTED, Planted

SEED = 7

bugs = pytest.mark.parametrize("bug", [pytest.param(one, id=name) for name, one in PLANTED.items()])


def reduction_of(bug: Planted) -> SimulationReport:
    source, check = bug.make(False)
    report = simulate(source, events=bug.events, seed=SEED, store="memory://", check=check)
    assert any(finding.breach is bug.breach for finding in report.findings)
    return reduced(report, seconds=300)


@pytest.mark.sample(1)
@bugs
def test_a_planted_bug_ends_with_few_events_and_faults(bug: Planted) -> None:
    report = reduction_of(bug)
    shown = timeline(report)
    assert report.findings[0].breach is bug.breach, shown
    assert len(report.scenario.events) <= 3, shown
    assert len(report.scenario.faults) <= 2, shown
    assert shown.startswith(f"{bug.breach}:")
    assert shown.count(" BROKEN ") == 1
    assert len(shown.splitlines()) <= 40, "a person reads it in a minute"
    source, check = bug.make(False)
    again = replay(source, report.scenario, store="memory://", check=check)
    assert again.count(bug.breach)
    source, check = bug.make(True)
    assert replay(source, report.scenario, store="memory://", check=check).passed


def test_progress_is_reported_and_never_goes_back() -> None:
    bug = PLANTED["a failure is answered 200"]
    source, check = bug.make(False)
    report = simulate(source, events=40, seed=SEED, store="memory://", check=check)
    steps: list[tuple[int, int, int]] = []
    report = reduced(report, progress=lambda *step: steps.append(step))
    assert [runs for runs, _, _ in steps] == list(range(1, len(steps) + 1))
    events = [events for _, events, _ in steps]
    assert events == sorted(events, reverse=True)
    assert steps[-1][1:] == (len(report.scenario.events), len(report.scenario.faults))


def test_a_reduction_without_time_returns_the_report_unchanged() -> None:
    source, check = PLANTED["a failure is answered 200"].make(False)
    report = simulate(source, events=40, seed=SEED, store="memory://", check=check)
    assert reduced(report, seconds=timedelta(0)) is report


def test_a_failure_that_no_second_run_repeats_is_not_reduced() -> None:
    runs = []

    def check(_: object) -> None:
        runs.append(1)
        assert len(runs) > 1, "only the first run fails"

    source, _ = PLANTED["a failure is answered 200"].make(True)
    report = simulate(source, events=10, seed=SEED, store="memory://", check=check)
    assert not report.passed
    assert reduced(report) is report
