"""Unix seconds as the service shows them: UTC, to the millisecond."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(unix: float) -> datetime:
    """Return the moment."""
    return datetime.fromtimestamp(round(unix, 3), UTC)


def instant(unix: float | None) -> datetime | None:
    """Return the moment, if there is one."""
    return None if unix is None else moment(unix)
