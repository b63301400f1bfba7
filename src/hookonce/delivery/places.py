"""The places of a worker, which limit how many events the worker handles at once."""

from __future__ import annotations

from collections.abc import Callable

# A worker begins no further attempt when its attempts, including those that only need to be
# recorded, reach this many times the concurrency.
_MOST_UNRECORDED = 4


class Places:
    """Counts the attempts of a worker.

    When the handlers of an attempt have ended, the attempt only needs to be recorded, so it leaves
    its place to another attempt. If the store is slow and too many attempts are unrecorded, no
    further attempt begins.

    Args:
        most: how many events may be handled at once.
        on_room: called whenever an attempt leaves its place or ends, in that attempt's task.

    Attributes:
        left: how many attempts have left their places so far.
    """

    def __init__(self, most: int, on_room: Callable[[], object]) -> None:
        self._most = most
        self._on_room = on_room
        self._busy = 0
        self._unrecorded = 0
        self.left: int = 0

    @property
    def free(self) -> int:
        """How many more attempts may begin now."""
        unrecorded = _MOST_UNRECORDED * self._most - self._unrecorded
        return max(0, min(self._most - self._busy, unrecorded))

    def take(self) -> None:
        """Count an attempt that begins."""
        self._busy += 1
        self._unrecorded += 1

    def leave(self) -> None:
        """Free the place of an attempt whose handlers have ended."""
        self._busy -= 1
        self.left += 1
        self._on_room()

    def end(self) -> None:
        """Forget an attempt that is recorded, or no longer has its event."""
        self._unrecorded -= 1
        self._on_room()
