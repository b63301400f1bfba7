"""Unfinished events that need a handler which a new version has removed or renamed."""

from typing import Any

import pytest

from hookonce import Receiver
from hookonce.operations.deployment import Misfit, Problem, misfits_of
from hookonce.routing.table import HandlerTable
from hookonce.stores.values import DeadLetter, DeadReason, Delivery, Entry
from hookonce.verification.secrets import new_secret

COMMENT = "comment.received"


def version(**handlers: str) -> HandlerTable:
    """Return the handlers of a version; each argument gives a handler's name and event type."""
    receiver = Receiver(secrets=new_secret(), store="memory://")
    for name, event_type in handlers.items():
        receiver.on(event_type, name=name)(lambda _: None)
    return HandlerTable(receiver.handlers, sender=receiver.sender)


def waiting(
    finished: str = "", outstanding: str = "", event_type: str | None = COMMENT, key: str = "evt_1"
) -> Entry:
    delivery = Delivery("default", key, event_type, 0.0, b"")
    names = [frozenset(text.split()) for text in (finished, outstanding)]
    return Entry(delivery, 0.0, False, 1, names[0], (), names[1])


def found(table: HandlerTable, event: Any) -> list[tuple[Problem, str, str]]:
    return [
        (one.problem, " ".join(sorted(one.handlers)), " ".join(sorted(one.would_run)))
        for one in misfits_of(table, event)
    ]


@pytest.mark.parametrize(
    ("event", "problems"),
    [
        (waiting(), []),
        (waiting("greet", "count"), []),
        (waiting("", "greet count"), []),
        (waiting("", "greet thank"), [(Problem.LACKS, "thank", "")]),
        (waiting("greet", "reply"), [(Problem.LACKS, "reply", "")]),
        (waiting("thank", "thank"), [(Problem.RENAMED, "thank", "count greet")]),
        (waiting("thank", "greet count"), []),
        (waiting("thank greet", ""), [(Problem.RENAMED, "thank", "count")]),
        (waiting("thank greet count", ""), []),
        (waiting("reply", ""), []),
        (
            waiting("thank", "post"),
            [(Problem.LACKS, "post", ""), (Problem.RENAMED, "thank", "count greet")],
        ),
        (waiting(event_type="post.target.failed"), [(Problem.NO_HANDLER, "", "")]),
        (
            waiting("", "watch", event_type="post.target.failed"),
            [(Problem.LACKS, "watch", "")],
        ),
        (waiting(event_type=None), []),
    ],
)
def test_a_version_with_greet_and_count_for_comments_and_reply_for_messages(
    event: Entry, problems: list[tuple[Problem, str, str]]
) -> None:
    table = version(greet=COMMENT, count=COMMENT, reply="message.received")
    assert found(table, event) == problems


@pytest.mark.parametrize(
    ("handler", "problems"),
    [("greet", []), ("thank", [(Problem.LACKS, "thank", "")])],
)
def test_the_replay_of_a_handled_event_needs_its_one_handler(
    handler: str, problems: list[tuple[Problem, str, str]]
) -> None:
    table = version(greet=COMMENT, count=COMMENT)
    assert found(table, waiting("old", "", key=f"evt_1.2.{handler}")) == problems


def test_a_misfit_names_the_event() -> None:
    delivery = Delivery("social", "evt_2", COMMENT, 0.0, b"")
    needs = frozenset({"thank"})
    dead = DeadLetter(
        delivery, DeadReason.EXHAUSTED, "away", 9, frozenset(), 0.0, outstanding=needs
    )
    assert misfits_of(version(greet=COMMENT), dead) == [
        Misfit("social", "evt_2", COMMENT, Problem.LACKS, needs)
    ]


def test_a_handler_of_a_pattern_or_of_unknown_types_counts() -> None:
    assert found(version(all="*"), waiting("", "all", event_type="new.type")) == []
    assert found(version(all="post.*"), waiting("", "all")) == [(Problem.LACKS, "all", "")]
