"""Small simulations of the examples; ``python -m tests.chaos`` runs the full size."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from hookonce import Receiver
from hookonce.events import ChannelDisconnected, ChannelUnhealthy
from hookonce.simulation import Breach, Mode, simulate
from hookonce.stores.record_store import StepStore
from hookonce.stores.values import Acquired
from hookonce.verification.secrets import new_secret

from .channels import PLACES, Channels, Place
from .combinations import COMBINATIONS, Combination, silence, store_url

pytestmark = pytest.mark.sample(2, of="file")

SEEDS = range(1, 21)
EVENTS = 40


def check(combination: Combination, seeds: Iterable[int]) -> None:
    with store_url(combination.store) as url:
        for seed in seeds:
            report = combination.simulate(url, events=EVENTS, seed=seed)
            assert report.passed, (seed, report.findings[:3])
            assert report.handled + report.ignored == EVENTS
            assert report.injected, "no fault was injected"


@pytest.mark.costs("up to 4 s: a PostgreSQL server starts")
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_an_example_handles_every_event_once(combination: Combination) -> None:
    check(combination, random.sample(SEEDS, 2))


@pytest.mark.full("up to 6 s of processor time each", draw=3)
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_an_example_handles_every_event_once_with_every_seed(combination: Combination) -> None:
    check(combination, SEEDS)


@pytest.mark.parametrize(
    ("mode", "events", "seeds"),
    [
        (Mode.INLINE, EVENTS, SEEDS[:4]),
        # The mistake shows only after a failed first request. With an inbox, few requests fail,
        # because no handler runs inside them. So use more events.
        (Mode.INBOX, 300, SEEDS[:1]),
        pytest.param(Mode.INLINE, EVENTS, SEEDS, marks=pytest.mark.full("2 s")),
        pytest.param(Mode.INBOX, 300, SEEDS[:4], marks=pytest.mark.full("5 s")),
    ],
)
def test_every_seed_finds_the_mistake_of_the_example_that_marks_events_too_soon(
    mode: Mode, events: int, seeds: range
) -> None:
    wrong = Combination("seen_too_soon", "sqlite", mode)
    with store_url("sqlite") as url:
        for seed in seeds:
            report = wrong.simulate(url, events=events, seed=seed)
            assert report.count(Breach.LOST), seed
            assert report.count(Breach.TWICE) == 0


@pytest.mark.parametrize(
    ("mode", "events", "seeds"),
    [
        # With fewer events, no two calls of a handler might overlap.
        (Mode.INLINE, 100, SEEDS[:2]),
        (Mode.INBOX, 100, SEEDS[:1]),
        pytest.param(Mode.INLINE, 100, SEEDS, marks=pytest.mark.full("6 s")),
        pytest.param(Mode.INBOX, 100, SEEDS[:5], marks=pytest.mark.full("6 s")),
    ],
)
def test_every_seed_finds_a_store_whose_key_locks_exclude_nobody(
    mode: Mode, events: int, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def acquired(*_: object, **__: object) -> Acquired:
        return Acquired()

    monkeypatch.setattr(StepStore, "acquire_key_lock", acquired)
    receiver = Receiver(secrets=new_secret(), store="memory://")

    @receiver.on(ChannelUnhealthy, ChannelDisconnected, latest_by=lambda event: event.data.id)
    async def follow(event: ChannelUnhealthy | ChannelDisconnected) -> None: ...

    with store_url("sqlite") as url, silence():
        for seed in seeds:
            report = simulate(receiver, events=events, seed=seed, store=url, mode=mode)
            assert report.count(Breach.STALE), seed
            assert report.count(Breach.OVERLAP), seed
            assert report.count(Breach.STALE) + report.count(Breach.OVERLAP) == len(report.findings)


@pytest.mark.parametrize(
    ("mode", "events", "seeds"),
    [
        (Mode.INLINE, EVENTS, SEEDS[:2]),
        (Mode.INBOX, EVENTS, SEEDS[:1]),
        pytest.param(Mode.INLINE, EVENTS, SEEDS, marks=pytest.mark.full("5 s")),
        pytest.param(Mode.INBOX, EVENTS, SEEDS[:5], marks=pytest.mark.full("5 s")),
    ],
)
def test_every_seed_finds_the_mistake_of_the_example_with_times_of_arrival(
    mode: Mode, events: int, seeds: range
) -> None:
    wrong = Combination("out_of_turn", "sqlite", mode)
    with store_url("sqlite") as url:
        for seed in seeds:
            report = wrong.simulate(url, events=events, seed=seed)
            breaches = {finding.breach for finding in report.findings}
            # If two events arrive at the same moment, the mistake may also lose the newer event.
            assert Breach.STALE in breaches <= {Breach.STALE, Breach.LOST}, seed


def check_channels(place: Place, events: int, seed: int) -> None:
    with store_url(place.store) as url:
        channels = Channels(place, url, events=events, seed=seed)
    assert channels.count > events / 2
    assert channels.wrong() == []
    assert channels.report.passed, (seed, channels.report.findings[:3])
    assert channels.report.stale, "no event was stale"


@pytest.mark.costs("up to 4 s: a PostgreSQL server starts")
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_each_channel_ends_with_its_newest_status(place: Place) -> None:
    check_channels(place, events=120, seed=random.choice(SEEDS))


@pytest.mark.full("a minute of processor time each", draw=1)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_each_of_100_channels_ends_with_its_newest_status_after_2000_events(place: Place) -> None:
    check_channels(place, events=2_000, seed=random.choice(SEEDS))
