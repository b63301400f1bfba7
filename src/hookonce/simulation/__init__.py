"""A receiver's own handlers, run under chaos in virtual time, with faults on purpose, and counted.

``simulate`` is the whole of it::

    report = simulate(receiver, events=1000, seed=7)
    assert report.passed, report.findings
"""

from __future__ import annotations

from .report import Breach, Finding, Report
from .simulation import Mode, simulate

__all__ = ["Breach", "Finding", "Mode", "Report", "simulate"]
