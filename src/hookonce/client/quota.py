"""The daily quota of the workspace, as answers tell it (interface, Limits: rule 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from ..verification.loggers import get_logger

_log = get_logger("hookonce.client")


class Quota(NamedTuple):
    """What was left of the quota when the last answer was written; all keys share it.

    Attributes:
        limit: requests a day.
        remaining: how many are left.
        reset: ``x-ratelimit-reset`` as it was sent, or None. Its unit is not shown.

    """

    limit: int
    remaining: int
    reset: str | None


QuotaListener: TypeAlias = Callable[[Quota], object]


class QuotaWatch:
    """Reads the quota off answers, and tells a listener once when little is left.

    Args:
        listener: who is told; told again after there was more in between.
        reserve: the part of the limit that counts as little.

    """

    def __init__(self, listener: QuotaListener | None, reserve: float) -> None:
        self._listener = listener
        self._reserve = reserve
        self._is_low = False
        self.current: Quota | None = None

    def note(self, headers: Mapping[str, str]) -> None:
        """Read an answer's headers; those without a quota change nothing."""
        limit, remaining = (
            headers.get(f"x-ratelimit-{name}", "").strip() for name in ("limit", "remaining")
        )
        if not all(
            text.isascii() and text.isdigit() and len(text) < 16 for text in (limit, remaining)
        ):
            return
        self.current = Quota(int(limit), int(remaining), headers.get("x-ratelimit-reset"))
        was_low = self._is_low
        self._is_low = self.current.remaining <= self.current.limit * self._reserve
        if self._is_low and not was_low and self._listener is not None:
            try:
                self._listener(self.current)
            except Exception:  # noqa: BLE001 - the request was answered, whatever a listener does about it
                _log.exception("the listener for the quota failed")
