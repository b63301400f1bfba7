"""Pages of a collection (interface, Endpoints: Pagination)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Protocol, TypeVar

from ..resources import Page, Resource
from .moments import moment as shown_moment
from .refusals import Issue, invalid

_DEFAULT_SIZE = 25
_MOST_SIZE = 100
_WHOLE_NUMBER = re.compile("[0-9]{1,18}")  # int() takes more than that, and refuses thousands


class _Row(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def created_at(self) -> float: ...


R = TypeVar("R", bound=_Row)
ShownT = TypeVar("ShownT", bound=Resource)


def page_of(
    rows: Sequence[R],
    show: Callable[[R], ShownT],
    *,
    prefix: str,
    limit: str | None,
    cursor: str | None,
    removed: Mapping[str, int] = MappingProxyType({}),
) -> Page[ShownT]:
    """Return the page that a query asks for.

    Args:
        rows: all that there are, newest first.
        show: gives the resource of a row.
        prefix: what the ids of the collection begin with.
        limit: as it stands in the query, if it does.
        cursor: likewise.
        removed: the numbers of rows that are no longer there, by their ids.

    Raises:
        RefusedError: ``validation.failed``.

    """
    size = _DEFAULT_SIZE if limit is None else _size(limit)
    if cursor is not None:
        rows = _after(rows, cursor, prefix, removed)
    shown = rows[:size]
    return Page(
        data=[show(row) for row in shown],
        next_cursor=shown[-1].id if len(rows) > size else None,
    )


def _size(limit: str) -> int:
    if _WHOLE_NUMBER.fullmatch(limit) is None or (size := int(limit)) < 1:
        raise invalid([Issue("limit", f"must be an integer from 1 to {_MOST_SIZE}")])
    return min(size, _MOST_SIZE)


def _after(rows: Sequence[R], cursor: str, prefix: str, removed: Mapping[str, int]) -> Sequence[R]:
    place = next((place for place, row in enumerate(rows) if row.id == cursor), None)
    if place is not None:
        return rows[place + 1 :]
    if cursor in removed:
        return [row for row in rows if row.number < removed[cursor]]
    if re.fullmatch(f"{prefix}_[0-9A-Za-z]+", cursor):
        return []  # where the row has gone after its time, so have all that were older
    try:
        moment = datetime.fromisoformat(cursor)
    except ValueError as error:
        raise invalid([Issue("cursor", "must be the nextCursor of another page")]) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return [row for row in rows if shown_moment(row.created_at) < moment]
