"""The seed alone decides which calls get a fault."""

from __future__ import annotations

from collections import Counter

import pytest

from hookonce.simulation.faults import Fault, FaultPlan, Injection

EVENTS = [f"evt_{number}" for number in range(400)]


def drawn(plan: FaultPlan, calls: int = 6) -> dict[tuple[str, int], Injection | None]:
    return {
        (event, number): plan.injection(event, "app.handler", number)
        for event in EVENTS
        for number in range(1, calls + 1)
    }


def test_a_seed_gives_the_same_faults_in_any_order_and_another_seed_gives_others() -> None:
    plan = FaultPlan(seed=7)
    forwards = drawn(plan)
    backwards = {key: plan.injection(key[0], "app.handler", key[1]) for key in reversed(forwards)}
    assert forwards == backwards == drawn(FaultPlan(seed=7))
    assert forwards != drawn(FaultPlan(seed=8))


def test_two_handlers_of_an_event_fail_independently() -> None:
    plan = FaultPlan(seed=7)
    one, two = ([plan.injection(event, name, 1) for event in EVENTS] for name in ("one", "two"))
    assert one != two


def test_the_rate_is_the_share_of_first_calls_with_a_fault() -> None:
    plan = FaultPlan(seed=7, rate=0.25)
    faulty = sum(plan.injection(event, "handler", 1) is not None for event in EVENTS)
    assert 0.15 < faulty / len(EVENTS) < 0.35


def test_rate_0_gives_no_fault() -> None:
    assert set(drawn(FaultPlan(seed=7, rate=0)).values()) == {None}


def test_no_handler_gets_more_faults_for_an_event_than_most() -> None:
    faults = drawn(FaultPlan(seed=7, rate=1, most=3), calls=9)
    assert {number for (_, number), injection in faults.items() if injection} == {1, 2, 3}
    scattered = drawn(FaultPlan(seed=7, rate=0.5, most=2), calls=12)
    counts = Counter(event for (event, _), injection in scattered.items() if injection)
    assert max(counts.values()) == 2


def test_every_fault_occurs_and_sleeps_range_beyond_the_answer_budget_and_the_lease() -> None:
    injections = [one for one in drawn(FaultPlan(seed=7, rate=1)).values() if one]
    assert {one.fault for one in injections} == set(Fault)
    sleeps = [one.seconds for one in injections if one.fault is Fault.SLOW]
    assert 0.1 <= min(sleeps) < 8
    assert 30 < max(sleeps) <= 45
    assert any(8 < seconds < 30 for seconds in sleeps)
    waits = [one.seconds for one in injections if one.fault is Fault.ASKS_RETRY]
    assert min(waits) >= 1


def test_only_the_chosen_kinds_occur() -> None:
    chosen = (Fault.FAILS_AFTER, Fault.SLOW)
    faults = drawn(FaultPlan(seed=7, rate=1, kinds=chosen)).values()
    assert {one.fault for one in faults if one} == set(chosen)


@pytest.mark.parametrize("wrong", [{"rate": 1.5}, {"rate": -0.1}, {"most": -1}, {"kinds": ()}])
def test_a_plan_with_a_value_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FaultPlan(seed=7, **wrong)  # type: ignore[arg-type]  # the argument is wrong on purpose
