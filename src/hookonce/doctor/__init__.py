"""What is wrong with a receiver as it is configured, mounted and served, and what to do about it.

``examine`` looks at one in this process; ``examine_site`` sends up to three requests to where it is
served::

    for subject in subjects_in(app):
        for finding in await examine(subject):
            print(finding.level, finding.check, finding.found, finding.fix)
"""

from __future__ import annotations

from .examine import examine
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
