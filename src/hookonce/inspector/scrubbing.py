"""Takes hidden values out of other texts about a delivery, such as a traceback that quotes them.

A text rarely quotes a value as it is: it shows its `repr`, JSON, a URL, or a part of it before an
ellipsis.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from urllib.parse import quote, quote_plus

__all__ = ["HIDDEN", "WITHHELD", "HiddenValues", "Scrubber"]

HIDDEN = "[redacted]"
WITHHELD = "[not shown: it may quote hidden values that are too many or too large to be looked for]"

_MOST_VALUES = 200
_MOST_CHARACTERS = 64 * 1024

# Shorter ones, such as `1` or `no`, stand in every text as a part of something else.
_LEAST_ANYWHERE = 4
_LEAST_PART = 4

_ELLIPSIS = re.compile(r"\s?(?:\[…\]|…|\.\.\.)\s?")
_MOST_ELLIPSES = 64
_LONGEST_PART = 512


class HiddenValues:
    """Collects values that are hidden, a bounded number of them.

    Attributes:
        is_complete: whether all of them could be kept.

    """

    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self._characters = 0
        self.is_complete = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def add(self, value: str) -> None:
        """Keep a value, and each of its lines: some texts indent them."""
        for one in {value: None, **dict.fromkeys(map(str.strip, value.splitlines()))}:
            if not one or one in self._values:
                continue
            if len(self._values) == _MOST_VALUES or self._characters + len(one) > _MOST_CHARACTERS:
                self.is_complete = False
                return
            self._values[one] = None
            self._characters += len(one)


class Scrubber:
    """Replaces values in texts, however they are written there.

    Args:
        values: what must not be shown.
        is_complete: whether those are all; texts are withheld where they are not.

    """

    def __init__(self, values: Iterable[str], *, is_complete: bool = True) -> None:
        self._forms = {form for value in values for form in _forms_of(value)} - {""}
        self._is_complete = is_complete

    def scrub(self, text: str) -> str:
        """Return a text without the values."""
        return self.scrub_all([text])[0]

    def scrub_all(self, texts: Sequence[str], *, least: int = 1) -> list[str]:
        """Return texts without the values, or in place of each the reason why it is withheld.

        Args:
            texts: what may quote them.
            least: how long values are that are looked for.

        """
        if not self._is_complete:
            return [WITHHELD if text else "" for text in texts]
        # Most values are quoted nowhere: one look for each, however many texts there are.
        everything = "\n".join(texts)
        forms = [form for form in self._forms if len(form) >= least]
        whole = [form for form in forms if form in everything]
        starts = [form for form in forms if form[:_LEAST_PART] in everything]
        ends = [form for form in forms if form[-_LEAST_PART:] in everything]
        if not (whole or starts or ends):
            return list(texts)
        pattern = re.compile("|".join(map(_anywhere, sorted(whole, key=len, reverse=True))))
        return [
            _without_parts(pattern.sub(HIDDEN, text) if whole else text, starts, ends)
            for text in texts
        ]


def _forms_of(value: str) -> Iterator[str]:
    """Yield how a value is written in texts."""
    raw = value.encode("utf-8", "surrogatepass")
    forms = {
        value,
        " ".join(value.split()),
        repr(value)[1:-1],
        ascii(value)[1:-1],
        repr(raw)[2:-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(raw, safe=""),
        quote(raw),
        quote_plus(raw),
        escape(value),
        escape(value, quote=False),
    }
    if value.isascii() and value.replace(".", "").isdigit():
        forms.add(_as_float(value))
    for form in forms:
        yield form
        if "\\" in form or "'" in form or '"' in form:
            yield form.replace("'", "\\'")
            yield form.replace('"', '\\"')
            yield repr(form)[1:-1]  # an exception within another's message
            yield json.dumps(form)[1:-1]


def _as_float(number: str) -> str:
    try:
        return repr(float(number))
    except ValueError:
        return ""


def _anywhere(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= _LEAST_ANYWHERE else rf"(?<!\w){escaped}(?!\w)"


def _without_parts(text: str, starts: Sequence[str], ends: Sequence[str]) -> str:
    """Return a text without the part of a value that was left of it before or after a cut."""
    if not starts and not ends:
        return text
    cuts = [match.span() for match, _ in zip(_ELLIPSIS.finditer(text), range(_MOST_ELLIPSES))]  # noqa: B905 - as many as there are
    parts: list[tuple[int, int]] = []
    for before, after in [*cuts, (len(text), len(text))]:  # stores cut what is too long
        tail = text[max(0, before - _LONGEST_PART) : before]
        head = text[after : after + _LONGEST_PART]
        parts.append(
            (before - max((_start_at_end(form, tail) for form in starts), default=0), before)
        )
        parts.append((after, after + max((_end_at_start(form, head) for form in ends), default=0)))
    for first, last in sorted(parts, reverse=True):
        if last > first:
            text = f"{text[:first]}{HIDDEN}{text[last:]}"
    return text


def _start_at_end(form: str, text: str) -> int:
    """Return how many characters at the end of a text are the start of a value."""
    place = text.find(form[:_LEAST_PART]) if len(form) > _LEAST_PART else -1
    while place >= 0:
        if form.startswith(text[place:]):
            return len(text) - place
        place = text.find(form[:_LEAST_PART], place + 1)
    return 0


def _end_at_start(form: str, text: str) -> int:
    """Return how many characters at the start of a text are the end of a value."""
    place = text.rfind(form[-_LEAST_PART:]) if len(form) > _LEAST_PART else -1
    while place >= 0:
        if form.endswith(text[: place + _LEAST_PART]):
            return place + _LEAST_PART
        place = text.rfind(form[-_LEAST_PART:], 0, place + _LEAST_PART - 1)
    return 0
