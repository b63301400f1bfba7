"""Faults in real processes and servers: one round of some, and each at a size for every change.

The same at full size, with a table of figures: ``python -m tests.faults --full``.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from .suite import SCENARIOS, Scenario, UnavailableError

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SEED = 20261121


ONE_ROUND = [
    replace(scenario, small=1)
    for scenario in SCENARIOS
    if scenario.name
    in (
        "kills, SQLite, inline",
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
@pytest.mark.sample(2)
@pytest.mark.parametrize("scenario", ONE_ROUND, ids=[scenario.name for scenario in ONE_ROUND])
async def test_one_round_loses_nothing_and_does_nothing_twice(scenario: Scenario) -> None:
    await check(scenario)


@pytest.mark.full("up to 20 s of processor time each, 200 s together")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
async def test_what_was_acknowledged_is_handled_and_nothing_twice(scenario: Scenario) -> None:
    await check(scenario)


async def check(scenario: Scenario) -> None:
    try:
        figures = await scenario.measure(is_full=False, seed=SEED)
    except UnavailableError as error:
        is_forbidden = isinstance(error.__cause__, PermissionError)
        if "CI" in os.environ and not is_forbidden:  # not every CI may mount a disk
            pytest.fail(str(error))
        pytest.skip(str(error))
    assert not figures.violations, figures.violations[:20]
    assert not figures.lost
    assert not figures.unexplained
