"""Takes hidden values out of other texts about a delivery, such as a traceback that quotes them.

A text rarely quotes a value as it is: it shows its `repr`, JSON, a URL, one within the other, or a
part of it before an ellipsis.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from .skeletons import Skeleton

HIDDEN = "[redacted]"
WITHHELD = "[not shown: it may quote hidden values that are too many or too large to be looked for]"

_MOST_VALUES = 200
_MOST_CHARACTERS = 16 * 1024

# Shorter ones, such as `1` or `no`, stand in every text as a part of something else.
_LEAST_ANYWHERE = 4
_LEAST_PART = 4

_FRACTION = re.compile(r"[0-9]{1,30}\.[0-9]{1,30}")

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
        stripped = {value.strip() for value in values} - {""}
        self._values = sorted(stripped | _as_floats(stripped), key=len, reverse=True)
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
        values = [value for value in self._values if len(value) >= least]
        skeletons = [Skeleton(text) for text in texts]
        # Most values are quoted nowhere: one look for each, however many texts there are.
        letters, everything = "\n".join(one.letters for one in skeletons), "\n".join(texts)
        wanted = {Skeleton(value).letters for value in values}
        wanted = {one for one in wanted if len(one) >= _LEAST_ANYWHERE and one in letters}
        forms = {form for value in values for form in _escaped(value)}
        # Values of few letters are looked for as they are.
        whole = sorted((form for form in forms if form in everything), key=len, reverse=True)
        starts = [form for form in forms if form[:_LEAST_PART] in everything]
        ends = [form for form in forms if form[-_LEAST_PART:] in everything]
        exactly = re.compile("|".join(map(_anywhere, whole))) if whole else None
        shown = []
        for text, skeleton in zip(texts, skeletons, strict=True):
            places = [place for one in wanted for place in skeleton.places(one)]
            places += [found.span() for found in exactly.finditer(text)] if exactly else []
            places += _parts(text, starts, ends) if starts or ends else []
            shown.append(_without(text, places))
        return shown


def _as_floats(values: Iterable[str]) -> set[str]:
    """Return how Python writes those of the values that are numbers with a fraction."""
    return {repr(float(value)) for value in values if _FRACTION.fullmatch(value)}


def _escaped(value: str) -> tuple[str, ...]:
    return value, repr(value)[1:-1], json.dumps(value)[1:-1]


def _anywhere(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= _LEAST_ANYWHERE else rf"(?<!\w){escaped}(?!\w)"


def _without(text: str, places: Iterable[tuple[int, int]]) -> str:
    """Return a text with one mark in place of each of these, or of several that touch."""
    pieces: list[str] = []
    done = -1
    for start, end in sorted(places):
        if end <= start:
            continue
        if start > done:
            pieces += [text[max(done, 0) : start], HIDDEN]
        done = max(done, end)
    return "".join([*pieces, text[max(done, 0) :]])


def _parts(text: str, starts: Sequence[str], ends: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where the part of a value stands that was left of it before or after a cut."""
    cuts = [found.span() for found in islice(_ELLIPSIS.finditer(text), _MOST_ELLIPSES)]
    for before, after in [*cuts, (len(text), len(text))]:  # stores cut what is too long
        tail = text[max(0, before - _LONGEST_PART) : before]
        head = text[after : after + _LONGEST_PART]
        yield before - max((_start_at_end(form, tail) for form in starts), default=0), before
        yield after, after + max((_end_at_start(form, head) for form in ends), default=0)


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
