"""Faults in real processes and servers, with few repetitions, so that they can run often.

``python -m tests.faults --full`` runs them in full size, and prints a table of figures.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from .suite import SCENARIOS, Scenario, UnavailableError

pytestmark = pytest.mark.anyio

SEED = 20261121


ONE_ROUND = [
    replace(scenario, small=1)
    for scenario in SCENARIOS
    if scenario.name
    in (
        "kills, SQLite, inline",
        "kills, four senders, SQLite, inbox",
        "deployments, SQLite, inline",
        "server kills, Valkey, inline",
        "network faults, inline",
        "full disk, inline",
        "two SQLite libraries, inbox",
        "driver faults in ledgers, inline",
        "clock jumps, SQLite",
        "long outages, Valkey, inline",
    )
]


@pytest.mark.costs("3 s")
@pytest.mark.sample(1)
@pytest.mark.parametrize("scenario", ONE_ROUND, ids=[scenario.name for scenario in ONE_ROUND])
async def test_one_round_of_a_scenario_loses_no_event_and_handles_none_twice(
    scenario: Scenario,
) -> None:
    await check(scenario)


@pytest.mark.full("up to 20 s of processor time each", draw=6)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
async def test_every_acknowledged_event_is_handled_and_none_twice(scenario: Scenario) -> None:
    await check(scenario)


async def check(scenario: Scenario) -> None:
    try:
        figures = await scenario.measure(is_full=False, seed=SEED)
    except UnavailableError as error:
        is_forbidden = isinstance(error.__cause__, PermissionError)
        if "CI" in os.environ and not is_forbidden:  # some CI machines cannot mount a disk
            pytest.fail(str(error))
        pytest.skip(str(error))
    assert not figures.violations, figures.violations[:20]
    assert not figures.lost
    assert not figures.unexplained
