"""Simulations: a receiver's own handlers in virtual time, under injected faults.

``simulate`` runs a simulation and returns a report::

    report = simulate(receiver, events=1000, seed=7)
    assert report.passed, report.findings
"""

from __future__ import annotations

from .report import Breach, SimulationReport, Violation
from .simulation import Mode, simulate

__all__ = ["Breach", "Mode", "SimulationReport", "Violation", "simulate"]
