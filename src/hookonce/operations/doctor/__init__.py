"""The doctor: finds what is wrong with a receiver, and says how to fix it.

``examine`` checks a receiver in this process; ``examine_site`` sends a few test deliveries to the
server that runs it::

    for subject in subjects_in(app):
        for finding in await examine(subject):
            print(finding.level, finding.check, finding.found, finding.fix)

Each name is imported at its first use. Every command needs ``subjects_in``, but only
``hookonce doctor --url`` needs the emulator's transport and its optional dependencies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .examination import examine
    from .findings import Finding, Level
    from .handlers import router_findings
    from .site import examine_site
    from .storage import endpoint_findings
    from .subjects import Subject, subjects_in

__all__ = [
    "Finding",
    "Level",
    "Subject",
    "endpoint_findings",
    "examine",
    "examine_site",
    "router_findings",
    "subjects_in",
]

_MODULE_OF = {
    "Finding": "findings",
    "Level": "findings",
    "Subject": "subjects",
    "endpoint_findings": "storage",
    "examine": "examination",
    "examine_site": "site",
    "router_findings": "handlers",
    "subjects_in": "subjects",
}


if not TYPE_CHECKING:  # a type checker would accept misspelt names

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
