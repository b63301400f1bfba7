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
from .search import subjects_in
from .site import examine_site
from .subject import Subject

__all__ = ["Finding", "Level", "Subject", "examine", "examine_site", "subjects_in"]
