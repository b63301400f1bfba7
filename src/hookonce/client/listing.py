"""Collections that fetch their pages as needed (interface, Endpoints: Pagination)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from ..resources import Page, Resource
from .connection import Connection, Operation
from .errors import UnreadableAnswerError

R = TypeVar("R", bound=Resource)

LARGEST_PAGE = 100
"""The largest page (interface, Limits: Page size). Each page costs one request of the quota."""

_MOST_EMPTY_PAGES = 10
"""Stop after this many empty pages in a row, because the service should send none."""


def texts(name: str, values: Iterable[str]) -> list[str]:
    """Return texts as a list; TypeError for a single text.

    Raises:
        TypeError: it is a single text, which Python would split into letters, or not a list of
            texts.
        ValueError: a text is empty, perhaps because a variable is not set; an empty filter would
            select everything.
    """
    listed = [values] if isinstance(values, str | bytes) else [*values]
    if isinstance(values, str | bytes) or not all(isinstance(one, str) for one in listed):
        raise TypeError(f"{name} takes a list of texts: {name}=['…'], not {type(values).__name__}")
    if not all(listed):
        raise ValueError(f"{name} contains an empty text")
    return listed


class Listing(Generic[R]):
    """A collection: ``async for`` yields each item and requests a page when it needs one.

    Get it from the ``list`` methods of a client.

    A second iteration starts again at the first page.
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
        async for page in self.pages():
            for item in page.data:
                yield item

    async def pages(self, cursor: str | None = None) -> AsyncIterator[Page[R]]:
        """Yield whole pages.

        Args:
            cursor: the ``next_cursor`` of the previous page; by default start at the first page.
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
                fault = f"{empty} empty pages in a row"
            if fault is not None:
                raise UnreadableAnswerError("GET", self._first.path, 200, (fault,))
            seen.add(cursor)
