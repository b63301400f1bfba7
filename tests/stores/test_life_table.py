"""The table of an event's life: it is whole, and the backends that write it anew name its rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hookonce.stores
from hookonce.stores.life import LIFE, State, Step

STORES = Path(hookonce.stores.__file__).parent
ROWS = {f"{state.name}.{step.value}" for state, steps in LIFE.items() for step in steps}
LIVE = {State.CLAIMED, State.FETCHED, State.SAVED_CLAIMED, State.KEPT, State.REPLAYED}
OWNERS = {Step.EXTEND, Step.RELEASE, Step.KEEP, Step.SAVE, Step.BURY}


def cited(*files: Path) -> set[str]:
    states = "|".join(state.name for state in State)
    text = "".join(file.read_text() for file in files)
    return set(re.findall(rf"\b(?:{states})\.[a-z_]+", text))


def test_the_script_of_the_redis_store_names_every_row_and_no_other() -> None:
    assert cited(*(STORES / "redis" / "lua").glob("*.lua")) == ROWS


def test_the_statements_of_the_sqlite_store_name_rows_that_exist() -> None:
    named = cited(*(STORES / "sqlite").glob("*.py"))
    assert {"FREE.claim", "FREE.enqueue", "FREE.complete", "WAITING.fetch"} <= named <= ROWS


@pytest.mark.parametrize("state", State)
def test_every_state_answers_a_claim_and_a_put_and_can_be_completed(state: State) -> None:
    asked = {Step.CLAIM, Step.ENQUEUE, Step.COMPLETE, Step.KEEP_IN_FLIGHT, Step.SAVE_IN_FLIGHT}
    assert asked <= set(LIFE[state])
    assert LIFE[state][Step.COMPLETE].state is State.DONE


def test_exactly_the_states_in_which_an_attempt_runs_expire() -> None:
    assert {state for state in State if Step.EXPIRE in LIFE[state]} == LIVE
    for state in LIVE:
        assert LIFE[state][Step.EXPIRE].state not in LIVE


def test_exactly_what_was_saved_ends_by_itself() -> None:
    assert {state: LIFE[state][Step.END].state for state in State if Step.END in LIFE[state]} == {
        State.SAVED: State.INTERRUPTED,
        State.SAVED_CLAIMED: State.KEPT,
    }


def test_an_owner_may_take_its_steps_in_every_state_but_done() -> None:
    for state in State:
        assert (set(LIFE[state]) & OWNERS == OWNERS) is (state is not State.DONE)
