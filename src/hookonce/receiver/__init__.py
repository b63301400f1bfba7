"""The receiver: the public class, its wiring, and the search for missed events."""

from __future__ import annotations

from ..http.health import Readiness
from ..inbox.dead_letters import DeadLetters
from ..inbox.handled import HandledEvents
from ..inbox.replaying import Replayed
from ..inbox.waiting import WaitingEvents
from .expecting import Expectation, Poll
from .pairing import Found, pair_by_time
from .receiver import Receiver
from .reconcile import Gap, GapHook, Reconciliation, Verdict, Why
from .settings import Changes
from .trials import Kept, Trial

__all__ = [
    "Changes",
    "DeadLetters",
    "Expectation",
    "Found",
    "Gap",
    "GapHook",
    "HandledEvents",
    "Kept",
    "Poll",
    "Readiness",
    "Receiver",
    "Reconciliation",
    "Replayed",
    "Trial",
    "Verdict",
    "WaitingEvents",
    "Why",
    "pair_by_time",
]
