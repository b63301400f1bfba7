"""Where the time comes from. Imports nothing from the package."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Clock", "system_clock", "uptime"]

Clock: TypeAlias = Callable[[], float]
"""Unix time in seconds."""


def system_clock() -> float:
    """Return the Unix time in seconds, looked up at the call so that a frozen clock is seen."""
    return time.time()


def uptime() -> float:
    """Return seconds since some moment before this machine's processes began; nobody sets it."""
    return time.monotonic()
