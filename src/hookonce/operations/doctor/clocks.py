"""How far a clock may be off before deliveries suffer."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from .findings import Finding, fault, fine, warning

# A tenth of the tolerance is no fault yet, and no clock that somebody keeps right is as far off.
_SMALL_PART = 0.1
# A Date header has whole seconds, and the answer was on its way.
_LEAST_SECONDS = 2.0


def clock_finding(check: str, whose: str, skew: float, tolerance: float) -> Finding:
    """Judge a clock by how many seconds it is ahead of this machine's.

    Args:
        check: the name of the finding.
        whose: what clock it is, as text.
        skew: seconds; negative if it is behind.
        tolerance: how far a signed timestamp may lie from the receiver's clock.

    """
    off = abs(skew)
    direction = "ahead of" if skew > 0 else "behind"
    found = f"{whose} is {off:.0f} s {direction} this machine's"
    if off <= max(_LEAST_SECONDS, _SMALL_PART * tolerance):
        return fine(check, f"{whose} and this machine's agree")
    fix = "keep both clocks right with NTP (timedatectl, chronyc tracking)"
    if off < tolerance:
        return warning(check, f"{found}; at {tolerance:g} s every delivery is refused", fix)
    return fault(check, f"{found}, and the tolerance is {tolerance:g} s", fix)


def date_seconds(header: str | None) -> float | None:
    """Return the Unix time in a Date header; None where it holds none."""
    try:
        parsed = parsedate_to_datetime(header or "")
    except ValueError:
        return None
    aware: datetime = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return aware.timestamp()
