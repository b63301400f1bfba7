"""Finishes: the successes of handlers that transactions of ledgers commit in this database.

A user's transaction calls the schema's function ``finish``. The function inserts the finish and
locks the event's row ``FOR KEY SHARE``, as a foreign key would. A heartbeat may change that row at
the same time: neither waits for the other, and the transaction can commit even in REPEATABLE READ.
Every other step locks the row ``FOR UPDATE``, so it waits until the transaction has ended. A
transaction that calls ``finish`` after such a step finds another owner and fails; in REPEATABLE
READ, it fails with a serialization failure.

The record of an event and its finishes together say what is done. Each step reads both, writes the
record that follows from them, and deletes the finishes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..finishes import Finish
from ..life import Moment, Record, complete
from ..values import Claimed
from .records import digest_of
from .wire import dump_text

_CALL = (
    "{schema}.finish(decode(CAST({{}} AS text), 'hex'), CAST({{}} AS text), CAST({{}} AS text),"
    " CAST(CAST({{}} AS text) AS text[]))"
)

FINISHES = """
(SELECT json_agg(json_build_array(f.handler, f.others)) FROM {schema}.finishes AS f
 WHERE f.key = i.key)
"""
"""The finishes of the event ``i``."""

IS_OPEN = """
NOT EXISTS (
    SELECT FROM {schema}.finishes AS f WHERE f.key = {0}.key AND f.others <@ ARRAY(
        SELECT other.handler FROM {schema}.finishes AS other WHERE other.key = f.key
    )
)
"""
"""The condition that an event is not completed by its finishes."""


def finish_of(schema: str, claim: Claimed, handler: str, others: Iterable[str]) -> Finish:
    """Return the SQL that calls the schema's function ``finish``; see ``FinishingStore.finish``."""
    names = json.dumps(sorted(others), ensure_ascii=False)[1:-1]  # no \\u: names are printable
    key, token = digest_of(claim.key).hex(), dump_text(claim.token).decode()
    return Finish(_CALL.format(schema=schema), (key, token, handler, f"{{{names}}}"))


def record_after(record: Record, finishes: str, moment: Moment) -> Record:
    """Apply the finishes of an event to its record."""
    others: dict[str, frozenset[str]] = {
        handler: frozenset(names) for handler, names in json.loads(finishes)
    }
    names = frozenset(others)
    if any(needed <= names for needed in others.values()):
        return complete(moment)
    return record._replace(finished=record.finished | names, outstanding=record.outstanding - names)
