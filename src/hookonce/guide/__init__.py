"""The guide: pages of Markdown, and the list of public names, generated from the code.

A page is a file ``TOPIC.md`` in this folder; its first line is the title. ``README.md`` is the
index for people, ``llms.txt`` the index for programs. Both name every page.
"""

from __future__ import annotations

from .pages import INDEX, GuidePage, Hit, page, pages, search, topics
from .reference import reference

__all__ = ["INDEX", "GuidePage", "Hit", "page", "pages", "reference", "search", "topics"]
