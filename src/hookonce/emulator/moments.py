"""Conversion of Unix seconds to the service's times: UTC, to the millisecond."""

from __future__ import annotations

from datetime import datetime

from ..clock import utc


def moment(unix: float) -> datetime:
    return utc(round(unix, 3))


def optional_moment(unix: float | None) -> datetime | None:
    return None if unix is None else moment(unix)
