"""What a check has found: one frozen value each, with its fix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """Deliveries are taken, and something will go wrong one day."""
    FAULT = "fault"
    """Events are lost, handled twice, or refused."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: what was checked, for example ``store.settings``; a program can branch on it.
        level: how much it matters.
        found: what is so, or what is wrong.
        fix: what to do, in one sentence; empty where nothing is wrong.

    """

    check: str
    level: Level
    found: str
    fix: str = ""


def fine(check: str, found: str) -> Finding:
    """Return that nothing is wrong."""
    return Finding(check, Level.OK, found)


def note(check: str, found: str, fix: str) -> Finding:
    """Return what is worth knowing."""
    return Finding(check, Level.NOTE, found, fix)


def warning(check: str, found: str, fix: str) -> Finding:
    """Return what will go wrong one day."""
    return Finding(check, Level.WARNING, found, fix)


def fault(check: str, found: str, fix: str) -> Finding:
    """Return what goes wrong now."""
    return Finding(check, Level.FAULT, found, fix)
