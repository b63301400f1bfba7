"""Type strings and patterns with ``*``, by which a handler names its event types."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_SEGMENT = r"[^\s.*]+"
_TYPE = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")


def meets_any(wanted: str, event_types: Iterable[str]) -> bool:
    """Return whether a type string or pattern matches one of these types."""
    pattern = pattern_of(wanted) if "*" in wanted else re.compile(re.escape(wanted))
    return any(pattern.fullmatch(event_type) for event_type in event_types)


def type_string(text: str) -> str:
    """Return the text, or raise ValueError if it is no event type."""
    if _TYPE.fullmatch(text) is None:
        raise ValueError(
            f"{text!r} is no event type; types are words joined by full stops, such as"
            " 'comment.received'"
        )
    return text


def pattern_of(text: str) -> re.Pattern[str]:
    """Return a pattern as a regular expression; ValueError if no event type can match it."""
    segments = text.split(".")
    if any(segment != "*" and re.fullmatch(_SEGMENT, segment) is None for segment in segments):
        raise ValueError(
            f"the pattern {text!r} can match nothing; '*' stands for whole segments, as in"
            " 'channel.*' or 'post.*.failed'"
        )
    parts = [_SEGMENT if segment == "*" else re.escape(segment) for segment in segments]
    if segments[-1] == "*":
        parts[-1] = rf"{_SEGMENT}(?:\.{_SEGMENT})*"
    return re.compile(r"\.".join(parts))


def check_is_no_test(text: str, known: Collection[str], test_type: str | None) -> None:
    """Raise ValueError if a pattern is meant for the test event, which no pattern matches.

    Args:
        text: the pattern.
        known: the event types that are known of the sender; if the test event is the only one, the
            pattern may be meant for types that are not known.
        test_type: the type of the sender's test event, if there is one.
    """
    pattern = pattern_of(text)
    if len(known) > 1 and [name for name in known if pattern.fullmatch(name)] == [test_type]:
        raise ValueError(
            f"the pattern {text!r} can match nothing: no pattern matches {test_type!r}, so that"
            " tests do not run business code; register for its name or class"
        )
