"""Shared by the tests of the doctor: find findings by the name of their check."""

from collections.abc import Iterable

from hookonce.operations.doctor import Finding, Level

__all__ = ["above_note", "only"]


def only(findings: Iterable[Finding], check: str) -> Finding:
    """Return the one finding of a check; it has a fix only if something is wrong."""
    [found] = [finding for finding in findings if finding.check == check]
    assert bool(found.fix) is (found.level is not Level.OK), found
    return found


def above_note(findings: Iterable[Finding]) -> list[Finding]:
    """Return the warnings and faults."""
    return [finding for finding in findings if finding.level in {Level.WARNING, Level.FAULT}]
