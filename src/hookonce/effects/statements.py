"""The SQL statements of a ledger, in each dialect, and the values of their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

from ..errors import LedgerError
from .ledger import Effect, Latest
from .table import (
    DIALECTS,
    EFFECTS,
    GENERATION,
    LENGTHS,
    WATERMARKS,
    check_table,
    keys_of,
    watermarks_table,
)

Parameters: TypeAlias = tuple[str | int, ...]
"""The values of a statement's placeholders."""

Execution: TypeAlias = tuple[str, Parameters]
"""A statement, and the values of its placeholders."""

_BEGUN = 1 << 62
"""The lowest ``recorded_at`` of a row whose handler has begun but not ended.

It is larger than any time in seconds, so pruning never deletes the row.
"""


class Statements:
    """The statements on the two tables of a ledger.

    Each attribute names its parameters in parentheses. ``effect`` stands for the three columns of
    an effect's key and the generation, ``moment`` for Unix seconds.

    Args:
        dialect: one of ``DIALECTS``.
        table: the name of the table of effects.
        placeholders: how the driver writes eight placeholders in turn.

    Attributes:
        begin: (effect) inserts a row that says that the handler has begun, unless a row exists.
        begin_again: (generation, effect) raises the row of a lower generation, and lets it say that
            the handler has begun.
        savepoint: sets a savepoint after ``begin``, which proves at the end that the transaction is
            still the same. None in PostgreSQL, where ``finish`` proves that too.
        release: fails if the savepoint is gone. None in PostgreSQL.
        finish: (moment, key) changes the row of this transaction to say when the handler ended.
        finishes_events: whether ``finish_event`` can be used.
        insert: (effect, moment) inserts a row that says when the handler ended, unless a row
            exists.
        insert_again: (moment, generation, effect) raises the row of a lower generation, and lets it
            say when the handler ended.
        is_done: (effect) selects a row of this generation, or of a higher one, that says when the
            handler ended.
        is_ours: (effect) does the same; in PostgreSQL only if this transaction inserted the row.
        advance: (watermark's row) inserts the row or updates an older row, and locks the row even
            if it is newer; one statement for each value of ``drop_ties``.
        is_advanced: (watermark's row without ``recorded_at``) selects the watermark if it is this
            one. None if the number of rows that ``advance`` changed says so.
        prune: (moment, limit) deletes rows recorded earlier; one statement for each table.
        erase: (key) deletes a row; one statement for each table.
        changes: () selects how many rows were changed since some earlier moment: the table, the
            number of rows, and whether it is a table of the ledger. SQLite knows only the sum over
            all tables, and calls the table NULL. None in MySQL, which does not tell.
    """

    __slots__ = (
        "_placeholders",
        "advance",
        "begin",
        "begin_again",
        "changes",
        "erase",
        "finish",
        "finishes_events",
        "insert",
        "insert_again",
        "is_advanced",
        "is_done",
        "is_ours",
        "prune",
        "release",
        "savepoint",
    )

    def __init__(self, dialect: str, table: str, placeholders: Sequence[str]) -> None:
        check_table(table)
        self._placeholders = placeholders
        self.finishes_events: bool = dialect == "postgresql"
        watermarks, keys = watermarks_table(table), keys_of(EFFECTS)
        ignore, otherwise = "", " ON CONFLICT DO NOTHING"
        if dialect == "mysql":
            ignore, otherwise = " IGNORE", ""
        begun, is_own = str(_BEGUN), ""
        self.savepoint: str | None = "SAVEPOINT hookonce_effect"
        self.release: str | None = "RELEASE SAVEPOINT hookonce_effect"
        if dialect == "postgresql":
            self.savepoint = self.release = None
            # Match only a row that this connection's present transaction has written: age(xmin) is
            # 0 for rows of the transaction, negative for rows of its savepoints, else positive.
            begun, is_own = f"{begun} + pg_backend_pid()", " AND age(xmin) <= 0"

        columns = (*keys, GENERATION, "recorded_at")
        insert = f"INSERT{ignore} INTO {table} ({', '.join(columns)}) VALUES ({{}}){otherwise}"
        *first_four, fifth = placeholders[:5]
        self.begin: str = insert.format(", ".join((*first_four, begun)))
        self.insert: str = insert.format(", ".join((*first_four, fifth)))
        self.begin_again: str = _again(table, keys, begun, placeholders)
        self.insert_again: str = _again(table, keys, placeholders[0], placeholders[1:])
        moment, *rest = placeholders
        self.finish: str = (
            f"UPDATE {table} SET recorded_at = {moment}"
            f" WHERE {_equal(keys, rest)} AND recorded_at = {begun}{is_own}"
        )
        is_effect = _equal(keys, placeholders)
        self.is_done: str = (
            f"SELECT 1 FROM {table} WHERE {is_effect}"
            f" AND {GENERATION} >= {first_four[-1]} AND recorded_at < {_BEGUN}"
        )
        self.is_ours: str = f"{self.is_done}{is_own}"

        advance = _advance_in_mysql if dialect == "mysql" else _advance
        values = _values(WATERMARKS, placeholders)
        self.advance: dict[bool, str] = {
            drop_ties: advance(watermarks, values, drop_ties) for drop_ties in (False, True)
        }
        self.is_advanced: str | None = None
        if dialect == "mysql":
            is_this = _equal([name for name in WATERMARKS if name != "recorded_at"], placeholders)
            self.is_advanced = f"SELECT 1 FROM {watermarks} WHERE {is_this} FOR UPDATE"

        self.prune: tuple[str, str] = (
            _prune(dialect, table, keys, placeholders),
            _prune(dialect, watermarks, keys_of(WATERMARKS), placeholders),
        )
        self.erase: tuple[str, str] = (
            f"DELETE FROM {table} WHERE {is_effect}",
            f"DELETE FROM {watermarks} WHERE {_equal(keys_of(WATERMARKS), placeholders)}",
        )
        self.changes: str | None = _changes(dialect, table, watermarks)

    def beginning(self, effect: Effect) -> Sequence[Execution]:
        """Return statements that begin the effect: run them in order until one changes a row.

        Raises:
            LedgerError: a text of the effect is too long for the table.
        """
        _check_effect(effect)
        if not effect.generation:
            return ((self.begin, effect),)
        return _around((self.begin, effect), (self.begin_again, (effect.generation, *effect)))

    def recording(self, effect: Effect, now: float) -> Sequence[Execution]:
        """Return statements that record the effect: run them in order until one changes a row.

        Raises:
            LedgerError: a text of the effect is too long for the table.
        """
        _check_effect(effect)
        moment = int(now)
        insert = (self.insert, (*effect, moment))
        if not effect.generation:
            return (insert,)
        return _around(insert, (self.insert_again, (moment, effect.generation, *effect)))

    def finish_event(self, call: str) -> str:
        """Return the statement that marks the effect's row as ended and evaluates ``call``.

        Its parameters are the time, the key of the row, and ``Finish.values``. It selects one row,
        or none if the row of this transaction is gone.
        """
        if not self.finishes_events:
            raise LedgerError("the store of the event is in PostgreSQL, and the ledger is not")
        call = call.format(*self._placeholders[1 + len(keys_of(EFFECTS)) :])
        return f"WITH held AS ({self.finish} RETURNING 1) SELECT {call} FROM held"


