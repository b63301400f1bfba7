"""A receiver's own handlers, run under chaos in virtual time, with faults on purpose, and counted.

``rehearse`` is the whole of it::

    report = rehearse(receiver, events=1000, seed=7)
    assert report.passed, report.findings
"""

from __future__ import annotations

from .rehearse import Mode, rehearse
from .report import Breach, Finding, Report

__all__ = ["Breach", "Finding", "Mode", "Report", "rehearse"]
