"""The cost of a page grows only linearly with the length of a body, whatever its content.

Anybody may send a forged body, and an operator opens it. No test measures a time: they count the
calls that Python makes, look at the patterns, and compare the processor time of one text with that
of a text of four times its length.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookonce.events import EventParser
from hookonce.operations.inspector import Redaction, redaction, redactor
from hookonce.operations.inspector.bodies import shown_body
from hookonce.operations.inspector.models import model_of
from hookonce.operations.inspector.redactor import Redactor
from hookonce.operations.inspector.views import redacted

pytestmark = pytest.mark.sample(4, of="file")

PIECES = [
    *("\\n", "\\u0041", "\\\\", "\\", "\\x41", "%41", "%25", "%5C", "%", "&amp;", "&#65;", "&"),
    *("<![CDATA[", "<token>", "</", "<a ", "<", "password", "token=", "token", "=", ": ", "'", '"'),
    *("://a:b@", "://", "@", "whsec_", "v1,", "Bearer ", "-----BEGIN ", "PRIVATE KEY-----", "-"),
    *("a", "A_", "a.", "1", " ", "\n", "ü", "\U0001f92b", "{", "[", "hush-hush", "\u200b", "..."),
]
KNOWN_ATTACKS = [
    *(["\\n"], ["\\u0041"], ["<![CDATA["], ["\\n", "token"], ["a", "\\u0041", "="], ["<", "a "]),
    *(["password={"], ["://a:b"], ["%25"], ["&amp;"], ["a"], [" "], ["hush-hus"], ["\\"]),
]

Reading = Callable[[str], object]


def as_text(text: str) -> object:
    return a_redactor().text(text)


def as_traceback(text: str) -> object:
    return redacted([text, text], a_redactor())


def as_body(text: str) -> object:
    return read(text.encode())


def as_json(text: str) -> object:
    return read(json.dumps({"id": "evt_1", "type": "a.b", "data": {text[:64]: text}}).encode())


def as_many_fields(text: str) -> object:
    parts = [text[at : at + 40] for at in range(0, len(text), 40)]
    return read(json.dumps({"data": [{part: part} for part in parts]}).encode())


def as_many_secrets(text: str) -> object:
    parts = [text[at : at + 8] for at in range(0, len(text), 8)]
    return read(
        json.dumps({"data": [{"token": f"{at}{part}"} for at, part in enumerate(parts)]}).encode()
    )


def as_hidden(text: str) -> object:
    redactor = a_redactor()
    for at in range(0, len(text), 100):
        redactor.hide(text[at : at + 100])
    return redactor.scrub(text)


READINGS: list[Reading] = [as_text, as_traceback, as_body, as_json, as_hidden]
READINGS += [as_many_fields, as_many_secrets]


def a_redactor() -> Redactor:
    redactor = Redactor(Redaction(paths=["data.text"]))
    for value in ("hush-hush", "a", "aaaaaaaaaaaa", "737", "x" * 4000):
        redactor.hide(value)
    return redactor


def read(body: bytes) -> object:
    redactor = a_redactor()
    return shown_body(body, redactor), model_of(body, "evt_1", EventParser(), redactor)


def calls_of(reading: Reading, text: str) -> int:
    """Count the calls of Python functions and C functions."""
    count = 0

    def note(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    redaction._words_of.cache_clear()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        reading(text)
    finally:
        sys.setprofile(before)
    return count


def processor_seconds(reading: Reading, text: str) -> float:
    redaction._words_of.cache_clear()
    began = time.thread_time()
    reading(text)
    return time.thread_time() - began


@pytest.mark.sample(2)
@pytest.mark.parametrize("reading", READINGS)
@settings(max_examples=40)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4), first=st.text(max_size=3))
def test_four_times_the_text_takes_no_more_than_four_times_the_calls(
    reading: Reading, pieces: list[str], first: str
) -> None:
    unit = "".join(pieces)
    text = unit * (120 // len(unit) + 1)
    small = calls_of(reading, first + text)
    assert calls_of(reading, first + text * 4) <= 4.4 * small + 200


@pytest.mark.sample(8)
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("pieces", KNOWN_ATTACKS, ids="".join)
def test_a_known_attack_takes_four_times_as_long_at_four_times_the_length(
    reading: Reading, pieces: list[str]
) -> None:
    """At four times the length, a quadratic cost would take sixteen times as long."""
    unit = "".join(pieces)
    text = unit * (12_000 // len(unit))
    # Another process may disturb a measurement, so measure up to three times.
    assert any(grows_with_the_length(reading, text) for _ in range(3))


def grows_with_the_length(reading: Reading, text: str) -> bool:
    """Return whether reading four times the text takes less than nine times as long."""
    large = processor_seconds(reading, text * 4)
    return large < 0.02 or large < 9 * processor_seconds(reading, text) + 0.02


def test_no_pattern_backtracks() -> None:
    """Backtracking once made patterns quadratic; a possessive repeat never backtracks."""
    values = [*vars(redaction).values(), *vars(redactor).values()]
    patterns = [value for value in values if isinstance(value, re.Pattern)]
    assert len(patterns) >= 5
    for pattern in patterns:
        for kind, most in repeats_in(re._parser.parse(pattern.pattern)):  # type: ignore[attr-defined]  # `re` has no public parser
            assert most < 100 or kind == "POSSESSIVE_REPEAT", (pattern.pattern, kind)


def repeats_in(parsed: Any) -> list[tuple[str, int]]:
    """Return the kind and the upper limit of each repeat that could backtrack."""
    found: list[tuple[str, int]] = []
    for operation, argument in parsed:
        if str(operation) in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            _, most, inner = argument
            found += [(str(operation), int(most)), *repeats_in(inner)]
        elif str(operation) == "SUBPATTERN":
            found += repeats_in(argument[-1])
        elif str(operation) == "BRANCH":
            found += [one for branch in argument[1] for one in repeats_in(branch)]
        elif str(operation) in {"ASSERT", "ASSERT_NOT"}:
            found += repeats_in(argument[1])
    return found
