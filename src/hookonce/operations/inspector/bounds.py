"""Limits of the inspector's memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Generic, TypeVar

from ...clock import span_seconds

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of the inspector's memory, and of the number of its visitors.

    Refused requests are kept apart, so a flood of forged requests displaces no genuine delivery.
    The bytes of bodies, headers and tracebacks count, but not the objects around them.

    Attributes:
        deliveries: genuine deliveries.
        deliveries_bytes: their bytes together.
        each_second: genuine deliveries in each second that are kept with every step. Of further
            deliveries only failures are kept; the charts count all.
        refused: refused requests.
        refused_bytes: their bytes together.
        histories_bytes: bytes of all tracebacks together.
        viewers: live pages at the same time.
        stream_seconds: how long a live page stays connected before it connects again. A server that
            shuts down gracefully waits no longer than this for an open page.
        actions: replays and other actions at the same time.

    Raises:
        ValueError: a bound is not a finite number above 0.
    """

    deliveries: int = 500
    deliveries_bytes: int = 16 * 1024**2
    each_second: int = 50
    refused: int = 200
    refused_bytes: int = 2 * 1024**2
    histories_bytes: int = 8 * 1024**2
    viewers: int = 8
    stream_seconds: float | timedelta = 10.0
    actions: int = 4

    def __post_init__(self) -> None:
        for bound in fields(self):
            value = getattr(self, bound.name)
            if bound.name == "stream_seconds":
                span_seconds(bound.name, value, positive=True)
            elif not 0 < value < float("inf"):
                raise ValueError(f"{bound.name} must be a finite number above 0, not {value!r}")


class Bounded(Generic[K, V]):
    """A mapping that drops its oldest entries if it has too many entries or bytes.

    Args:
        count: the most entries.
        size: the most bytes, as callers of ``put`` and ``grow`` count them.
    """

    def __init__(self, *, count: int, size: int) -> None:
        self._count = count
        self._size = size
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.bytes: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return an entry; None if it is unknown or was dropped."""
        found = self._entries.get(key)
        return None if found is None else found[0]

    def newest_first(self) -> Iterator[tuple[K, V]]:
        """Yield the entries; the entry that was added or grew last comes first."""
        for key, (value, _) in reversed(self._entries.items()):
            yield key, value

    def put(self, key: K, value: V, size: int) -> Sequence[V]:
        """Add an entry, and return the dropped entries. A new entry that is too big is dropped."""
        self._entries[key] = (value, size)
        self.bytes += size
        return self._drop_oldest()

    def grow(self, key: K, size: int) -> Sequence[V]:
        """Count more bytes for an entry, which becomes the newest; return the dropped entries."""
        found = self._entries.get(key)
        if found is None:
            return ()
        self._entries[key] = (found[0], found[1] + size)
        self._entries.move_to_end(key)
        self.bytes += size
        return self._drop_oldest()

    def _drop_oldest(self) -> Sequence[V]:
        dropped = []
        while len(self._entries) > self._count or self.bytes > self._size:
            _, (value, size) = self._entries.popitem(last=False)
            self.bytes -= size
            dropped.append(value)
        return dropped
