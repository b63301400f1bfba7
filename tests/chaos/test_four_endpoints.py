"""An application with one endpoint for each built-in sender passes simulations with faults."""

from __future__ import annotations

import random

import pytest

from hookonce.outcome import Reason

from .channels import Place
from .combinations import store_url
from .four_endpoints import (
    ENDPOINTS,
    SENDERS,
    attempts_of,
    simulate_drawn,
    simulate_to_the_last_attempt,
)

pytestmark = pytest.mark.sample(1, of="file")

SEEDS = range(1, 21)


def check(place: Place, events: int, seed: int) -> None:
    with store_url(place.store) as url:
        reports = simulate_drawn(place, url, events=events, seed=seed)
    assert reports.keys() == SENDERS.keys()
    for name, report in reports.items():
        assert report.passed, (seed, name, report.findings[:3])
        assert report.handled == report.events == events
        assert report.injected, (seed, name)
        assert report.disturbed, (seed, name)
    first, *others = ({one.event_id for one in r.history.emissions} for r in reports.values())
    assert all(ids == first for ids in others), "the endpoints have events of different ids"


@pytest.mark.costs("up to 5 s: a PostgreSQL server starts")
@pytest.mark.parametrize("place", ENDPOINTS, ids=str)
def test_four_endpoints_on_one_store_handle_every_event_once(place: Place) -> None:
    check(place, events=25, seed=random.choice(SEEDS))


@pytest.mark.full("a minute of processor time each", draw=1)
@pytest.mark.parametrize("place", ENDPOINTS, ids=str)
def test_four_endpoints_on_one_store_handle_every_one_of_400_events_once(place: Place) -> None:
    check(place, events=400, seed=random.choice(SEEDS))


@pytest.mark.costs("3 s")
def test_the_last_attempt_of_each_schedule_is_handled_or_a_duplicate() -> None:
    """Only virtual time allows this test: the specification's example schedule takes 75 hours."""
    with store_url("sqlite") as url:
        reports = simulate_to_the_last_attempt(url, events=12, seed=random.choice(SEEDS))
    for name, report in reports.items():
        sender, attempts = SENDERS[name], report.history.attempts
        rules, last = sender.rules, attempts_of(sender)
        assert report.passed, (name, report.findings[:3])
        assert report.handled == report.events == 12
        for event in report.history.emissions:
            sent = [one for one in attempts if one.event_id == event.event_id]
            assert [one.number for one in sent] == list(range(1, last + 1))
            assert all(one.failure for one in sent[:-1])
            assert sent[-1].reason in (Reason.HANDLED, Reason.DUPLICATE)
            lasted, planned = sent[-1].at_unix - sent[0].at_unix, sum(rules.tried_retry_seconds)
            assert abs(lasted - planned) <= (rules.retry_jitter or 0) * planned + 60, name
    reasons = {one.reason for one in reports["standard"].history.attempts if not one.failure}
    assert reasons == {Reason.HANDLED, Reason.DUPLICATE}
