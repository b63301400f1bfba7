"""What is wrong with a receiver as it is configured, mounted and served, and what to do about it.

``examine`` looks at one in this process; ``examine_site`` sends up to four requests to where it is
served::

    for subject in subjects_in(app):
        for finding in await examine(subject):
            print(finding.level, finding.check, finding.found, finding.fix)

A name is imported when it is first used: every command looks for receivers in an application, and
few examine them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .examination import examine
    from .findings import Finding, Level
    from .modules import endpoint_findings, router_findings
    from .search import subjects_in
    from .site import examine_site
    from .subject import Subject

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

# The modules of the names above, as a type checker sees them there.
_MODULE_OF = {
    "Finding": "findings",
    "Level": "findings",
    "Subject": "subject",
    "endpoint_findings": "modules",
    "examine": "examination",
    "examine_site": "site",
    "router_findings": "modules",
    "subjects_in": "search",
}


if not TYPE_CHECKING:  # or a checker would find every name, misspelt ones too

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
