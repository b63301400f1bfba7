"""Each of our stores follows the rules of the contract."""

from __future__ import annotations

import pytest
from stores.conftest import BACKENDS

from hookonce.stores.contract import (
    ACTIVITY_RULES,
    BODY_RULES,
    HANDLED_RULES,
    INBOX_RULES,
    RECONCILING_RULES,
    REGISTERING_RULES,
    RULES,
    Bench,
    Rule,
)
from hookonce.stores.life import State

pytestmark = pytest.mark.anyio

BASIC = [*RULES, *REGISTERING_RULES, *RECONCILING_RULES, *HANDLED_RULES]
WHOLE = [*BASIC, *BODY_RULES, *INBOX_RULES, *ACTIVITY_RULES]


def is_row(rule: Rule) -> bool:
    """Return whether a rule tests a row of the table of an event's states."""
    return rule.__name__.partition(".")[0] in State.__members__


def cases(*, rows: bool) -> list[object]:
    """Return each store with each rule that applies to it."""
    return [
        pytest.param(name, rule, id=f"{name}-{rule.__name__}")
        for name in BACKENDS
        for rule in (BASIC if name == "memory" else WHOLE)
        if is_row(rule) is rows
    ]


@pytest.fixture
def bench(request: pytest.FixtureRequest, backend: str) -> Bench:
    """Return a bench for a store, without data."""
    return Bench(
        lambda clock, retention: BACKENDS[backend](request, retention, clock),
        shares_data=backend != "memory",
    )


@pytest.mark.sample(800)
@pytest.mark.parametrize(("backend", "rule"), cases(rows=False))
async def test_a_store_keeps_the_rule(bench: Bench, rule: Rule) -> None:
    await rule(bench)


@pytest.mark.sample(100, full=300)
@pytest.mark.parametrize(("backend", "rule"), cases(rows=True))
async def test_each_step_of_an_event_has_the_result_in_its_row(bench: Bench, rule: Rule) -> None:
    await rule(bench)
