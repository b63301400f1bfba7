"""Deliveries of handled events: a completion stores one, and deletes old ones beyond the limits.

Several rows of ``handled_sizes`` count the bytes of an endpoint, and each process changes one of
them: with a single row, the commits of all processes would wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import randrange
from typing import NamedTuple

from ..handled import Keeping
from ..values import Delivery
from .connection import Statement
from .records import dump_names
from .wire import blobs, documents, dump_time, floats, ints, texts

_SLOTS = 64
# Call a function: PostgreSQL plans its statements once for each connection. When the store sent the
# statements themselves, planning them for each batch took as long as running them.
_KEEP = """
SELECT {schema}.keep({slot}, $1, $2::bytea[], $3::text[], $4::text[], $5::text[], $6::float8[],
    $7::text[], $8::float8[], $9::bytea[], $10::text[], $11::int8[])
"""


class Kept(NamedTuple):
    """A delivery to keep.

    Attributes:
        digest: the key of its event in the database.
        delivery: the delivery.
        finished: all handlers that have finished.
        keeping: how long and how much its endpoint keeps.
    """

    digest: bytes
    delivery: Delivery
    finished: frozenset[str]
    keeping: Keeping


class HandledTable:
    """Writes the deliveries of handled events in one schema."""

    def __init__(self, schema: str) -> None:
        slot = randrange(_SLOTS)  # noqa: S311 - a random row for each process, not a secret
        self._keep = _KEEP.format(schema=schema, slot=slot).encode()

    def keep(self, given: Iterable[Kept], now: float | None) -> list[Statement]:
        """Return the statements that store deliveries, and delete old ones to keep the limits."""
        added = [one for one in given if _fits(one)]
        if not added:
            return []
        limits = {one.delivery.endpoint: one.keeping.max_bytes for one in added}
        values = [
            dump_time(now),
            blobs([one.digest for one in added]),
            *_columns(added),
            texts(limits),
            ints(limits.values()),
        ]
        return [(self._keep, values)]


def _fits(one: Kept) -> bool:
    most = one.keeping.max_bytes
    return most is None or len(one.delivery.body) <= most


def _columns(added: Sequence[Kept]) -> list[bytes]:
    """Return the columns of the deliveries as arrays: the parameters 3 to 9 of ``_KEEP``."""
    deliveries = [one.delivery for one in added]
    return [
        texts(one.endpoint for one in deliveries),
        texts(one.event_id for one in deliveries),
        texts(one.event_type for one in deliveries),
        floats(one.received_unix for one in deliveries),
        documents(dump_names(one.finished) for one in added),
        floats(one.keeping.seconds for one in added),
        blobs([one.body for one in deliveries]),
    ]
