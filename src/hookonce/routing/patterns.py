"""Type strings and patterns with ``*``, by which a handler names its event types."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..events import EVENT_CLASSES
from ..sender import TEST_TYPE

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
    """Return a pattern as a regular expression; ValueError if it can match nothing."""
    segments = text.split(".")
    if any(segment != "*" and re.fullmatch(_SEGMENT, segment) is None for segment in segments):
        raise ValueError(
            f"the pattern {text!r} can match nothing; '*' stands for whole segments, as in"
            " 'channel.*' or 'post.*.failed'"
        )
    parts = [_SEGMENT if segment == "*" else re.escape(segment) for segment in segments]
    if segments[-1] == "*":
        parts[-1] = rf"{_SEGMENT}(?:\.{_SEGMENT})*"
    pattern = re.compile(r"\.".join(parts))
    if [name for name in EVENT_CLASSES if pattern.fullmatch(name)] == [TEST_TYPE]:
        raise ValueError(
            f"the pattern {text!r} can match nothing: no pattern matches {TEST_TYPE!r}, so that"
            " tests do not run business code; register for its name or class"
        )
    return pattern
