"""The daily quota of the workspace, read from answers (interface, Limits: rule 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from ..logs import get_logger

_log = get_logger("hookonce.client")


class Quota(NamedTuple):
    """The day's quota as the service has last reported it; a workspace's keys share the quota.

    Attributes:
        limit: requests in a day.
        remaining: requests that are left.
        reset: the text of ``x-ratelimit-reset``, or None; the interface does not show its unit.
    """

    limit: int
    remaining: int
    reset: str | None


QuotaListener: TypeAlias = Callable[[Quota], object]
"""A function that is called with the quota when little of it is left."""


class QuotaWatch:
    """Reads the quota from answers, and notifies a listener when little is left.

    Args:
        listener: called once, and again only after more was left in between.
        reserve: which part of the limit is little.
    """

    def __init__(self, listener: QuotaListener | None, reserve: float) -> None:
        self._listener = listener
        self._reserve = reserve
        self._is_low = False
        self.current: Quota | None = None

    def note(self, headers: Mapping[str, str]) -> None:
        """Read the quota from an answer's headers; headers without a quota change nothing."""
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
            except Exception:  # noqa: BLE001 - the caller must get the answer although the listener fails
                _log.exception("the quota listener failed")
