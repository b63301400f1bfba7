"""The guide: pages of Markdown, and the list of public names that is made from the code.

A page is a file ``TOPIC.md`` in this folder, whose first line is its title. ``README.md`` is the
index for people, ``llms.txt`` the one for programs; both name every page.
"""

from __future__ import annotations

from .pages import INDEX, Hit, Page, page, pages, search, topics
from .reference import reference

__all__ = ["INDEX", "Hit", "Page", "page", "pages", "reference", "search", "topics"]
