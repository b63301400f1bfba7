"""The doctor: finds faults of a receiver, and says how to correct them.

``examine`` checks a receiver in this process::

    for subject in subjects_in(app):
        for finding in await examine(subject):
            print(finding.level, finding.check, finding.found, finding.fix)

Each name is imported at its first use: every command needs ``subjects_in``, but only the doctor
needs the checks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .examination import examine
    from .findings import Finding, Level
    from .handlers import router_findings
    from .storage import endpoint_findings
    from .subjects import Subject, subjects_in

__all__ = [
    "Finding",
    "Level",
    "Subject",
    "endpoint_findings",
    "examine",
    "router_findings",
    "subjects_in",
]

_MODULE_OF = {
    "Finding": "findings",
    "Level": "findings",
    "Subject": "subjects",
    "endpoint_findings": "storage",
    "examine": "examination",
    "router_findings": "handlers",
    "subjects_in": "subjects",
}


if not TYPE_CHECKING:  # hide this from type checkers, or they accept misspelt names

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
