"""The table of an event's states and steps is complete, and every backend names its rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import hookonce.stores
from hookonce.stores import life
from hookonce.stores.contract import BODY_RULES, INBOX_RULES, RULES
from hookonce.stores.life import (
    LIFE,
    NEW,
    Answer,
    DeadLetterRecord,
    InboxEntry,
    Moment,
    Record,
    State,
    Step,
    Then,
)
from hookonce.stores.values import Claimed, DeadReason, DeliveryKey, Token

STORES = Path(hookonce.stores.__file__).parent
ROWS = {f"{state.name}.{step.value}" for state, steps in LIFE.items() for step in steps}
LIVE = {State.CLAIMED, State.FETCHED, State.KEPT_CLAIMED, State.LAST_CHANCE, State.REPLAYED}
OWNERS = {Step.EXTEND, Step.RELEASE, Step.KEEP, Step.KEEP_UNTIL, Step.BURY}
KEEPS = {Step.KEEP, Step.KEEP_UNTIL, Step.KEEP_IN_FLIGHT, Step.KEEP_IN_FLIGHT_UNTIL}
ALWAYS_DONE = {Step.COMPLETE, Step.DISCARD}
CHANGES = {Answer.GRANTED, Answer.STORED, Answer.APPLIED}

# Leave out steps that change nothing, because the delivery is already kept or need not be kept.
DRIVEN = [
    (state, step)
    for state, steps in LIFE.items()
    for step, then in steps.items()
    if then.answer in CHANGES
    and step not in ALWAYS_DONE
    and not (step in KEEPS and then.state is state)
]

KEY, TOKEN = DeliveryKey("default:evt_1"), Token("owner")
OWNED = Claimed(KEY, TOKEN, 1, frozenset(), 30.0)
MOMENT = Moment(now=100.0, unix=1_000.0, expires=9_000.0)
LEASE_OVER = MOMENT._replace(now=130.0)
SCHEDULE_OVER = MOMENT._replace(unix=2_000.0)
DEAD_AT = SCHEDULE_OVER.unix

QUEUED = InboxEntry(Token("enqueued"), MOMENT.now, 0.0)
DEAD = DeadLetterRecord(DeadReason.EXHAUSTED, "", MOMENT.unix, is_kept=False)
KEPT = DEAD._replace(is_kept=True)
KEPT_UNTIL = KEPT._replace(buried_unix=DEAD_AT, sender_retries=True)

UNCLAIMED = {
    State.FREE: NEW._replace(token=TOKEN, lease=30.0),
    State.WAITING: NEW._replace(token=TOKEN, lease=30.0, queued=QUEUED),
    State.KEPT_FREE: NEW._replace(token=TOKEN, lease=30.0, dead_letter=KEPT_UNTIL),
    State.INTERRUPTED: NEW._replace(token=TOKEN, lease=30.0, dead_letter=KEPT),
    State.DEAD: NEW._replace(token=TOKEN, lease=30.0, dead_letter=DEAD),
}
RECORDS = UNCLAIMED | {
    claimed: UNCLAIMED[LIFE[claimed][Step.EXPIRE].state]._replace(until=LEASE_OVER.now)
    for claimed in LIVE
}


STEPS: dict[Step, Callable[[Record], tuple[object, Record]]] = {
    Step.CLAIM: lambda record: life.claim(record, MOMENT, KEY, TOKEN, 30.0),
    Step.FETCH: lambda record: life.fetch(record, MOMENT, KEY, TOKEN, 30.0),
    Step.REPLAY: lambda record: life.replay(record, MOMENT, KEY, TOKEN, 30.0),
    Step.ENQUEUE: lambda record: life.enqueue(record, MOMENT, TOKEN),
    Step.EXTEND: lambda record: life.extend(record, MOMENT, OWNED),
    Step.RELEASE: lambda record: life.release(record, MOMENT, OWNED),
    Step.KEEP: lambda record: life.keep(record, MOMENT, OWNED),
    Step.KEEP_UNTIL: lambda record: life.keep(record, MOMENT, OWNED, DEAD_AT),
    Step.KEEP_IN_FLIGHT: lambda record: (None, life.keep_in_flight(record, MOMENT)),
    Step.KEEP_IN_FLIGHT_UNTIL: lambda record: (None, life.keep_in_flight(record, MOMENT, DEAD_AT)),
    Step.BURY: lambda record: life.bury(record, MOMENT, OWNED, DeadReason.REJECTED),
}


def state_after(record: Record, step: Step) -> State:
    """Return the state after a call, after the end of a lease, or after the end of the schedule."""
    if step is Step.EXPIRE:
        return life.state_of(record, LEASE_OVER)
    if step is Step.END:
        return life.state_of(record, SCHEDULE_OVER)
    return life.state_of(STEPS[step](record)[1], MOMENT)


def cited(*files: Path) -> set[str]:
    states = "|".join(state.name for state in State)
    text = "".join(file.read_text() for file in files)
    return set(re.findall(rf"\b(?:{states})\.[a-z_]+", text))


def test_the_script_of_the_redis_store_names_every_row_and_no_other() -> None:
    assert cited(*(STORES / "redis" / "lua").glob("*.lua")) == ROWS


def test_the_statements_of_the_postgres_store_name_rows_that_exist() -> None:
    named = cited(*(STORES / "postgres").glob("*.py"))
    assert named
    assert named <= ROWS


def test_the_statements_of_the_sqlite_store_name_rows_that_exist() -> None:
    named = cited(*(STORES / "sqlite").glob("*.py"))
    assert {"FREE.claim", "FREE.enqueue", "FREE.complete", "WAITING.fetch"} <= named <= ROWS


def test_the_contract_has_a_rule_for_every_row_and_no_two_rules_of_one_name() -> None:
    names = [rule.__name__ for rule in (*RULES, *BODY_RULES, *INBOX_RULES)]
    assert set(names) >= ROWS
    assert len(names) == len(set(names))


@pytest.mark.parametrize("state", State)
def test_every_state_answers_a_claim_and_an_enqueue_and_can_be_completed(state: State) -> None:
    asked = {
        Step.CLAIM,
        Step.ENQUEUE,
        Step.COMPLETE,
        Step.KEEP_IN_FLIGHT,
        Step.KEEP_IN_FLIGHT_UNTIL,
    }
    assert asked <= set(LIFE[state])
    assert LIFE[state][Step.COMPLETE].state is State.DONE


def test_exactly_the_states_in_which_an_attempt_runs_expire() -> None:
    assert {state for state in State if Step.EXPIRE in LIFE[state]} == LIVE
    for state in LIVE:
        assert LIFE[state][Step.EXPIRE].state not in LIVE


def test_exactly_the_states_with_a_kept_delivery_end_with_the_senders_schedule() -> None:
    assert {state: LIFE[state][Step.END].state for state in State if Step.END in LIFE[state]} == {
        State.KEPT_FREE: State.INTERRUPTED,
        State.KEPT_CLAIMED: State.LAST_CHANCE,
    }


def test_an_owner_may_take_its_steps_in_every_state_but_done() -> None:
    for state in State:
        assert (set(LIFE[state]) & OWNERS == OWNERS) is (state is not State.DONE)


@pytest.mark.parametrize("state", sorted(RECORDS, key=str))  # in the same order in every process
def test_a_record_shows_its_state(state: State) -> None:
    assert life.state_of(RECORDS[state], MOMENT) is state


@pytest.mark.parametrize(("state", "step"), DRIVEN)
def test_the_next_state_of_a_step_comes_from_its_row(
    monkeypatch: pytest.MonkeyPatch, state: State, step: Step
) -> None:
    answer, right = LIFE[state][step]
    assert state_after(RECORDS[state], step) is right
    if step in {Step.EXPIRE, Step.END}:
        wrong = state
    else:
        wrong = State.DEAD if right is State.FREE else State.FREE
    monkeypatch.setitem(LIFE[state], step, Then(answer, wrong))
    assert state_after(RECORDS[state], step) is not right


def test_a_row_that_changes_no_record_keeps_its_state() -> None:
    for state, steps in LIFE.items():
        for step, then in steps.items():
            if (state, step) not in DRIVEN:
                assert then.state is (State.DONE if step in ALWAYS_DONE else state)
