"""Reports the problems and warnings that a running server's ``/readyz`` shows."""

from __future__ import annotations

from collections.abc import Sequence

from ...watching.refusals import FEW_REFUSED, MANY_REFUSED
from .findings import Finding, Level, fault, fine, note

_CHECK = "url.readyz"
_NO_FIX = "correct what it names: `hookonce guide troubleshooting`"


def readiness_findings(url: str, said: object, known: Sequence[Finding] = ()) -> list[Finding]:
    """Return a fault for each problem of ``/readyz``, and a warning for each warning.

    Args:
        url: the URL of ``/readyz``.
        said: the answer, read as JSON; None if the server gave no such answer.
        known: the findings of other checks, which are not repeated.
    """
    if not isinstance(said, dict) or not isinstance(said.get("ready"), bool):
        found = f"{url} does not say whether the server is ready, so its warnings are unknown here"
        fix = "name the URL at which this machine reaches /readyz: --health-url"
        return [note(_CHECK, found, fix)]
    if "warnings" not in said:
        fix = "set $HOOKONCE_HEALTH_TOKEN to the server's health token"
        if said["ready"]:
            return [note(_CHECK, "the server is ready, but does not show its warnings", fix)]
        return [fault(_CHECK, "the server is not ready, and does not show why", fix)]
    findings = [_finding(Level.FAULT, text) for text in said["problems"]]
    findings += [_finding(Level.WARNING, text) for text in said["warnings"]]
    refused = said.get("refused")
    if refused is not None and FEW_REFUSED <= refused["count"] < MANY_REFUSED:
        findings.append(_finding(Level.WARNING, refused["warning"]))
    if not findings:
        return [fine(_CHECK, "the server is ready, and warns of nothing")]
    shown = {(one.found, one.fix) for one in known}
    return [one for one in findings if (one.found, one.fix) not in shown]


def _finding(level: Level, text: str) -> Finding:
    """Return the finding for a text of ``/readyz``: "problem; fix", or only the problem."""
    found, _, fix = text.rpartition("; ")
    return Finding(_CHECK, level, found or text, fix if found else _NO_FIX)