@lru_cache(maxsize=64)
def statements_of(dialect: str, table: str, placeholders: tuple[str, ...]) -> Statements:
    """Return the statements of a ledger, made once for each dialect, table and driver.

    Raises:
        LedgerError: the dialect is unknown.
        ValueError: the table's name needs quoting.
    """
    if dialect not in DIALECTS:
        raise LedgerError(f"there is no ledger for {dialect}; there is for {', '.join(DIALECTS)}")
    return Statements(dialect, table, placeholders)


def _advance(watermarks: str, values: str, drop_ties: bool) -> str:
    """Return the statement that raises a watermark; for a late event it changes no row.

    The statement locks the row even if it does not change it.
    """
    return (
        f"INSERT INTO {watermarks} AS watermark {values}"
        f" ON CONFLICT ({', '.join(keys_of(WATERMARKS))})"
        " DO UPDATE SET created_at = excluded.created_at, event_id = excluded.event_id,"
        " recorded_at = excluded.recorded_at"
        f" WHERE {_newer('watermark.{}', 'excluded.{}', drop_ties=drop_ties)}"
    )


def _advance_in_mysql(watermarks: str, values: str, drop_ties: bool) -> str:
    """Return the statement for MySQL, whose row count depends on the driver's settings.

    INSERT IGNORE, or a SELECT before it, would first take a shared lock. Two transactions with a
    shared lock would block each other.
    """
    newer = _newer("{}", "VALUES({})", drop_ties=drop_ties)
    # MySQL assigns in this order, and later conditions see earlier assignments. So `created_at`,
    # which every condition reads, comes last.
    assigned = ", ".join(
        f"{name} = IF({newer}, VALUES({name}), {name})"
        for name in ("recorded_at", "event_id", "created_at")
    )
    return f"INSERT INTO {watermarks} {values} ON DUPLICATE KEY UPDATE {assigned}"


