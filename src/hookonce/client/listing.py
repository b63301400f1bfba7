"""Collections that page by themselves (interface, Endpoints: Pagination)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from ..resources import Page, Resource
from .connection import Connection, Operation
from .errors import UnreadableAnswerError

R = TypeVar("R", bound=Resource)

LARGEST_PAGE = 100
"""Limits: Page size. A page costs one request, whatever its size."""


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
        while True:
            query = {**(self._first.query or {}), "cursor": cursor}
            page = await self._connection.ask(replace(self._first, query=query), self._page)
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return
            if cursor in seen:
                raise UnreadableAnswerError(
                    "GET", self._first.path, 200, ("nextCursor leads back to an earlier page",)
                )
            seen.add(cursor)
