"""Checks of the receiver's settings: secrets, retention, tolerance, limits and its clock."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from ...delivery.limits import Limits
from ...inbox.settings import Inbox
from ...senders import Rules, Sender
from ...senders.rules import retention_fault
from ...stores.protocols import DEFAULT_RETENTION
from ...verification.secrets import USUAL_KEY_BYTES, verifying_key
from .findings import Finding, fault, fine, note, warning

_ROTATING = 2
_DAY = 86_400.0

_MOST_TOLERANCE_SECONDS = 3600.0

GRACE_SECONDS = 30.0
"""The default time after which Kubernetes kills a container that does not stop."""

_LEAST_DEPTH = 1000

# Report a clock error above this share of the tolerance: NTP keeps clocks far more exact.
_SMALL_PART = 0.1
# Ignore a difference up to this limit: a Date header gives whole seconds, and its transport takes
# time.
_LEAST_SKEW_SECONDS = 2.0


def secret_findings(secrets: Sequence[str]) -> list[Finding]:
    """Check the current secrets without showing them.

    Args:
        secrets: the secrets; each of them can be decoded.
    """
    keys = [verifying_key(secret) for secret in secrets]
    findings = []
    for number, key in enumerate(keys, start=1):
        if key in keys[: number - 1]:
            findings.append(
                warning(
                    "secrets",
                    f"secret {number} is the same as secret {keys.index(key) + 1}",
                    "remove one of the two; during a rotation, put the new secret in its place",
                )
            )
        elif len(key.raw) < USUAL_KEY_BYTES:
            findings.append(
                warning(
                    "secrets",
                    f"secret {number} has a key of {len(key.raw)} bytes, but the sender's secrets"
                    f" have {USUAL_KEY_BYTES} or more: it may be cut off",
                    "copy the whole secret again, or rotate it at the sender",
                )
            )
    if findings:
        return findings
    if len(keys) > _ROTATING:
        return [
            note(
                "secrets",
                f"{len(keys)} secrets are in force, but a rotation needs only two",
                "remove the secrets that the sender no longer signs with",
            )
        ]
    rotating = "; a rotation is in progress" if len(keys) == _ROTATING else ""
    return [fine("secrets", f"{len(keys)} in force, readable and well-formed{rotating}")]


def retention_finding(seconds: float | None, rules: Rules) -> Finding:
    """Check how long the store remembers handled events.

    Args:
        seconds: how long; None if that is unknown.
        rules: the rules by which the sender delivers.
    """
    wanted = max(
        DEFAULT_RETENTION.total_seconds(), rules.span_seconds, (rules.log_seconds or 0.0) + _DAY
    )
    if seconds is None:
        return note(
            "retention",
            "the store does not say how long it remembers handled events",
            f"make sure that it remembers them for {_days(wanted)}, and never less than"
            f" {rules.span_seconds / 3600:g} hours",
        )
    if (found := retention_fault(rules, seconds)) is not None:
        return fault(
            "retention", found, f"give the store retention=timedelta(days={ceil(wanted / _DAY)})"
        )
    days = _days(seconds)
    if rules.log_seconds is not None and seconds < rules.log_seconds + _DAY:
        covering = _days(rules.log_seconds + _DAY)
        return note(
            "retention",
            f"handled events are remembered for {days}: longer than the sender retries, but shorter"
            f" than the {covering} that cover its delivery log",
            f"remember them for {covering}, so that an event replayed from that log is recognised",
        )
    return fine("retention", f"handled events are remembered for {days}")


def _days(seconds: float) -> str:
    return f"{seconds / _DAY:.3g} days"


def tolerance_finding(seconds: float, sender: Sender) -> Finding:
    """Check how far a signed timestamp may differ from the clock.

    Args:
        seconds: the receiver's tolerance.
        sender: the sender. A delivery may arrive as late as the sender waits for its answer.
    """
    found = f"timestamps may differ from the clock by {seconds:g} s"
    fix = f"keep tolerance at the {sender.tolerance_seconds:g} s of the sender {sender.name!r}"
    if seconds < sender.rules.patience_seconds:
        return fault("tolerance", f"{found}: a delivery that is later than this is refused", fix)
    if seconds > _MOST_TOLERANCE_SECONDS:
        return warning(
            "tolerance", f"{found}: a recorded delivery can be replayed for this long", fix
        )
    return fine("tolerance", found)


def clock_finding(check: str, whose: str, skew: float, tolerance: float) -> Finding:
    """Compare another clock with the clock of this machine.

    Args:
        check: the name of the finding.
        whose: the clock, as text.
        skew: how many seconds it is ahead of this machine's clock; negative if it is behind.
        tolerance: how far a signed timestamp may differ from the receiver's clock.
    """
    off = abs(skew)
    if off <= max(_LEAST_SKEW_SECONDS, _SMALL_PART * tolerance):
        return fine(check, f"{whose} and this machine's agree")
    direction = "ahead of" if skew > 0 else "behind"
    found = f"{whose} is {off:.0f} s {direction} this machine's"
    fix = "synchronise both clocks with NTP (timedatectl, chronyc tracking)"
    if off < tolerance:
        return warning(check, f"{found}; at {tolerance:g} s every delivery is refused", fix)
    return fault(check, f"{found}, and the tolerance is {tolerance:g} s", fix)


def limit_findings(limits: Limits) -> list[Finding]:
    """Check the lease and the shutdown limit."""
    findings = []
    renewal = limits.lease_seconds / 3
    if renewal < limits.store_seconds:
        findings.append(
            warning(
                "limits.lease",
                f"a lease of {limits.lease_seconds:g} s is renewed after {renewal:g} s, but the"
                f" store may take {limits.store_seconds:g} s to renew it: a long handler can lose"
                " its event to another process and run twice",
                f"set Limits(lease_seconds={3 * limits.store_seconds:g}) or more",
            )
        )
    if limits.drain_seconds > GRACE_SECONDS:
        findings.append(
            warning(
                "limits.drain",
                f"a shutdown waits {limits.drain_seconds:g} s for running handlers, but Kubernetes"
                f" kills the process after {GRACE_SECONDS:g} s, and docker stop after 10 s",
                "make drain_seconds shorter, or the grace period longer"
                " (terminationGracePeriodSeconds, docker stop --time)",
            )
        )
    return findings or [
        fine(
            "limits",
            "the lease is longer than the store's time limit; a shutdown fits the grace period",
        )
    ]


def inbox_limit_findings(inbox: Inbox, limits: Limits) -> list[Finding]:
    """Check how many events and bytes may wait in an inbox."""
    fix = "make it larger, or leave it out: the defaults hold a day of a busy endpoint"
    findings = []
    if inbox.max_bytes < limits.body_bytes:
        findings.append(
            fault(
                "inbox.limits",
                f"max_bytes is {inbox.max_bytes}, but one body may have {limits.body_bytes} bytes:"
                " such a delivery is answered 503 at every attempt, and then lost",
                fix,
            )
        )
    if inbox.max_depth < _LEAST_DEPTH:
        findings.append(
            warning(
                "inbox.limits",
                f"the inbox is full at {inbox.max_depth} events: a short burst is answered 503",
                fix,
            )
        )
    return findings or [fine("inbox.limits", "the inbox can hold a burst")]
