"""The verdict on an attempt: a function that takes and returns plain values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

import pytest

from hookonce import Outcome, Reject, Retry
from hookonce.delivery.verdict import (
    Bury,
    Defer,
    Failure,
    LeaseLost,
    NotAcquired,
    Release,
    Report,
    decide,
    is_last_delivery,
    may_be_last,
    redelivered_until,
    store_failed,
    wait_seconds,
)
from hookonce.errors import StoreError
from hookonce.events import CommentReceived
from hookonce.outcome import BROKEN, Reason, later
from hookonce.senders import Rules, publishing, svix
from hookonce.stores.time_limit import BrokenStoreError
from hookonce.stores.values import Claimed, DeadReason, delivery_key, new_token
from hookonce.testing import make_event

RULES = publishing.rules

ACCEPTED = HTTPStatus.ACCEPTED
FAILED = Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.HANDLER_FAILED)
REJECTED, EXHAUSTED = DeadReason.REJECTED, DeadReason.EXHAUSTED
ABSENT = frozenset({"elsewhere"})
BUSY, AWAY = NotAcquired(Reason.IN_FLIGHT, 7.0), NotAcquired(Reason.STORE_UNAVAILABLE)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def report(*errors: Exception, absent: frozenset[str] = frozenset()) -> Report:
    names = "abcdefgh"
    return Report([Failure(*pair) for pair in zip(names, errors, strict=False)], absent)


@pytest.mark.parametrize(
    ("missing", "usual", "on_the_last_chance"),
    [
        (report(ValueError()), FAILED, EXHAUSTED),
        (report(Retry(after=5)), later(Reason.RETRY_REQUESTED, 5), EXHAUSTED),
        (report(Retry(5), Retry(9)), later(Reason.RETRY_REQUESTED, 9), EXHAUSTED),
        (report(Retry(), Retry(9)), later(Reason.RETRY_REQUESTED, 9), EXHAUSTED),
        (report(Retry()), later(Reason.RETRY_REQUESTED), EXHAUSTED),
        (report(Retry(), ValueError()), FAILED, EXHAUSTED),
        (report(Reject()), REJECTED, REJECTED),
        (report(Reject(), Reject()), REJECTED, REJECTED),
        (report(Reject(), absent=ABSENT), FAILED, EXHAUSTED),
        (report(Reject(), Retry()), FAILED, EXHAUSTED),
        (report(LeaseLost()), later(Reason.IN_FLIGHT), EXHAUSTED),
        (report(LeaseLost(), Retry(5)), later(Reason.IN_FLIGHT), EXHAUSTED),
        (report(BUSY), later(Reason.IN_FLIGHT, 7), later(Reason.IN_FLIGHT, 7)),
        (
            report(AWAY, BUSY),
            later(Reason.STORE_UNAVAILABLE, 7),
            later(Reason.STORE_UNAVAILABLE, 7),
        ),
        (
            report(AWAY),
            later(Reason.STORE_UNAVAILABLE),
            later(Reason.STORE_UNAVAILABLE),
        ),
        (report(BUSY, Retry(90)), later(Reason.IN_FLIGHT, 7), EXHAUSTED),
        (report(BUSY, absent=ABSENT), later(Reason.IN_FLIGHT, 7), EXHAUSTED),
        (report(absent=ABSENT), later(Reason.HANDLER_ABSENT), EXHAUSTED),
    ],
)
def test_a_settlement_follows_from_all_failures_and_absent_handlers(
    missing: Report, usual: Outcome | DeadReason, on_the_last_chance: Outcome | DeadReason
) -> None:
    def settled(*, last_chance: bool, keeps_bodies: bool) -> Outcome | DeadReason:
        for backoff in (None, 60.0):
            settlement = decide(
                missing,
                last_chance=last_chance,
                keeps_bodies=keeps_bodies,
                backoff_seconds=backoff,
            )
            assert settlement.error == ("" if missing.only_waits else missing.describe())
            assert settlement.outstanding == missing.outstanding
            if isinstance(settlement, Bury):
                assert settlement.outcome == Outcome(ACCEPTED, Reason(settlement.reason))
            else:
                assert isinstance(settlement, Release if backoff is None else Defer)
        return settlement.reason if isinstance(settlement, Bury) else settlement.outcome

    assert settled(last_chance=False, keeps_bodies=True) == usual
    assert settled(last_chance=True, keeps_bodies=True) == on_the_last_chance
    assert settled(last_chance=True, keeps_bodies=False) == usual


def test_an_attempt_that_only_waited_for_a_key_lock_does_not_count() -> None:
    def deferred(missing: Report) -> Defer:
        settlement = decide(missing, last_chance=False, keeps_bodies=True, backoff_seconds=60.0)
        assert isinstance(settlement, Defer)
        return settlement

    assert (deferred(report(BUSY)).counts, deferred(report(BUSY)).after_seconds) == (False, 7.0)
    assert (
        deferred(report(ValueError())).counts,
        deferred(report(ValueError())).after_seconds,
    ) == (
        True,
        60.0,
    )


def test_a_report_has_one_line_for_each_outstanding_handler() -> None:
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
        "c: UnspeakableError: (str() of this error failed)",
        "d: LeaseLost: not begun, since the lease was over",
        "e: NotAcquired: not begun, since it waits for its key lock",
        "y: no handler of this name is registered for it here",
        "z: no handler of this name is registered for it here",
    ]
    assert missing.outstanding == set("abcdeyz")
    assert [failure.handler for failure in missing.failures_except_retries] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("missing", "only_waits"),
    [
        (report(BUSY, AWAY), True),
        (report(BUSY, Retry()), False),
        (report(BUSY, absent=ABSENT), False),
        (report(), False),
    ],
)
def test_only_waits_is_false_if_a_handler_has_failed_or_is_absent(
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
def test_a_short_retry_after_does_not_shorten_the_backoff_of_another_failure(
    missing: Report, seconds: float
) -> None:
    assert wait_seconds(missing, 60.0) == seconds


def test_the_ninth_delivery_and_the_eighth_attempt_may_be_the_last() -> None:
    def claim(attempt: int) -> Claimed:
        return Claimed(delivery_key("default", "evt_1"), new_token(), attempt, frozenset(), 30.0)

    assert [is_last_delivery(RULES, number) for number in (None, 1, 8, 9, 10)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert [may_be_last(RULES, claim(attempt), None) for attempt in (1, 7, 8, 9)] == [
        False,
        False,
        True,
        True,
    ]
    assert may_be_last(RULES, claim(1), 9)


def event_of(created_at: float) -> CommentReceived:
    return make_event(CommentReceived, created_at=datetime.fromtimestamp(created_at, UTC))


def claimed(attempt: int) -> Claimed:
    return Claimed(delivery_key("default", "evt_1"), new_token(), attempt, frozenset(), 30.0)


SENT_AT = 1_800_000_000
HOUR = 3_600.0


@pytest.mark.parametrize(
    ("age", "until"),
    [
        (0.0, SENT_AT + 26 * HOUR),
        (11.8 * HOUR, SENT_AT + 14.2 * HOUR),  # the latest possible eighth attempt
        (16 * HOUR - 1, SENT_AT + 10 * HOUR + 1),
        (16 * HOUR, None),
        (20.4 * HOUR, None),  # the earliest possible ninth attempt
        (50 * 365 * 24 * HOUR, None),
        (-HOUR, SENT_AT + 26 * HOUR),  # created after it was signed: the sender's clocks differ
        (-100 * 365 * 24 * HOUR, SENT_AT + 26 * HOUR),
    ],
)
def test_redelivery_is_expected_for_26_hours_unless_the_event_is_16_hours_old(
    age: float, until: float | None
) -> None:
    created_at = datetime.fromtimestamp(SENT_AT, UTC) - timedelta(seconds=age)
    event = make_event(CommentReceived, created_at=created_at)
    found = redelivered_until(RULES, event, SENT_AT)
    assert found == (until if until is None else pytest.approx(until, abs=0.01))


def test_no_age_proves_the_last_attempt_of_a_sender_that_reads_retry_after() -> None:
    created_at = datetime.fromtimestamp(SENT_AT, UTC) - timedelta(hours=20)
    event = make_event(CommentReceived, created_at=created_at)
    assert redelivered_until(RULES, event, SENT_AT) is None
    obeying = replace(RULES, reads_retry_after=True)
    assert redelivered_until(obeying, event, SENT_AT) == SENT_AT + 26 * HOUR


def test_an_unreadable_event_counts_as_created_when_it_was_sent() -> None:
    assert redelivered_until(RULES, None, SENT_AT) == SENT_AT + 26 * HOUR


def test_any_delivery_may_be_the_last_of_a_sender_with_unknown_attempts() -> None:
    unknown = Rules(retry_seconds=(5, 300))
    assert is_last_delivery(unknown, None)
    assert is_last_delivery(unknown, 1)
    # The first attempt keeps the body only after a failure. Later attempts keep the body before
    # their handlers run.
    assert [may_be_last(unknown, claimed(attempt), 1) for attempt in (1, 2)] == [False, True]


def test_the_span_of_a_sender_of_unknown_attempts_is_counted_from_the_attempt() -> None:
    old = event_of(SENT_AT - 100 * HOUR)
    assert redelivered_until(Rules(), old, SENT_AT) == SENT_AT + 7 * 24 * HOUR
    assert redelivered_until(Rules(retry_seconds=(5,)), old, SENT_AT) == SENT_AT + 2 * HOUR


def test_without_the_jitter_no_age_proves_the_last_attempt() -> None:
    old = event_of(SENT_AT - 30 * HOUR)
    assert redelivered_until(svix.rules, old, SENT_AT) == SENT_AT + (29 - 30) * HOUR


def test_a_failed_store_is_answered_503_and_a_store_that_breaks_its_contract_500() -> None:
    assert store_failed(StoreError("away")) == later(Reason.STORE_UNAVAILABLE)
    assert store_failed(BrokenStoreError("it raised KeyError")) == BROKEN
