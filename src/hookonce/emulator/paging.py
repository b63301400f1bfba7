"""Pages of a delivery log (interface, Endpoints: Pagination)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from ..resources import Page, WebhookDelivery
from .records import DeliveryRow
from .refusals import Issue, invalid

__all__ = ["page_of"]

_DEFAULT_SIZE = 25
_MOST_SIZE = 100
_WHOLE_NUMBER = re.compile("[0-9]{1,18}")  # int() takes more than that, and refuses thousands
_DELIVERY_ID = re.compile("dlv_[0-9a-f]+")


def page_of(
    rows: Sequence[DeliveryRow], *, limit: str | None, cursor: str | None
) -> Page[WebhookDelivery]:
    """Return the page that a query asks for.

    Args:
        rows: the whole log, newest first.
        limit: as it stands in the query, if it does.
        cursor: likewise.

    Raises:
        RefusedError: ``validation.failed``.

    """
    size = _DEFAULT_SIZE if limit is None else _size(limit)
    if cursor is not None:
        rows = _after(rows, cursor)
    shown = rows[:size]
    return Page(
        data=[row.shown() for row in shown],
        next_cursor=shown[-1].id if len(rows) > size else None,
    )


def _size(limit: str) -> int:
    if _WHOLE_NUMBER.fullmatch(limit) is None or (size := int(limit)) < 1:
        raise invalid([Issue("limit", f"must be an integer from 1 to {_MOST_SIZE}")])
    return min(size, _MOST_SIZE)


def _after(rows: Sequence[DeliveryRow], cursor: str) -> Sequence[DeliveryRow]:
    if _DELIVERY_ID.fullmatch(cursor):
        place = next((place for place, row in enumerate(rows) if row.id == cursor), len(rows))
        # Where the row has gone after 14 days, so have all that were older.
        return rows[place + 1 :]
    try:
        moment = datetime.fromisoformat(cursor)
    except ValueError as error:
        raise invalid([Issue("cursor", "must be the nextCursor of another page")]) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return [row for row in rows if datetime.fromtimestamp(row.created_at, UTC) < moment]
