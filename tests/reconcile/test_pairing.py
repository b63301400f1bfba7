"""`pair_by_time` pairs a gap with a resource only if the pair is certain."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from hookonce.receiver import Found, Gap, Why, pair_by_time
from hookonce.resources import WebhookDelivery

NINE = datetime(2026, 7, 1, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def at(minutes: float) -> datetime:
    return NINE + minutes * MINUTE


def gap(minutes: float, *, unsettled: Sequence[float] = ()) -> Gap:
    name = f"evt_{minutes:g}"
    delivery = WebhookDelivery(
        id=f"dlv_{minutes:g}",
        event_id=name,
        event_type="comment.received",
        status="failed",
        attempts=9,
        is_test=False,
        created_at=at(minutes),
    )
    others = tuple(at(one) for one in unsettled)
    return Gap(name, "comment.received", at(minutes), Why.FAILED_AT_SENDER, delivery, others)


def written(minutes: float, *, latest: float = 5) -> Found[float]:
    """Return a comment whose event arrives at most ``latest`` minutes later."""
    return Found(minutes, at(minutes), at(minutes + latest))


def pairs(gaps: Sequence[Gap], found: Sequence[Found[float]]) -> dict[str, float]:
    return {one.event_id: item for one, item in pair_by_time(gaps, found)}


def test_each_gap_is_paired_with_the_only_resource_that_fits() -> None:
    found = [written(20), written(0), written(40)]
    assert pairs([gap(21), gap(2), gap(44)], found) == {"evt_2": 0, "evt_21": 20, "evt_44": 40}


def test_an_event_is_paired_only_with_a_resource_created_shortly_before_it() -> None:
    assert pairs([gap(-1)], [written(0)]) == {}
    assert pairs([gap(6)], [written(0)]) == {}


def test_the_gap_of_a_removed_resource_stays_open() -> None:
    assert pairs([gap(1), gap(3)], [written(2)]) == {"evt_3": 2}
    assert pairs([gap(1), gap(3)], [written(0)]) == {}  # the resource may belong to either event


def test_a_resource_whose_event_is_in_no_log_closes_no_gap() -> None:
    assert pairs([gap(3)], [written(0), written(1)]) == {}


def test_a_resource_whose_event_may_still_arrive_closes_no_gap() -> None:
    assert pairs([gap(3, unsettled=[4])], [written(0)]) == {}
    assert pairs([gap(3, unsettled=[30])], [written(0)]) == {"evt_3": 0}


def test_as_many_resources_as_gaps_are_each_paired_once() -> None:
    assert pairs([gap(2), gap(3)], [written(1), written(0)]) == {"evt_2": 0, "evt_3": 1}


def test_a_resource_without_a_time_fits_every_gap() -> None:
    nowhere = Found(7.0, None, None)
    assert pairs([gap(3)], [nowhere]) == {"evt_3": 7}
    assert pairs([gap(3), gap(50)], [nowhere, written(49)]) == {"evt_3": 7, "evt_50": 49}
    assert pairs([gap(3), gap(50)], [nowhere, written(2)]) == {"evt_3": 2, "evt_50": 7}
    assert pairs([gap(3), gap(50)], [nowhere]) == {}


@pytest.mark.parametrize("seed", range(200))
def test_only_resources_of_missed_events_are_paired(seed: int) -> None:
    """A pair can be wrong only if a gap's resource was removed and another has no event."""
    random = Random(seed)
    missed = random.sample(range(600), 12)
    on_their_way = [random.uniform(0, 600) for _ in range(random.choice([0, 3]))]
    gaps = [gap(one + random.uniform(0, 4.9), unsettled=on_their_way) for one in missed]
    shown = [written(one) for one in missed]
    shown += [written(one - random.uniform(0, 4.9)) for one in on_their_way]
    if random.random() < 0.5:
        shown = random.sample(shown, len(shown) - random.randint(0, 4))
    else:
        shown += [written(random.uniform(0, 600)) for _ in range(random.randint(0, 4))]
    random.shuffle(shown)
    paired = pair_by_time(gaps, shown)
    assert {item for _, item in paired} <= set(missed)
    assert len({item for _, item in paired}) == len({one.event_id for one, _ in paired})
