"""A finding: the result of a check, and what to do about it."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
_OS = os.__file__


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """Deliveries arrive, but something will go wrong one day."""
    FAULT = "fault"
    """Events are lost, handled twice, or refused."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: what was checked, for example ``store.settings``; a program can branch on it.
        level: how serious it is.
        found: what is true, or what is wrong and why it matters.
        fix: what to do, in one sentence; empty if nothing is wrong.
    """

    check: str
    level: Level
    found: str
    fix: str = ""


def fine(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def note(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Level.NOTE, found, fix)


def warning(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Level.WARNING, found, fix)


def fault(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Level.FAULT, found, fix)


def error_text(error: BaseException) -> str:
    """Return the class of an exception, and the line of the application that raised it.

    The message of the exception is left out, because it may hold a password or a secret. Messages
    of this package's exceptions hold none, so they are shown.
    """
    if isinstance(error, SyntaxError):
        return f"SyntaxError in {Path(error.filename or '?').name}, line {error.lineno}"
    found = traceback.extract_tb(error.__traceback__)
    frames = [one for one in found if not one.filename.startswith("<") and one.filename != _OS]
    if not frames:
        return type(error).__name__
    file = Path(frames[-1].filename)
    # Show the name of a missing environment variable: only its value may be secret.
    if isinstance(error, KeyError) and found[-1].filename in {"<frozen os>", _OS}:
        return (
            f"the environment variable {error} is not set ({file.name}, line {frames[-1].lineno})"
        )
    if file.is_relative_to(_PACKAGE):
        return f"{type(error).__name__}: {error}"
    return f"{type(error).__name__} in {file.name}, line {frames[-1].lineno}"
