"""What happened in each of the last seconds: answers by kind, how long they took, the inbox."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from ...clock import Clock, uptime

LENGTH_SECONDS = 300


class Kind(StrEnum):
    """What an answer comes to, for an eye that runs over many."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    DEAD = "dead"
    RETRY = "retry"
    REFUSED = "refused"


# From 0.1 ms to 20 s, each 20 % above the one before: a percentile is right to a tenth.
_FIRST_BOUND_SECONDS = 0.0001
_FACTOR = 1.2
_BOUNDS: tuple[float, ...] = tuple(_FIRST_BOUND_SECONDS * _FACTOR**step for step in range(68))


@dataclass(slots=True)
class Second:
    """One second.

    Attributes:
        number: which one, by a clock that nobody sets.
        counts: how many answers there were of each kind.
        times: how many took how long, in the steps of a scale that is bounded.
        depth: events in the inbox, if somebody looked.
        age: seconds since the oldest of them was received, if there is one.

    """

    number: int
    counts: dict[Kind, int] = field(default_factory=dict)
    times: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))
    depth: int | None = None
    age: float | None = None


class Series:
    """The last five minutes, second by second.

    Args:
        clock: seconds since some moment; never set back.

    """

    def __init__(self, *, clock: Clock = uptime) -> None:
        self._clock = clock
        self._slots = [Second(-1) for _ in range(LENGTH_SECONDS + 1)]

    def note_answer(self, kind: Kind, seconds: float) -> None:
        """Count an answer."""
        second = self._current()
        second.counts[kind] = second.counts.get(kind, 0) + 1
        second.times[bisect_left(_BOUNDS, seconds)] += 1

    def note_answers(self, kind: Kind, count: int, seconds: Iterable[float]) -> None:
        """Count answers of another process, with the times of some of them."""
        second = self._current()
        second.counts[kind] = second.counts.get(kind, 0) + count
        for one in seconds:
            second.times[bisect_left(_BOUNDS, one)] += 1

    def note_inbox(self, depth: int, age: float | None) -> None:
        """Note what the inbox holds now."""
        second = self._current()
        second.depth = depth
        second.age = age if age is not None and isfinite(age) else None  # else no chart has it

    def seconds(self) -> list[Second]:
        """Return the last seconds that are over, oldest first; those without anything are empty."""
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


def percentile(seconds: Iterable[Second], fraction: float) -> float | None:
    """Return how many seconds that fraction of the answers took at most; None without answers."""
    answered = [second.times for second in seconds if second.times]
    if len(answered) == 1:  # as a chart asks for each of its points
        steps = answered[0]
    else:
        steps = [sum(step) for step in zip(*answered, strict=True)]
    wanted = fraction * sum(steps)
    if not wanted:
        return None
    below = 0
    for index, count in enumerate(steps):
        if below + count >= wanted:
            upper = _BOUNDS[min(index, len(_BOUNDS) - 1)]
            lower = _BOUNDS[index - 1] if index else 0.0
            share = (wanted - below) / count
            return lower + (upper - lower) * share
        below += count
    return None
