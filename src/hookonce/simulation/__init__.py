"""Simulations: a receiver's own handlers in virtual time, under injected faults.

``simulate`` runs a simulation and returns a report::

    report = simulate(receiver, events=1000, seed=7)
    assert report.passed, report.findings
"""

from __future__ import annotations

from .faults import Fault, HandlerFault
from .reduction import reduced
from .report import Breach, SimulationReport, Violation
from .scenario import PlannedEvent, PlannedFault, Restart, Scenario
from .simulation import Check, Mode, Source, replay, simulate
from .timeline import timeline
from .written_test import written_test

__all__ = [
    "Breach",
    "Check",
    "Fault",
    "HandlerFault",
    "Mode",
    "PlannedEvent",
    "PlannedFault",
    "Restart",
    "Scenario",
    "SimulationReport",
    "Source",
    "Violation",
    "reduced",
    "replay",
    "simulate",
    "timeline",
    "written_test",
]
