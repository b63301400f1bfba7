"""Successes that this process keeps until the store can record them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..stores.values import DeliveryKey, KeyLock, Watermark


@dataclass(slots=True, eq=False, repr=False)
class Unrecorded:
    """The successes of this process that the store may not know.

    Attributes:
        successes: for each event the handlers that succeeded in an attempt whose lease ended before
            the store knew their success; the next attempt in this process skips them.
        watermarks: for each key lock the newest event that succeeded. Every later call about that
            key lock sends the watermark first.
    """

    successes: dict[DeliveryKey, set[str]] = field(default_factory=dict)
    watermarks: dict[KeyLock, Watermark] = field(default_factory=dict)

    def keep_watermark(self, key_lock: KeyLock, watermark: Watermark) -> None:
        """Keep the watermark of a success, unless a newer watermark is kept already."""
        self.watermarks[key_lock] = max(watermark, self.watermarks.get(key_lock, watermark))

    def forget_watermark(self, key_lock: KeyLock, recorded: Watermark | None) -> None:
        """Forget the watermark that the store has recorded, unless a newer watermark has come."""
        if recorded is not None and self.watermarks.get(key_lock) == recorded:
            del self.watermarks[key_lock]
