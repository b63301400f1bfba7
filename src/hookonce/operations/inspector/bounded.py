"""A mapping that forgets its oldest entries: it is bounded by their number and their bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_NOTHING: tuple[Any, ...] = ()


class Bounded(Generic[K, V]):
    """Keeps the newest entries.

    Args:
        count: how many entries at the most.
        size: how many bytes at the most, by what ``put`` and ``grow`` are told.

    Attributes:
        bytes: what the entries add up to.

    """

    def __init__(self, *, count: int, size: int) -> None:
        self._count = count
        self._size = size
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the entry, if it has not been forgotten."""
        found = self._entries.get(key)
        return None if found is None else found[0]

    def newest_first(self) -> Iterator[tuple[K, V]]:
        """Yield the entries, last put or grown first."""
        for key, (value, _) in reversed(self._entries.items()):
            yield key, value

    def put(self, key: K, value: V, size: int) -> Sequence[V]:
        """Keep an entry under a new key, and return those that had to go: perhaps itself."""
        self._entries[key] = (value, size)
        self.bytes += size
        if self.bytes <= self._size and len(self._entries) <= self._count:
            return _NOTHING
        return self._forgotten()

    def grow(self, key: K, size: int) -> Sequence[V]:
        """Count an entry as the newest, and as so much larger; return those that had to go."""
        found = self._entries.get(key)
        if found is None:
            return _NOTHING
        self._entries[key] = (found[0], found[1] + size)
        self._entries.move_to_end(key)
        self.bytes += size
        return self._forgotten()

    def _forgotten(self) -> Sequence[V]:
        forgotten = []
        while len(self._entries) > self._count or self.bytes > self._size:
            _, (value, size) = self._entries.popitem(last=False)
            self.bytes -= size
            forgotten.append(value)
        return forgotten
