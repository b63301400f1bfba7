"""What a ledger asks of its tables, in each dialect of SQL, and what it gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TypeAlias

from ..clock import Clock
from ..errors import LedgerError
from ..stores.contract import check_retention
from ..stores.values import KeyLock, Watermark
from .ledger import Effect
from .table import EFFECTS, LENGTHS, WATERMARKS, check_table, keys_of, watermarks_table

Parameters: TypeAlias = tuple[str | int, ...]
"""What stands for the placeholders of a statement."""

_BEGUN = 1 << 62
"""A row says that its handler has begun, and not when it ended, by a ``recorded_at`` from here on.

It is a moment that never comes, so pruning leaves such a row alone.
"""


class Statements:
    """What a ledger asks of its database.

    Args:
        dialect: the dialect of SQL.
        table: the name of the table of effects.
        placeholders: how the driver writes six parameters in turn.

    Attributes:
        begin: takes an effect; inserts its row, which says that the handler has begun, unless a row
            is there.
        savepoint: set after the row, it proves at the end that the transaction is still the same;
            None in PostgreSQL, where ``finish`` proves that too.
        release: fails if the transaction is not the savepoint's any more; None in PostgreSQL.
        finish: takes a moment and an effect; lets the row of this transaction say that the handler
            has ended, and changes no other.
        insert: takes an effect's row that says when it ended; inserts none where one is there.
        is_done: takes an effect; gives a row where there is one that says that it has ended.
        is_ours: does the same, and in PostgreSQL only if this transaction has inserted the row.
        erase: each takes a row's key, and deletes the row; of an effect, and of a watermark.
        advance: takes a watermark's row; inserts it, or updates an older one, and locks the row in
            either case. Keyed by whether to drop an event as old as the watermark.
        is_advanced: takes a watermark's row without its last value; selects a row if the watermark
            is this one. None if the number of rows that ``advance`` changes says so already.
        prune: each takes a moment in Unix seconds and a number of rows; one for each table.

    """

    __slots__ = (
        "advance",
        "begin",
        "erase",
        "finish",
        "insert",
        "is_advanced",
        "is_done",
        "is_ours",
        "prune",
        "release",
        "savepoint",
    )

    def __init__(self, dialect: str, table: str, placeholders: Sequence[str]) -> None:
        check_table(dialect, table)
        watermarks = watermarks_table(table)
        ignore, otherwise = (
            (" IGNORE", "") if dialect == "mysql" else ("", " ON CONFLICT DO NOTHING")
        )
        self.insert = f"INSERT{ignore} INTO {table} {_values(EFFECTS, placeholders)}{otherwise}"
        begun, keys, proof = str(_BEGUN), keys_of(EFFECTS), ""
        self.savepoint: str | None = "SAVEPOINT hookonce_effect"
        self.release: str | None = "RELEASE SAVEPOINT hookonce_effect"
        if dialect == "postgresql":
            self.savepoint = self.release = None
            # The row is of this connection, and no older than its transaction: age() counts from
            # the transaction's id to the row's, which is later in a savepoint.
            begun, proof = f"{begun} + pg_backend_pid()", " AND age(xmin) <= 0"
        values = _values(EFFECTS, (*placeholders[: len(keys)], begun))
        self.begin = f"INSERT{ignore} INTO {table} {values}{otherwise}"
        moment, *rest = placeholders
        self.finish = (
            f"UPDATE {table} SET recorded_at = {moment}"
            f" WHERE {_equal(keys, rest)} AND recorded_at = {begun}{proof}"
        )
        is_effect = _equal(keys, placeholders)
        self.is_done = f"SELECT 1 FROM {table} WHERE {is_effect} AND recorded_at < {_BEGUN}"
        self.is_ours = f"{self.is_done}{proof}"
        self.erase = (
            f"DELETE FROM {table} WHERE {is_effect}",
            f"DELETE FROM {watermarks} WHERE {_equal(keys_of(WATERMARKS), placeholders)}",
        )
        of_dialect = _advance_in_mysql if dialect == "mysql" else _advance
        values = _values(WATERMARKS, placeholders)
        self.advance = {
            is_dropped: of_dialect(watermarks, values, is_dropped) for is_dropped in (False, True)
        }
        self.is_advanced: str | None = None
        if dialect == "mysql":
            is_this = _equal([name for name in WATERMARKS if name != "recorded_at"], placeholders)
            self.is_advanced = f"SELECT 1 FROM {watermarks} WHERE {is_this} FOR UPDATE"
        self.prune = (
            _prune(dialect, table, keys_of(EFFECTS), placeholders),
            _prune(dialect, watermarks, keys_of(WATERMARKS), placeholders),
        )


def _advance(watermarks: str, values: str, drop_ties: bool) -> str:
    """Return the statement that changes one row, or none where the event comes too late.

    A row that it does not change is locked too; so what it has compared stays as it is.
    """
    return (
        f"INSERT INTO {watermarks} AS watermark {values}"
        f" ON CONFLICT ({', '.join(keys_of(WATERMARKS))})"
        " DO UPDATE SET created_at = excluded.created_at, event_id = excluded.event_id,"
        " recorded_at = excluded.recorded_at"
        f" WHERE {_newer('watermark.{}', 'excluded.{}', drop_ties=drop_ties)}"
    )


def _advance_in_mysql(watermarks: str, values: str, drop_ties: bool) -> str:
    """Return the statement for MySQL, where its number of rows depends on the driver's settings.

    An INSERT IGNORE, or a SELECT before it, would lock what is there for reading first; two
    transactions that had done so would wait for each other.
    """
    newer = _newer("{}", "VALUES({})", drop_ties=drop_ties)
    # In this order: what is assigned is seen by what comes after it.
    assigned = ", ".join(
        f"{name} = IF({newer}, VALUES({name}), {name})"
        for name in ("recorded_at", "event_id", "created_at")
    )
    return f"INSERT INTO {watermarks} {values} ON DUPLICATE KEY UPDATE {assigned}"


def _newer(old: str, new: str, *, drop_ties: bool) -> str:
    """Return the condition for an event to take the watermark's place.

    The watermark's own event is no tie: whether it was done is told by its effect's row.
    """
    at, other_at = old.format("created_at"), new.format("created_at")
    if not drop_ties:
        return f"{at} <= {other_at}"
    event, other_event = old.format("event_id"), new.format("event_id")
    return f"{at} < {other_at} OR ({at} = {other_at} AND {event} = {other_event})"


def _prune(dialect: str, table: str, keys: Sequence[str], placeholders: Sequence[str]) -> str:
    moment, limit, *_ = placeholders
    old = f"FROM {table} WHERE recorded_at < {moment} ORDER BY recorded_at LIMIT {limit}"
    if dialect == "mysql":  # a DELETE has no LIMIT in the others
        return f"DELETE {old}"
    key = ", ".join(keys)
    if dialect == "sqlite":
        return f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} {old})"
    # Locked while it is old: a watermark that is advanced meanwhile is not, and nobody waits.
    return (
        f"WITH old AS (SELECT {key} {old} FOR UPDATE SKIP LOCKED)"
        f" DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM old)"
    )


def _values(columns: Iterable[str], placeholders: Sequence[str]) -> str:
    named = list(columns)
    return f"({', '.join(named)}) VALUES ({', '.join(placeholders[: len(named)])})"


def _equal(columns: Sequence[str], placeholders: Sequence[str]) -> str:
    pairs = zip(columns, placeholders, strict=False)
    return " AND ".join(f"{column} = {placeholder}" for column, placeholder in pairs)


class Rows:
    """What goes into the tables and how long it stays there.

    Args:
        retention: how long a row stays; at least 26 hours.
        clock: Unix time in seconds.

    """

    __slots__ = ("clock", "retention_seconds")

    def __init__(self, retention: timedelta, clock: Clock) -> None:
        self.retention_seconds = check_retention(retention)
        self.clock = clock

    def effect(self, effect: Effect) -> Parameters:
        """Return the key of an effect's row; LedgerError if the table would cut it off."""
        _check_lengths(zip(EFFECTS, effect, strict=False))
        return effect

    def finished(self, effect: Effect) -> Parameters:
        """Return the moment at which an effect has ended, and its row's key."""
        return (int(self.clock()), *effect)

    def watermark(self, key_lock: KeyLock, watermark: Watermark) -> Parameters:
        """Return a watermark's row; LedgerError for one that the table cannot tell from others."""
        row = (*key_lock, *watermark, int(self.clock()))
        _check_lengths(zip(WATERMARKS, row, strict=True))
        return row

    @property
    def oldest(self) -> int:
        """The moment before which rows may go."""
        return int(self.clock() - self.retention_seconds)


