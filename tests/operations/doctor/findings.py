"""Helpers of the doctor's tests: find findings by the name of their check."""

from collections.abc import Iterable

from hookonce.operations.doctor import Finding, Level

__all__ = ["above_note", "only"]


def only(findings: Iterable[Finding], check: str) -> Finding:
    """Return the only finding of a check; assert that it has a fix if and only if it is not OK."""
    [found] = [finding for finding in findings if finding.check == check]
    assert bool(found.fix) is (found.level is not Level.OK), found
    return found


def above_note(findings: Iterable[Finding]) -> list[Finding]:
    """Return the warnings and faults."""
    return [finding for finding in findings if finding.level in {Level.WARNING, Level.FAULT}]
