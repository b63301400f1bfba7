"""The receiver: the public face that wires all packages, and what it has missed."""

from __future__ import annotations

from .pairing import Found, pair_by_time
from .receiver import Receiver
from .reconcile import Gap, Reconciliation, Verdict, Why

__all__ = ["Found", "Gap", "Receiver", "Reconciliation", "Verdict", "Why", "pair_by_time"]
