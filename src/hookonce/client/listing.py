"""Collections that page by themselves (interface, Endpoints: Pagination)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from ..resources import Page, Resource
from .connection import Connection, Operation
from .errors import UnreadableAnswerError

R = TypeVar("R", bound=Resource)

LARGEST_PAGE = 100
"""Limits: Page size. A page costs one request, whatever its size."""

_MOST_EMPTY_PAGES = 10
"""In a row. A cursor is the id of a page's last row, so that even one is odd."""


def texts(name: str, values: Iterable[str]) -> list[str]:
    """Return a list of texts, none of them empty.

    Raises:
        TypeError: a single text, whose letters would be taken for the list, or no texts.
        ValueError: one of them is empty, as a variable that is not set: it would mean all.

    """
    listed = [values] if isinstance(values, str | bytes) else [*values]
    if isinstance(values, str | bytes) or not all(isinstance(one, str) for one in listed):
        raise TypeError(f"{name} takes a list of texts: {name}=['…'], not {type(values).__name__}")
    if not all(listed):
        raise ValueError(f"{name} has an empty text in it")
    return listed


class Listing(Generic[R]):
    """A collection: ``async for`` gives each item, and asks for a page when it needs one.

    Nothing is asked before. Iterating again begins anew.
    """

    def __init__(
        self,
        connection: Connection,
        page: type[Page[R]],
        path: str,
        query: Mapping[str, str | int | None],
    ) -> None:
        self._connection = connection
        self._page = page
        self._first = Operation("GET", path, query, is_repeatable=True)

    async def __aiter__(self) -> AsyncIterator[R]:
        """Yield each item."""
        async for page in self.pages():
            for item in page.data:
                yield item

    async def pages(self, cursor: str | None = None) -> AsyncIterator[Page[R]]:
        """Yield whole pages.

        Args:
            cursor: the ``next_cursor`` of a page to go on after; from the beginning by default.

        """
        seen = {cursor}
        empty = 0
        while True:
            query = {**(self._first.query or {}), "cursor": cursor}
            page = await self._connection.ask(replace(self._first, query=query), self._page)
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return
            empty = 0 if page.data else empty + 1
            fault = None
            if cursor in seen:
                fault = "nextCursor leads back to an earlier page"
            elif empty == _MOST_EMPTY_PAGES:
                fault = f"{empty} pages without an item, one after the other"
            if fault is not None:
                raise UnreadableAnswerError("GET", self._first.path, 200, (fault,))
            seen.add(cursor)
