"""What follows from an attempt, as plain values."""

from http import HTTPStatus

import pytest

from hookonce import Outcome, Reject, Retry
from hookonce.delivery.outcome import BROKEN, Reason, later
from hookonce.delivery.time_limit import BrokenStoreError
from hookonce.delivery.verdict import (
    Failure,
    LeaseLost,
    NoTurn,
    Report,
    Verdict,
    decide,
    is_last_chance,
    is_last_delivery,
    unavailable,
    wait_seconds,
)
from hookonce.errors import StoreError
from hookonce.stores.tokens import new_token
from hookonce.stores.values import Claimed, DeadReason, delivery_key

REJECTED = Verdict(Outcome(HTTPStatus.ACCEPTED, Reason.REJECTED), DeadReason.REJECTED)
EXHAUSTED = Verdict(Outcome(HTTPStatus.ACCEPTED, Reason.EXHAUSTED), DeadReason.EXHAUSTED)
FAILED = Verdict(Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.HANDLER_FAILED))
ABSENT = frozenset({"elsewhere"})
BUSY, AWAY = NoTurn(Reason.IN_FLIGHT, 7.0), NoTurn(Reason.STORE_UNAVAILABLE)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def report(*errors: Exception, absent: frozenset[str] = frozenset()) -> Report:
    names = "abcdefgh"
    return Report([Failure(*pair) for pair in zip(names, errors, strict=False)], absent)


@pytest.mark.parametrize(
    ("missing", "verdict", "on_the_last_chance"),
    [
        (report(ValueError()), FAILED, EXHAUSTED),
        (report(Retry(after=5)), Verdict(later(Reason.RETRY_REQUESTED, 5)), EXHAUSTED),
        (report(Retry(5), Retry(9)), Verdict(later(Reason.RETRY_REQUESTED, 9)), EXHAUSTED),
        (report(Retry(), Retry(9)), Verdict(later(Reason.RETRY_REQUESTED, 9)), EXHAUSTED),
        (report(Retry()), Verdict(later(Reason.RETRY_REQUESTED)), EXHAUSTED),
        (report(Retry(), ValueError()), FAILED, EXHAUSTED),
        (report(Reject()), REJECTED, REJECTED),
        (report(Reject(), Reject()), REJECTED, REJECTED),
        (report(Reject(), absent=ABSENT), FAILED, EXHAUSTED),
        (report(Reject(), Retry()), FAILED, EXHAUSTED),
        (report(LeaseLost()), Verdict(later(Reason.IN_FLIGHT)), EXHAUSTED),
        (report(LeaseLost(), Retry(5)), Verdict(later(Reason.IN_FLIGHT)), EXHAUSTED),
        (report(BUSY), Verdict(later(Reason.IN_FLIGHT, 7)), Verdict(later(Reason.IN_FLIGHT, 7))),
        (
            report(AWAY, BUSY),
            Verdict(later(Reason.STORE_UNAVAILABLE, 7)),
            Verdict(later(Reason.STORE_UNAVAILABLE, 7)),
        ),
        (
            report(AWAY),
            Verdict(later(Reason.STORE_UNAVAILABLE)),
            Verdict(later(Reason.STORE_UNAVAILABLE)),
        ),
        (report(BUSY, Retry(90)), Verdict(later(Reason.IN_FLIGHT, 7)), EXHAUSTED),
        (report(BUSY, absent=ABSENT), Verdict(later(Reason.IN_FLIGHT, 7)), EXHAUSTED),
        (report(absent=ABSENT), Verdict(later(Reason.HANDLER_ABSENT)), EXHAUSTED),
    ],
)
def test_a_verdict_weighs_all_that_is_missing(
    missing: Report, verdict: Verdict, on_the_last_chance: Verdict
) -> None:
    assert decide(missing, last_chance=False, keeps_bodies=True) == verdict
    assert decide(missing, last_chance=True, keeps_bodies=True) == on_the_last_chance
    without_bodies = REJECTED if verdict == REJECTED else verdict
    assert decide(missing, last_chance=True, keeps_bodies=False) == without_bodies


def test_a_report_names_each_handler_with_one_line_of_why() -> None:
    missing = report(
        ValueError("two\n  lines"),
        ValueError(),
        UnspeakableError(),
        LeaseLost(),
        BUSY,
        absent=frozenset({"z", "y"}),
    )
    assert missing.describe().split("\n") == [
        "a: ValueError: two lines",
        "b: ValueError",
        "c: UnspeakableError: (its text cannot be made)",
        "d: LeaseLost: not begun, since the lease was over",
        "e: NoTurn: not begun, since it waits for its turn",
        "y: no handler of this name is registered for it here",
        "z: no handler of this name is registered for it here",
    ]
    assert missing.owed == set("abcdeyz")
    assert [failure.handler for failure in missing.errors] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("missing", "only_waits"),
    [
        (report(BUSY, AWAY), True),
        (report(BUSY, Retry()), False),
        (report(BUSY, absent=ABSENT), False),
        (report(), False),
    ],
)
def test_an_event_only_waits_where_nothing_else_is_missing(
    missing: Report, only_waits: bool
) -> None:
    assert missing.only_waits is only_waits


@pytest.mark.parametrize(
    ("missing", "seconds"),
    [
        (report(ValueError()), 60.0),
        (report(Retry()), 60.0),
        (report(Retry(after=5)), 5.0),
        (report(Retry(after=90)), 90.0),
        (report(Retry(after=5), ValueError()), 60.0),
        (report(Retry(after=90), ValueError()), 90.0),
        (report(Retry(after=5), absent=ABSENT), 60.0),
        (report(absent=ABSENT), 60.0),
    ],
)
def test_a_wait_that_was_asked_for_makes_no_other_failure_come_sooner(
    missing: Report, seconds: float
) -> None:
    assert wait_seconds(missing, 60.0) == seconds


def test_the_last_chance_is_the_ninth_delivery_or_the_eighth_attempt() -> None:
    def claim(attempt: int) -> Claimed:
        return Claimed(delivery_key("default", "evt_1"), new_token(), attempt, frozenset(), 30.0)

    assert [is_last_delivery(number) for number in (None, 1, 8, 9, 10)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert [is_last_chance(claim(attempt), None) for attempt in (1, 7, 8, 9)] == [
        False,
        False,
        True,
        True,
    ]
    assert is_last_chance(claim(1), 9)


def test_a_store_that_failed_is_asked_again_and_a_broken_one_is_at_fault() -> None:
    assert unavailable(StoreError("away")) == later(Reason.STORE_UNAVAILABLE)
    assert unavailable(BrokenStoreError("it raised KeyError")) == BROKEN
