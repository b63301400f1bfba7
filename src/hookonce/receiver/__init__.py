"""The receiver: the public face that wires the parts, and what it has missed."""

from __future__ import annotations

from .receiver import Receiver
from .reconcile import Gap, Reconciliation, Verdict, Why

__all__ = ["Gap", "Receiver", "Reconciliation", "Verdict", "Why"]
