"""Names for the plain values that travel through the package. Imports nothing from the package."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NewType, TypeAlias

__all__ = ["Clock", "DeliveryKey", "Token", "system_clock", "uptime"]

DeliveryKey = NewType("DeliveryKey", str)
"""What is handled once: the endpoint's name and the webhook-id, as ``endpoint:id``."""

Token = NewType("Token", str)
"""Made once per request. A store that finds a caller's own token says "yours", never "taken"."""

Clock: TypeAlias = Callable[[], float]
"""Unix time in seconds."""


def system_clock() -> float:
    """Return the Unix time in seconds, looked up at the call so that a frozen clock is seen."""
    return time.time()


def uptime() -> float:
    """Return seconds since some moment before this machine's processes began; nobody sets it."""
    return time.monotonic()
