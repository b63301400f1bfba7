"""The rules of a sender, and the bounds that follow from them."""

import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

import hookonce
from hookonce.senders import Rules, Sender, openai, publishing, standard, svix

HOUR = 3600.0


def test_the_default_senders_bounds_lie_between_its_attempts() -> None:
    rules = publishing.rules
    assert rules.retry_seconds is not None
    assert rules.retry_jitter is not None
    most, least = 1 + rules.retry_jitter, 1 - rules.retry_jitter
    last = rules.last_attempt_seconds
    assert last is not None
    assert sum(rules.retry_seconds[:-1]) * most < last < sum(rules.retry_seconds) * least
    assert sum(rules.retry_seconds) * most < rules.span_seconds
    assert (last, rules.span_seconds) == (16 * HOUR, 26 * HOUR)


def test_an_example_of_a_schedule_bounds_the_span_but_proves_no_last_attempt() -> None:
    assert standard.rules.attempts is None
    assert sum(standard.rules.retry_seconds or ()) == 75 * HOUR + 35 * 60 + 5
    assert 75 * HOUR + 35 * 60 <= standard.rules.span_seconds <= 78 * HOUR
    assert standard.rules.last_attempt_seconds is None


def test_an_unknown_jitter_proves_no_last_attempt() -> None:
    assert svix.rules.attempts == 8
    assert svix.rules.last_attempt_seconds is None
    known = replace(svix.rules, retry_jitter=0.05)
    assert 17.5 * HOUR < (known.last_attempt_seconds or 0) < 27.5 * HOUR


def test_a_published_span_counts_where_there_is_no_schedule() -> None:
    assert openai.rules.retry_seconds is None
    assert 72 * HOUR <= openai.rules.span_seconds <= 74 * HOUR


def test_the_longer_of_a_published_span_and_a_schedule_counts() -> None:
    assert Rules(retry_seconds=(90 * HOUR,), retry_span_seconds=72 * HOUR).span_seconds == 91 * HOUR
    assert Rules(retry_seconds=(10 * HOUR,), retry_span_seconds=72 * HOUR).span_seconds == 73 * HOUR


def test_a_sender_that_publishes_nothing_counts_as_delivering_for_seven_days() -> None:
    assert Rules().span_seconds == 7 * 24 * HOUR
    assert Rules().last_attempt_seconds is None
    assert Rules().patience_seconds < publishing.rules.patience_seconds


def test_the_only_attempt_is_the_last_attempt() -> None:
    assert Rules(attempts=1).last_attempt_seconds == 0


def test_attempts_that_overlap_prove_nothing() -> None:
    rules = Rules(retry_seconds=(60, 60, 60), attempts=4, retry_jitter=0.5)
    assert rules.last_attempt_seconds is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attempts": 4, "retry_seconds": (1, 2)}, "4 attempts have 3 waits .*has 2"),
        ({"attempts": 0}, "attempts takes a number from 1"),
        ({"disabling_failures": 2.5}, "disabling_failures takes a whole number"),
        ({"retry_seconds": (1, -1)}, "retry_seconds takes a finite number"),
        ({"retry_jitter": 1.0}, "retry_jitter must be at least 0 and less than 1"),
        ({"answer_seconds": 0}, "answer_seconds takes a finite number of seconds above 0"),
        ({"log_seconds": float("nan")}, "log_seconds takes a finite"),
        ({"answer_seconds": "15"}, "answer_seconds takes seconds"),
        ({"reads_retry_after": "no"}, "reads_retry_after takes a bool or None, not 'no'"),
        ({"test_type": 5}, "test_type takes a str or None, not 5"),
    ],
)
def test_an_impossible_rule_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Rules(**values)  # type: ignore[arg-type]  # these values are wrong on purpose


def test_a_sender_is_frozen_and_can_be_a_key() -> None:
    sender = Sender(name="acme")
    with pytest.raises(FrozenInstanceError):
        sender.name = "other"  # type: ignore[misc]  # the assignment must fail
    assert {sender: 1}[Sender(name="acme")] == 1
    assert {sender: 1}[Sender(name="acme", headers=["webhook"], event_classes=[])] == 1  # type: ignore[arg-type]  # lists become tuples


def test_the_guide_says_for_each_rule_what_it_is_for_and_what_none_means() -> None:
    page = (Path(hookonce.__file__).parent / "guide" / "senders.md").read_text("utf-8")
    _, _, section = page.partition("## When a sender does not publish a rule")
    section, _, _ = section.partition("\n## ")
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(one.name for one in fields(Rules))
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in rows)
    assert all(one.default is None for one in fields(Rules))
