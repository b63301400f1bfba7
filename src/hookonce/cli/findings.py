"""Prints the rules that a receiver broke, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence

from hookonce.simulation import Violation

from .output import Output

# How many findings are printed with their history, and how many are printed at all. JSON contains
# all findings.
_WITH_STORY, _LISTED = 3, 20


def print_findings(
    findings: Sequence[Violation], output: Output, *, as_json: bool, with_stories: bool
) -> None:
    """Print all findings as JSON, or the first findings as text.

    Args:
        with_stories: whether to print the history of the first few findings.
    """
    for number, finding in enumerate(findings):
        record = {
            "breach": finding.breach,
            "id": finding.event_id,
            "type": finding.event_type,
            "handler": finding.handler,
            "story": finding.story,
        }
        story: Sequence[str] = finding.story
        if finding.event_id:
            by = f" by {finding.handler}" if finding.handler else ""
            what = f"{finding.event_type} {finding.event_id}{by}"
        else:  # a check of the effects has failed, and its error is the story
            what, *story = story
        line = f"{finding.breach}: {what}"
        if with_stories and number < _WITH_STORY:
            line = "\n  ".join((line, *story))
        if as_json or number < _LISTED:
            output.record(record, line, "red")
    if len(findings) > _LISTED:
        output.say(f"and {len(findings) - _LISTED} more", "red")
