"""Filters of listings: conditions on an event's body, and filters that a store applies itself."""

import json
from typing import Any

import pytest

from hookonce.stores.filters import Condition, EventFilter
from hookonce.stores.values import DeadReason

BODY = {
    "type": "post.published",
    "data": {
        "platform": "instagram",
        "count": 3,
        "score": 0.5,
        "isHidden": True,
        "author": None,
        "note": "a=b.c",
        "empty": "",
        "digits": "3",
        "targets": [{"platform": "x"}, {"platform": "threads"}],
        "tags": ["summer", ["nested"]],
    },
}


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("type=post.published", True),
        ("data.platform=instagram", True),
        ("data.platform=Instagram", False),
        ("data.platform=insta", False),
        ("data.count=3", True),
        ("data.count=3.0", True),
        ("data.count=1", False),
        ("data.digits=3", True),
        ("data.score=0.5", True),
        ("data.isHidden=true", True),
        ("data.isHidden=1", False),
        ("data.isHidden=True", False),
        ("data.author=null", True),
        ("data.note=a=b.c", True),
        ("data.empty=", True),
        ("data.author=", False),
        ("data.missing=null", False),
        ("data.targets.platform=threads", True),
        ("data.targets.platform=y", False),
        ("data.tags=summer", True),
        ("data.tags=nested", True),
        ("data.platform.name=x", False),
        ("data={}", False),
        ("data.count=[3]", False),
        ("data.count=" + "[" * 100_000, False),
    ],
)
def test_a_condition_compares_a_field_with_a_text_or_what_it_spells(
    text: str, is_met: bool
) -> None:
    assert Condition.parse(text).is_met(BODY) is is_met


@pytest.mark.parametrize(
    "text", ["", "data", "=x", ".=x", "data.=x", "data..platform=x", ".data=x"]
)
def test_a_text_that_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a condition is FIELD=VALUE, such as"):
        Condition.parse(text)
    with pytest.raises(ValueError, match="a condition is FIELD=VALUE"):
        EventFilter(where=("type=a", text))


@pytest.mark.parametrize(
    "body", [b"", b"\xff{", b"3", b"[]", b"[" * 100_000, b'{"data": [[]]}', b'{"n": ' + b"1" * 5000]
)
def test_a_body_without_the_field_meets_no_condition_and_raises_nothing(body: bytes) -> None:
    assert not EventFilter(where=("data.platform=x",)).passes(body)
    assert EventFilter().passes(body)


def test_a_condition_reads_lists_of_any_depth() -> None:
    nested: list[Any] = ["summer"]
    for _ in range(100_000):
        nested = [nested, "winter"]
    assert Condition.parse("data=summer").is_met({"data": nested})
    assert not Condition.parse("data=spring").is_met({"data": nested})


def test_all_conditions_must_be_met() -> None:
    body = json.dumps(BODY).encode()
    assert EventFilter(where=("type=post.published", "data.count=3")).passes(body)
    assert not EventFilter(where=("type=post.published", "data.count=4")).passes(body)


@pytest.mark.parametrize(
    ("given", "of_store"),
    [
        ({}, {}),
        ({"endpoint": "social"}, {"endpoint": "social"}),
        ({"where": ("a=b",)}, {}),
        ({"since_unix": 0.0}, {"since_unix": 0.0}),
        (
            {"event_type": "a.b", "handler": "h", "reason": DeadReason.REJECTED, "since_unix": 0.0},
            {"event_type": "a.b", "handler": "h", "reason": DeadReason.REJECTED, "since_unix": 0.0},
        ),
    ],
)
def test_the_store_applies_what_it_can_and_an_endpoint_alone_is_no_filter(
    given: dict[str, Any], of_store: dict[str, Any]
) -> None:
    wanted = EventFilter(**given)
    assert wanted.of_store == of_store
    assert wanted.is_empty is (set(given) <= {"endpoint"})