def _again(table: str, keys: Sequence[str], recorded_at: str, placeholders: Sequence[str]) -> str:
    """Return the statement that raises a row's generation; it changes no row that says "begun"."""
    generation, *rest = placeholders
    return (
        f"UPDATE {table} SET recorded_at = {recorded_at}, {GENERATION} = {generation}"
        f" WHERE {_equal(keys, rest)} AND {GENERATION} < {rest[len(keys)]}"
        f" AND recorded_at < {_BEGUN}"
    )


def _newer(old: str, new: str, *, drop_ties: bool) -> str:
    """Return the SQL condition under which an event replaces the watermark.

    The event of the watermark itself never comes too late: the effect's row tells whether that
    event is done.
    """
    at, other_at = old.format("created_at"), new.format("created_at")
    if not drop_ties:
        return f"{at} <= {other_at}"
    event, other_event = old.format("event_id"), new.format("event_id")
    return f"{at} < {other_at} OR ({at} = {other_at} AND {event} = {other_event})"


def _prune(dialect: str, table: str, keys: Sequence[str], placeholders: Sequence[str]) -> str:
    moment, limit, *_ = placeholders
    old = f"FROM {table} WHERE recorded_at < {moment} ORDER BY recorded_at LIMIT {limit}"
    if dialect == "mysql":  # only MySQL allows LIMIT in a DELETE
        return f"DELETE {old}"
    key = ", ".join(keys)
    if dialect == "sqlite":
        return f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} {old})"
    # Lock old rows first, and skip rows that another transaction has locked. So pruning never
    # waits, and never deletes a watermark that an attempt is raising.
    return (
        f"WITH old AS (SELECT {key} {old} FOR UPDATE SKIP LOCKED)"
        f" DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM old)"
    )


def _changes(dialect: str, *own: str) -> str | None:
    if dialect == "sqlite":
        return "SELECT NULL, total_changes(), 0"
    if dialect == "mysql":
        return None
    # Write CAST instead of `::`, because SQLAlchemy reads a colon as the start of a parameter.
    is_own = " OR ".join(f"relid = to_regclass('{table}')" for table in own)
    return (
        "SELECT CAST(CAST(relid AS regclass) AS text), n_tup_ins + n_tup_upd + n_tup_del,"
        f" coalesce({is_own}, false) FROM pg_stat_xact_user_tables"
        " WHERE n_tup_ins + n_tup_upd + n_tup_del > 0"
    )


def _values(columns: Iterable[str], placeholders: Sequence[str]) -> str:
    named = list(columns)
    # The statement names the column `generation`, so that the check at the start fails if a table
    # lacks this column.
    values = (*placeholders[: len(named)], "0")
    return f"({', '.join((*named, GENERATION))}) VALUES ({', '.join(values)})"


def _equal(columns: Sequence[str], placeholders: Sequence[str]) -> str:
    pairs = zip(columns, placeholders, strict=False)
    return " AND ".join(f"{column} = {placeholder}" for column, placeholder in pairs)


def _around(insert: Execution, raise_row: Execution) -> Sequence[Execution]:
    # Try to raise the row first, because a replay usually finds a row. In MySQL, an insert that
    # finds a row would lock it for reading, and two transactions with such a lock would block each
    # other. Try again at the end, because another transaction may have inserted a lower generation
    # after the first try.
    return (raise_row, insert, raise_row)


def watermark_row(latest: Latest, now: float) -> Parameters:
    """Return the row of a watermark; LedgerError if a text is too long for the table."""
    # The row leaves out the generation: the effect's row says which generations are done.
    row = (*latest.key_lock, *latest.watermark[:2], int(now))
    _check_lengths(zip(WATERMARKS, row, strict=True))
    return row


def _check_effect(effect: Effect) -> None:
    _check_lengths(zip(EFFECTS, effect[:3], strict=False))


def _check_lengths(values: Iterable[tuple[str, str | int]]) -> None:
    for name, value in values:
        # MySQL may cut off a longer text, so that two keys would become equal.
        if isinstance(value, str) and len(value) > LENGTHS[name]:
            raise LedgerError(f"{name} is longer than the {LENGTHS[name]} characters of the table")


def check_done(rows: int, effect: Effect) -> None:
    """Raise LedgerError unless the existing row marks the effect as done."""
    if rows != 1:
        raise LedgerError(
            f"an earlier attempt at {effect.handler} for {effect.event_id} was committed before its"
            " end, so a part of its effect may be in the database: the handler commits, or its"
            " connection commits by itself; correct that, check the effect's own tables, and delete"
            " the effect's row in the ledger to let the handler run again"
        )


def check_kept(rows: int, effect: Effect) -> None:
    """Raise LedgerError unless a COMMIT will keep the effect's row."""
    if rows != 1:
        raise LedgerError(
            f"the row of {effect.handler} for {effect.event_id} is not in the transaction that is"
            " being committed: its transaction was rolled back, and another one was begun"
        )
