"""What can be said of a receiver without asking anybody: its secrets, retention and handlers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from difflib import get_close_matches

from ...delivery.handler import TEST_TYPE, Handler
from ...delivery.limits import Limits
from ...inbox.settings import Inbox
from ...sender import TOLERANCE_SECONDS
from ...stores.contract import DEFAULT_RETENTION, check_retention
from ...verification.secrets import USUAL_KEY_BYTES, decode_secret
from .findings import Finding, fault, fine, note, warning

_ROTATING = 2

_LEAST_TOLERANCE_SECONDS = 10.0  # the sender waits so long for an answer
_MOST_TOLERANCE_SECONDS = 3600.0

GRACE_SECONDS = 30.0
"""What Kubernetes gives a container to end, unless it is told otherwise."""

_LEAST_DEPTH = 1000

_LIKENESS = 0.6
"""How like two type strings must be, so that one may be the other misspelt."""


def secret_findings(secrets: Sequence[str]) -> list[Finding]:
    """Judge the secrets in force, none of which is shown; every one of them can be decoded."""
    keys = [decode_secret(secret) for secret in secrets]
    findings = []
    for number, key in enumerate(keys, start=1):
        if key in keys[: number - 1]:
            findings.append(
                warning(
                    "secrets",
                    f"secret {number} is the same as secret {keys.index(key) + 1}",
                    "take one of the two out; if a rotation is under way, copy the new secret in"
                    " its place",
                )
            )
        elif len(key) < USUAL_KEY_BYTES:
            findings.append(
                warning(
                    "secrets",
                    f"secret {number} has a key of {len(key)} bytes, and a secret of the sender has"
                    f" {USUAL_KEY_BYTES} or more: it may be cut off",
                    "copy the whole secret anew, or let the sender rotate it",
                )
            )
    if findings:
        return findings
    if len(keys) > _ROTATING:
        return [
            note(
                "secrets",
                f"{len(keys)} secrets are in force, and a rotation needs two",
                "take out those that the sender does not sign with any more",
            )
        ]
    rotating = "; a rotation is under way" if len(keys) == _ROTATING else ""
    return [fine("secrets", f"{len(keys)} in force, readable and well-formed{rotating}")]


def retention_finding(seconds: float | None) -> Finding:
    """Judge how long a handled event is remembered; None where the store does not say."""
    if seconds is None:
        return note(
            "retention",
            "the store does not say how long it remembers handled events",
            "make sure that it is 15 days, and 26 hours at the very least",
        )
    retention = timedelta(seconds=seconds)
    try:
        check_retention(retention)
    except ValueError as error:
        return fault("retention", str(error), "give the store retention=timedelta(days=15)")
    if retention < DEFAULT_RETENTION:
        return note(
            "retention",
            f"handled events are remembered for {_days(retention)}: longer than the sender retries,"
            " and shorter than the 15 days that cover its delivery log",
            "leave retention at its 15 days, so that what somebody brings again by that log is"
            " known",
        )
    return fine("retention", f"handled events are remembered for {_days(retention)}")


def tolerance_finding(seconds: float) -> Finding:
    """Judge how far a timestamp may lie from the clock."""
    found = f"timestamps may lie {seconds:g} s from the clock"
    fix = f"leave tolerance at the {TOLERANCE_SECONDS:g} s that the sender documents"
    if seconds < _LEAST_TOLERANCE_SECONDS:
        return fault("tolerance", f"{found}: a delivery that is late by more is refused", fix)
    if seconds > _MOST_TOLERANCE_SECONDS:
        return warning(
            "tolerance", f"{found}: whoever has recorded a delivery can bring it again so long", fix
        )
    return fine("tolerance", found)


def limit_findings(limits: Limits) -> list[Finding]:
    """Judge leases and the end of the process."""
    findings = []
    renewal = limits.lease_seconds / 3
    if renewal < limits.store_seconds:
        findings.append(
            warning(
                "limits.lease",
                f"a lease of {limits.lease_seconds:g} s is renewed after {renewal:g} s, and the"
                f" store may take {limits.store_seconds:g} s for that: a handler that takes longer"
                " than the lease can lose its event to another process, and run twice",
                f"give Limits(lease_seconds={3 * limits.store_seconds:g}) or more",
            )
        )
    if limits.drain_seconds > GRACE_SECONDS:
        findings.append(
            warning(
                "limits.drain",
                f"a shutdown waits {limits.drain_seconds:g} s for running handlers, and Kubernetes"
                f" kills after {GRACE_SECONDS:g} s, docker stop after 10 s",
                "make drain_seconds shorter, or the grace period longer"
                " (terminationGracePeriodSeconds, docker stop --time)",
            )
        )
    return findings or [fine("limits", "leases outlast a slow store, and the end its grace period")]


def inbox_limit_findings(inbox: Inbox, limits: Limits) -> list[Finding]:
    """Judge how much may wait in an inbox."""
    fix = "make it larger, or leave it out: the defaults take a day of a busy endpoint"
    findings = []
    if inbox.max_bytes < limits.body_bytes:
        findings.append(
            fault(
                "inbox.limits",
                f"max_bytes is {inbox.max_bytes}, and a single body may have {limits.body_bytes}:"
                " such a delivery is answered 503 each time, and lost after the ninth",
                fix,
            )
        )
    if inbox.max_depth < _LEAST_DEPTH:
        findings.append(
            warning(
                "inbox.limits",
                f"the inbox is full with {inbox.max_depth} events: a short rush is answered 503",
                fix,
            )
        )
    return findings or [fine("inbox.limits", "there is room for a rush")]


def handler_findings(handlers: Sequence[Handler], known: Collection[str]) -> list[Finding]:
    """Judge which events are handled.

    Args:
        handlers: every handler of the receiver.
        known: every type that has an event class here.

    """
    if not handlers:
        return [
            fault(
                "handlers",
                "none is registered: every event is answered 200 and ignored",
                "register one with @receiver.on(…), and import the module that does before the"
                " receiver is served",
            )
        ]
    business = [name for name in known if name != TEST_TYPE]
    handled = {name for name in business if _is_handled(name, handlers)}
    if not handled:
        return [
            fault(
                "handlers",
                f"{len(handlers)} registered, and none for any known event type"
                + (" but the test event" if _is_handled(TEST_TYPE, handlers) else ""),
                "register handlers for the types that the endpoint is subscribed to",
            )
        ]
    ignored = [name for name in business if name not in handled]
    if ignored:
        return [
            note(
                "handlers",
                f"nobody handles {', '.join(ignored)}: such events are answered 200 and ignored",
                "take these types out of the endpoint's subscription, or register a handler",
            )
        ]
    return [fine("handlers", f"{len(handlers)}, for every known event type")]


def type_findings(wanted: Collection[str], known: Collection[str]) -> list[Finding]:
    """Judge type strings and patterns that handlers were registered for and no known type meets.

    Args:
        wanted: these strings.
        known: every type that has an event class here.

    """
    findings = []
    meant = [*known, *_patterns_of(known)]
    for text in sorted(wanted):
        likely = get_close_matches(text.lower(), meant, n=1, cutoff=_LIKENESS)
        if likely:
            findings.append(
                warning(
                    "event types",
                    f"{text!r} matches no event type known here, so nothing comes of it",
                    f"write {likely[0]!r}, if that is what is meant",
                )
            )
        else:
            findings.append(
                note(
                    "event types",
                    f"{text!r} matches no event type known here",
                    "compare it with the sender's documentation; for a type that is newer than this"
                    " version, give it an event class of its own",
                )
            )
    return findings or [fine("event types", "handlers name known types alone")]


def _days(retention: timedelta) -> str:
    return f"{retention / timedelta(days=1):.3g} days"


def _is_handled(event_type: str, handlers: Sequence[Handler]) -> bool:
    return any(handler.wants(event_type, known=True) for handler in handlers)


def _patterns_of(known: Collection[str]) -> set[str]:
    """Return the patterns that somebody may have meant: each type's beginning, and a star."""
    patterns = set()
    for name in known:
        segments = name.split(".")
        patterns |= {".".join([*segments[:end], "*"]) for end in range(1, len(segments))}
    return patterns