def check_done(rows: int, effect: Effect) -> None:
    """Return if rows were found that say that an effect was done; LedgerError if there was none."""
    if rows != 1:
        raise LedgerError(
            f"an earlier attempt at {effect.handler} for {effect.event_id} was committed before its"
            " end, so its effect may be there in part: the handler commits, or its connection"
            " commits by itself; mend that, compare what is there, and delete the effect's row in"
            " the ledger to let the handler run again"
        )


def check_kept(rows: int, effect: Effect) -> None:
    """Return if the row was found that a COMMIT is to keep; LedgerError if there was none."""
    if rows != 1:
        raise LedgerError(
            f"the record of {effect.handler} for {effect.event_id} is not in the transaction that"
            " is to be committed: it was rolled back, and another one was begun"
        )


def row_of(effect: Effect, now: float) -> Parameters:
    """Return an effect's row; LedgerError for one that the table cannot tell from others."""
    row = (*effect, int(now))
    _check_lengths(zip(EFFECTS, row, strict=True))
    return row


def _check_lengths(values: Iterable[tuple[str, str | int]]) -> None:
    for name, value in values:
        # MySQL would cut it off, and take two for one.
        if isinstance(value, str) and len(value) > LENGTHS[name]:
            raise LedgerError(f"{name} is longer than the {LENGTHS[name]} characters of the table")
