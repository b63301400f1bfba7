"""Pages of collections (interface, Endpoints: Pagination)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Protocol, TypeVar

from ..resources import Page, Resource
from .moments import moment
from .refusals import Issue, invalid

_DEFAULT_SIZE = 25
_MOST_SIZE = 100
# int() also accepts digits of other scripts, and raises for thousands of digits.
_WHOLE_NUMBER = re.compile("[0-9]{1,18}")


class _Row(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def created_at(self) -> float: ...


R = TypeVar("R", bound=_Row)
ResourceT = TypeVar("ResourceT", bound=Resource)


def page_of(
    rows: Sequence[R],
    to_resource: Callable[[R], ResourceT],
    *,
    prefix: str,
    limit: str | None,
    cursor: str | None,
    removed: Mapping[str, int] = MappingProxyType({}),
) -> Page[ResourceT]:
    """Return the page of ``rows`` that a query asks for.

    Args:
        rows: all rows, newest first.
        prefix: the prefix of the collection's ids.
        removed: the numbers of rows that left the list, by id.

    Raises:
        RefusedError: ``validation.failed``.
    """
    size = _DEFAULT_SIZE if limit is None else _size(limit)
    if cursor is not None:
        rows = _after(rows, cursor, prefix, removed)
    page = rows[:size]
    return Page(
        data=[to_resource(row) for row in page],
        next_cursor=page[-1].id if len(rows) > size else None,
    )


def _size(limit: str) -> int:
    if _WHOLE_NUMBER.fullmatch(limit) is None or (size := int(limit)) < 1:
        raise invalid([Issue("limit", f"must be an integer from 1 to {_MOST_SIZE}")])
    return min(size, _MOST_SIZE)


def _after(rows: Sequence[R], cursor: str, prefix: str, removed: Mapping[str, int]) -> Sequence[R]:
    index = next((index for index, row in enumerate(rows) if row.id == cursor), None)
    if index is not None:
        return rows[index + 1 :]
    if cursor in removed:
        return [row for row in rows if row.number < removed[cursor]]
    if re.fullmatch(f"{prefix}_[0-9A-Za-z]+", cursor):
        return []  # such as a delivery that is older than the log, like all rows after it
    try:
        before = datetime.fromisoformat(cursor)
    except ValueError as error:
        raise invalid([Issue("cursor", "must be the nextCursor of another page")]) from error
    if before.tzinfo is None:
        before = before.replace(tzinfo=UTC)
    return [row for row in rows if moment(row.created_at) < before]
