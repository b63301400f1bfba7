"""Counts for each of the last seconds: answers by kind, their durations, and the inbox."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite

from ...clock import Clock, uptime
from .seen import AnswerKind

LENGTH_SECONDS = 300

# Upper bounds of the histogram, from 0.1 ms to 20 s; each bound is 1.2 times the bound before it.
_FIRST_BOUND_SECONDS = 0.0001
_FACTOR = 1.2
_BOUNDS: tuple[float, ...] = tuple(_FIRST_BOUND_SECONDS * _FACTOR**step for step in range(68))


@dataclass(slots=True)
class Second:
    """Counts of one second.

    Attributes:
        number: the second, by a monotonic clock.
        times: histogram of how long they took.
        depth: events in the inbox, if somebody looked.
        age: seconds since the oldest of them was received, if there is one.
    """

    number: int
    counts: dict[AnswerKind, int] = field(default_factory=dict)
    times: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))
    depth: int | None = None
    age: float | None = None


class Series:
    """Counts of the last five minutes, second by second.

    Args:
        clock: seconds that are never set back.
    """

    def __init__(self, *, clock: Clock = uptime) -> None:
        self._clock = clock
        self._slots = [Second(-1) for _ in range(LENGTH_SECONDS + 1)]

    def note_answer(self, kind: AnswerKind, seconds: float) -> None:
        second = self._current()
        second.counts[kind] = second.counts.get(kind, 0) + 1
        second.times[bisect_left(_BOUNDS, seconds)] += 1

    def note_answers(self, kind: AnswerKind, count: int, seconds: Iterable[float]) -> None:
        """Count answers of another process; ``seconds`` has the durations of some of them."""
        second = self._current()
        second.counts[kind] = second.counts.get(kind, 0) + count
        for one in seconds:
            second.times[bisect_left(_BOUNDS, one)] += 1

    def note_inbox(self, depth: int, age: float | None) -> None:
        """Record how many events the inbox holds, and how old the oldest event is."""
        second = self._current()
        second.depth = depth
        second.age = age if age is not None and isfinite(age) else None  # charts need finite values

    def seconds(self) -> list[Second]:
        """Return the last complete seconds, oldest first."""
        now = int(self._clock())
        found = []
        for number in range(now - LENGTH_SECONDS, now):
            slot = self._slots[number % len(self._slots)]
            found.append(slot if slot.number == number else Second(number, times=[]))
        return found

    def _current(self) -> Second:
        number = int(self._clock())
        index = number % len(self._slots)
        slot = self._slots[index]
        if slot.number != number:
            slot = self._slots[index] = Second(number)
        return slot


def merged(seconds: Iterable[Second]) -> list[int]:
    histograms = [second.times for second in seconds if second.times]
    return [sum(step) for step in zip(*histograms, strict=True)]


def percentile(times: Sequence[int], fraction: float) -> float | None:
    """Return the time within which this fraction of answers was given; None without answers."""
    wanted = fraction * sum(times)
    if not wanted:
        return None
    below = 0
    for index, count in enumerate(times):
        if below + count >= wanted:
            upper = _BOUNDS[min(index, len(_BOUNDS) - 1)]
            lower = _BOUNDS[index - 1] if index else 0.0
            share = (wanted - below) / count
            return lower + (upper - lower) * share
        below += count
    return None
