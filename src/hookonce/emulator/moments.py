"""Unix seconds as the service's resources have them: UTC, to the millisecond."""

from __future__ import annotations

from datetime import datetime

from ..clock import utc


def moment(unix: float) -> datetime:
    """Return the moment."""
    return utc(round(unix, 3))


def optional_moment(unix: float | None) -> datetime | None:
    """Return the moment, or None for None."""
    return None if unix is None else moment(unix)
