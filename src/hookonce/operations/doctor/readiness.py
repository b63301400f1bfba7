"""Repeats what a running server's ``/readyz`` says about itself."""

from __future__ import annotations

from ...watching.refusals import FEW_REFUSED, MANY_REFUSED, refusals_text
from .findings import Finding, fault, fine, note, warning

_CHECK = "url.readyz"
_FIX = "look it up in `hookonce guide operations`"


def readiness_findings(url: str, said: object) -> list[Finding]:
    """Return a fault for each problem of ``/readyz``, and a warning for each warning.

    Args:
        url: the URL of ``/readyz``.
        said: its answer, read as JSON; None if there was no such answer.
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
    findings = [fault(_CHECK, str(text), _FIX) for text in said["problems"]]
    findings += [warning(_CHECK, str(text), _FIX) for text in said["warnings"]]
    refused = said.get("refused")
    if refused is not None and FEW_REFUSED <= refused["count"] < MANY_REFUSED:
        text = refusals_text(refused["count"], refused["since"], refused["reason"])
        findings.append(warning(_CHECK, text, _FIX))
    return findings or [fine(_CHECK, "the server is ready, and warns of nothing")]
