"""Faults in real processes and servers, at a size for every change.

The same at full size, with a table of figures: ``python -m tests.faults --full``.
"""

from __future__ import annotations

import pytest

from .suite import SCENARIOS, Scenario, UnavailableError

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SEED = 20261121


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
async def test_what_was_acknowledged_is_handled_and_nothing_twice(scenario: Scenario) -> None:
    try:
        figures = await scenario.measure(is_full=False, seed=SEED)
    except UnavailableError as error:
        pytest.skip(str(error))
    assert not figures.violations, figures.violations[:20]
    assert not figures.lost
    assert not figures.unexplained
