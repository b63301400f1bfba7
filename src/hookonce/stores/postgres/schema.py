"""The tables of the PostgreSQL store, the number of their format, and the migrations.

An event has one row in ``ids``, from its first delivery until its retention is over. The row of an
event without an attempt, an entry and a dead letter says that the event is done. So fetching an
event of the inbox leaves its row as it is.

The columns from ``token`` to ``history`` are the record of the event's attempts. They are in
``entries`` while the event is in the inbox, in ``dead`` while it has a dead letter or a kept
delivery, and otherwise in ``ids``.

The transactions of ledgers call the function ``finish``, which writes to the table ``finishes``:
see the module ``finishes``.

``key_lock`` is the digest of the key lock that an entry needs. While that lock is in use, the entry
may be parked, with an infinite ``due``: see the module ``parking``.

Bodies have a table of their own, whose rows are never updated or deleted, so neither heartbeats nor
completions leave dead rows beside bodies. ``bodies`` truncates a partition when no entry needs it.
"""

from __future__ import annotations

import re
from typing import Any

from psycopg import AsyncConnection

from ...errors import StoreError
from ..finishes import CLAIM_LOST
from ..formats import OLD_SECONDS, SEEN_SECONDS, Upgrade, in_use, unknown
from .connection import Statement, exchange
from .faults import MISSING_SCHEMA, MISSING_TABLE, ServerError
from .settings import DEFAULT_SCHEMA, check_schema_name
from .wire import dump_int, dump_time, ints, rows

FORMATS: tuple[int, ...] = (1,)
"""The formats that this version can read and write, oldest first."""

BODY_PARTS = 8
"""The number of partitions of ``bodies``."""

_END = re.compile(r";\s*(?:\n(?=\S)|$)")
"""The end of a statement in a migration. The statements of a function's body are indented."""

_LOCK = 0x686F6F6B6F6E6365  # "hookonce" in ASCII
_BAD_FORMAT = "hookonce format "

_ATTEMPT_COLUMNS = """
    token text,
    until float8,
    lease float8,
    attempt int4{default},
    finished json,
    outstanding json,
    history json"""

_DELIVERY_COLUMNS = """
    id bigint GENERATED ALWAYS AS IDENTITY{unique},
    key bytea NOT NULL UNIQUE,
    endpoint text NOT NULL,
    event_id text NOT NULL,
    event_type text,
    received_at float8 NOT NULL,"""

# Turn off autovacuum after inserts: these rows never change, so a vacuum would remove nothing, and
# the lock of the vacuum would keep the rotation from emptying a partition.
_NO_VACUUM = ", ".join(f"{of}autovacuum_vacuum_insert_threshold = -1" for of in ("", "toast."))
_PARTS = "\n".join(
    f"CREATE TABLE {{schema}}.bodies_{part} PARTITION OF {{schema}}.bodies FOR VALUES IN ({part})"
    f" WITH ({_NO_VACUUM});"
    for part in range(BODY_PARTS)
)
_MOST_IDLE = "5s"
# The most kept deliveries that one transaction deletes, because other calls wait for locked rows.
_MOST_AT_ONCE = 500
_SERVER_NOW = "extract(epoch FROM clock_timestamp())"


def count_handled(table: str, slot: str, sign: int) -> str:
    """Return the SQL that adds the number and sizes of rows to the counts of their endpoints.

    Args:
        table: a table of the rows, with the columns ``endpoint`` and ``size``.
        slot: the row of the endpoint's counts that is changed.
        sign: 1 if the rows were inserted, -1 if they were deleted.
    """
    return f"""
                INSERT INTO {{schema}}.handled_sizes AS s (endpoint, slot, events, bytes)
                SELECT t.endpoint, {slot}, {sign} * count(*), {sign} * sum(t.size)
                FROM {table} AS t GROUP BY t.endpoint ORDER BY t.endpoint
                ON CONFLICT (endpoint, slot) DO UPDATE
                SET events = s.events + excluded.events, bytes = s.bytes + excluded.bytes
            """


# The pages of `ids` and `entries` have free space, so that PostgreSQL can write a changed row into
# the page of the old row. The indexes then stay unchanged (a HOT update), unless the update changes
# a column of an index. So `ids` has no further index, and pruning walks the primary key; and a
# fetch, which makes each row of `entries` longer, changes none of the columns in its indexes.
#
# PostgreSQL plans the statements of a function once for each connection. If the tables are empty
# then, it prefers to scan them, and would scan them later, too. So `keep` must use the indexes.
_VERSION_1 = f"""
CREATE TABLE {{schema}}.format (number int4 NOT NULL);
CREATE TABLE {{schema}}.seen (format int4 PRIMARY KEY, at float8 NOT NULL);

CREATE TABLE {{schema}}.ids (
    key bytea PRIMARY KEY,
    expires int8 NOT NULL,
    endpoint text,{_ATTEMPT_COLUMNS.format(default="")}
) WITH (fillfactor = 70);

CREATE TABLE {{schema}}.entries ({_DELIVERY_COLUMNS.format(unique=" PRIMARY KEY")}
    size int4 NOT NULL,
    part int2 NOT NULL,
    enqueue_token text NOT NULL,
    due float8 NOT NULL,
    delay float8 NOT NULL,
    key_lock bytea,{_ATTEMPT_COLUMNS.format(default=" NOT NULL DEFAULT 0")}
) WITH (fillfactor = 45);
CREATE INDEX entries_due ON {{schema}}.entries (endpoint, due, id);
CREATE INDEX entries_key_lock ON {{schema}}.entries (key_lock)
WHERE key_lock IS NOT NULL AND due < 'infinity';
CREATE INDEX entries_parked ON {{schema}}.entries (key_lock, id) WHERE due = 'infinity';

CREATE TABLE {{schema}}.bodies (
    part int2 NOT NULL,
    id bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (part, id)
) PARTITION BY LIST (part);
{_PARTS}
CREATE TABLE {{schema}}.body_part (part int2 NOT NULL, since float8 NOT NULL);
INSERT INTO {{schema}}.body_part VALUES (0, {_SERVER_NOW});
CREATE TABLE {{schema}}.pruned (at float8 NOT NULL);
INSERT INTO {{schema}}.pruned VALUES ({_SERVER_NOW});

CREATE TABLE {{schema}}.dead ({_DELIVERY_COLUMNS.format(unique=" PRIMARY KEY")}
    reason text NOT NULL,
    error text NOT NULL,
    buried_at float8 NOT NULL,
    kept int2 NOT NULL,
    body bytea NOT NULL,
    record bytea,{_ATTEMPT_COLUMNS.format(default=" NOT NULL DEFAULT 0")}
);
CREATE INDEX dead_by_endpoint ON {{schema}}.dead (endpoint, kept, buried_at);

CREATE TABLE {{schema}}.handled ({_DELIVERY_COLUMNS.format(unique="")}
    finished json,
    handled_at float8 NOT NULL,
    expires float8 NOT NULL,
    size int4 NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (endpoint, id)
);
CREATE TABLE {{schema}}.handled_sizes (
    endpoint text NOT NULL,
    slot int8 NOT NULL,
    events int8 NOT NULL,
    bytes int8 NOT NULL,
    PRIMARY KEY (endpoint, slot)
) WITH (fillfactor = 50);

CREATE TABLE {{schema}}.replay_batches (
    endpoint text NOT NULL,
    handler text NOT NULL,
    generation int8 NOT NULL,
    plan json NOT NULL,
    started_at float8 NOT NULL,
    finished_at float8,
    PRIMARY KEY (endpoint, handler)
);
CREATE FUNCTION {{schema}}.keep(in_slot int8, at_time float8, keys bytea[], endpoints text[],
    event_ids text[], event_types text[], arrivals float8[], names text[], spans float8[],
    contents bytea[], limited text[], limits int8[])
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    DECLARE
        unix float8;
        missing int8 := cardinality(keys);
        changed int8;
        held numeric;
        last_id bigint;
        one record;
        old record;
    BEGIN
        -- Read the time under the lock, because a batch of replays waits for all who have the lock.
        LOCK TABLE {{schema}}.handled IN ROW EXCLUSIVE MODE;
        unix := coalesce(at_time, {_SERVER_NOW});
        LOOP
            WITH added AS (
                INSERT INTO {{schema}}.handled (key, endpoint, event_id, event_type, received_at,
                    finished, handled_at, expires, size, body)
                SELECT g.key, g.endpoint, g.event_id, g.event_type, g.arrival, g.names::json,
                    greatest(unix, b.started_at), unix + g.span, length(g.content), g.content
                FROM unnest(keys, endpoints, event_ids, event_types, arrivals, names, spans,
                    contents) WITH ORDINALITY AS g (key, endpoint, event_id, event_type, arrival,
                    names, span, content, number)
                LEFT JOIN (
                    SELECT r.endpoint, max(r.started_at) AS started_at
                    FROM {{schema}}.replay_batches AS r
                    WHERE r.finished_at IS NULL GROUP BY r.endpoint
                ) AS b USING (endpoint)
                ORDER BY g.number ON CONFLICT (key) DO NOTHING RETURNING endpoint, size
            ), counted AS ({count_handled("added", "in_slot", 1)})
            SELECT count(*) INTO changed FROM added;
            missing := missing - changed;
            EXIT WHEN missing = 0;
            WITH deleted AS (
                DELETE FROM {{schema}}.handled AS h
                WHERE h.key = ANY (keys) AND h.expires <= unix RETURNING h.endpoint, h.size
            ), counted AS ({count_handled("deleted", "in_slot", -1)})
            SELECT count(*) INTO changed FROM deleted;
            EXIT WHEN changed = 0;
        END LOOP;
        FOR one IN SELECT * FROM unnest(limited, limits) AS l (endpoint, most) LOOP
            -- Two transactions that delete an endpoint's oldest deliveries would delete too many.
            CONTINUE WHEN NOT pg_try_advisory_xact_lock(
                hashtext('{{schema}}.handled'), hashtext(one.endpoint)
            );
            SELECT sum(s.bytes) INTO held FROM {{schema}}.handled_sizes AS s
            WHERE s.endpoint = one.endpoint;
            last_id := NULL;
            FOR old IN
                SELECT h.id, h.size, h.expires FROM {{schema}}.handled AS h
                WHERE h.endpoint = one.endpoint ORDER BY h.id LIMIT {_MOST_AT_ONCE}
            LOOP
                EXIT WHEN old.expires > unix AND (one.most IS NULL OR held <= one.most);
                last_id := old.id;
                held := held - old.size;
            END LOOP;
            CONTINUE WHEN last_id IS NULL;
            WITH deleted AS (
                DELETE FROM {{schema}}.handled AS h
                WHERE h.endpoint = one.endpoint AND h.id <= last_id RETURNING h.endpoint, h.size
            )
            {count_handled("deleted", "in_slot", -1).strip()};
        END LOOP;
    END
$$;

CREATE TABLE {{schema}}.finishes (
    key bytea NOT NULL,
    handler text NOT NULL,
    others text[] NOT NULL,
    PRIMARY KEY (key, handler)
);
CREATE FUNCTION {{schema}}.finish(of_key bytea, of_token text, of_handler text, of_others text[])
RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        -- A process that stops before its COMMIT must not keep the event's row locked.
        PERFORM set_config('idle_in_transaction_session_timeout', '{_MOST_IDLE}', true);
        -- In this order: an event that is moved with its owner goes to a later table.
        PERFORM 1 FROM {{schema}}.ids WHERE key = of_key AND token = of_token FOR KEY SHARE;
        IF NOT FOUND THEN
            PERFORM 1 FROM {{schema}}.dead WHERE key = of_key AND token = of_token FOR KEY SHARE;
        END IF;
        IF NOT FOUND THEN
            PERFORM 1 FROM {{schema}}.entries
            WHERE key = of_key AND token = of_token FOR KEY SHARE;
        END IF;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'another attempt owns the event' USING ERRCODE = '{CLAIM_LOST}';
        END IF;
        INSERT INTO {{schema}}.finishes VALUES (of_key, of_handler, of_others)
        ON CONFLICT (key, handler) DO UPDATE SET others = excluded.others;
    END
$$;

CREATE TABLE {{schema}}.workers (
    worker text PRIMARY KEY,
    endpoint text NOT NULL,
    seen float8 NOT NULL
);

CREATE TABLE {{schema}}.key_locks (
    key bytea PRIMARY KEY,
    token text,
    until float8 NOT NULL,
    lease float8 NOT NULL,
    created_at int8,
    event_id text,
    generation int8,
    expires float8 NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE {{schema}}.waiting (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key_lock bytea NOT NULL,
    event text NOT NULL
);
CREATE UNIQUE INDEX waiting_event ON {{schema}}.waiting (key_lock, md5(event));
CREATE INDEX waiting_place ON {{schema}}.waiting (key_lock, place);

CREATE TABLE {{schema}}.applications (
    endpoint text NOT NULL,
    mark bytea NOT NULL,
    application json NOT NULL,
    seen float8 NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (endpoint, mark)
);
CREATE TABLE {{schema}}.activity (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint text NOT NULL,
    line bytea NOT NULL
);
CREATE INDEX activity_by_endpoint ON {{schema}}.activity (endpoint, place);
CREATE TABLE {{schema}}.watched (endpoint text PRIMARY KEY, until float8 NOT NULL);
CREATE TABLE {{schema}}.worker_reports (
    endpoint text NOT NULL,
    worker text NOT NULL,
    seen float8 NOT NULL,
    report bytea NOT NULL,
    PRIMARY KEY (endpoint, worker)
) WITH (fillfactor = 50);

CREATE TABLE {{schema}}.ignored (
    endpoint text NOT NULL,
    event_type text NOT NULL,
    first int8 NOT NULL,
    last int8 NOT NULL,
    PRIMARY KEY (endpoint, event_type, first)
);
CREATE TABLE {{schema}}.accepted (key bytea PRIMARY KEY, expires int8 NOT NULL);
"""

# The text at index n migrates a schema from format n to n + 1. A new format appends a text.
_MIGRATIONS: tuple[str, ...] = (_VERSION_1,)

NOW = "coalesce($1, extract(epoch FROM clock_timestamp())::float8)"
"""The time of a statement: its first parameter is the time of a given clock, or NULL."""


def schema_sql(schema: str = DEFAULT_SCHEMA) -> str:
    """Return the SQL that creates an empty store of the newest format.

    Raises:
        ValueError: the name of the schema would need quotes.
    """
    check_schema_name(schema)
    return f"CREATE SCHEMA IF NOT EXISTS {schema};\n{_migration(schema, 0, FORMATS[-1])}"


def _migration(schema: str, before: int, after: int) -> str:
    """Return the SQL that migrates a schema from one format to another; 0 is an empty schema."""
    tables = "".join(migration.format(schema=schema) for migration in _MIGRATIONS[before:after])
    if before == 0:
        return f"{tables}INSERT INTO {schema}.format VALUES ({after});\n"
    return f"{tables}UPDATE {schema}.format SET number = {after};\n"


class SchemaFormat:
    """The format of a store's tables, which every transaction checks.

    Args:
        known: the formats that the process can read and write, oldest first.

    Attributes:
        number: the format that the last check has found.
        guard: sets the transaction's settings, and fails if the format is not known; it must be
            the first statement of every transaction.
    """

    def __init__(self, schema: str, known: tuple[int, ...], settings: dict[str, str]) -> None:
        self.number: int = known[-1]
        self._schema = schema
        self._known = known
        local = ", ".join(
            f"set_config('{name}', '{value}', true)" for name, value in settings.items()
        )
        # If the format is unknown, the cast fails. This stops the whole transaction, and the
        # message of the error contains the number of the format.
        self.guard: Statement = (
            f"SELECT number, {local}, CASE WHEN number = ANY ($1::int8[]) THEN 0"
            f" ELSE ('{_BAD_FORMAT}' || number)::int END FROM {schema}.format".encode(),
            (ints(known),),
        )

    def explained(self, error: ServerError) -> Exception:
        """Return a FormatError if the guard has failed, else the error itself."""
        found = re.search(f'"{_BAD_FORMAT}([0-9]+)"', str(error))
        return unknown(int(found[1]), self._known) if found else error

    async def prepare(self, connection: AsyncConnection[Any], now: float | None) -> None:
        """Create the tables if there are none, and record that this process runs.

        Raises:
            FormatError: the process does not know the format.
            ServerError: the user of the database may not create the schema or the tables.
        """
        try:
            await self._check(connection, now)
        except ServerError as error:
            if error.state not in {MISSING_TABLE, MISSING_SCHEMA}:
                raise
            await self._create(connection)
            await self._check(connection, now)

    async def _create(self, connection: AsyncConnection[Any]) -> None:
        lock: Statement = (b"SELECT pg_advisory_xact_lock($1)", (dump_int(_LOCK),))
        await exchange(connection, [(b"BEGIN", ()), lock])
        exists = f"SELECT to_regclass('{self._schema}.format') IS NOT NULL".encode()
        found, *_ = await exchange(connection, [(exists, ())])
        if not rows(found)[0][0]:
            script = f"SELECT 1 FROM pg_namespace WHERE nspname = '{self._schema}'".encode()
            has_schema = rows((await exchange(connection, [(script, ())]))[0])
            made = [] if has_schema else [f"CREATE SCHEMA {self._schema}"]
            made += _statements(_migration(self._schema, 0, self._known[-1]))
            await exchange(connection, [(statement.encode(), ()) for statement in made])
        await exchange(connection, [(b"COMMIT", ())])

    async def _check(self, connection: AsyncConnection[Any], now: float | None) -> None:
        seen = (
            f"INSERT INTO {self._schema}.seen VALUES ($2::int8, {NOW}) ON CONFLICT (format)"
            " DO UPDATE SET at = excluded.at"
        ).encode()
        given = dump_time(now)
        isolation: Statement = (b"SELECT current_setting('transaction_isolation')", ())
        result, level, _ = await exchange(
            connection, [self.guard, isolation, (seen, (given, dump_int(self._known[-1])))]
        )
        if rows(level) != [("read committed",)]:
            raise StoreError(
                f"transactions of this database are {rows(level)[0][0]}, in which the store does"
                " not see what other processes write during a transaction; set"
                " default_transaction_isolation to 'read committed' for this role (ALTER ROLE …"
                " SET …)"
            )
        [(self.number, *_)] = rows(result)

    async def upgrade(self, connection: AsyncConnection[Any], now: float | None) -> Upgrade:
        """Migrate the tables to the newest format.

        Raises:
            StoreError: a process that does not know the newest format was seen lately.
        """
        await self.prepare(connection, now)
        before, newest = self.number, self._known[-1]
        schema = self._schema
        lock: Statement = (b"SELECT pg_advisory_xact_lock($1)", (dump_int(_LOCK),))
        exclusive: Statement = (f"LOCK TABLE {schema}.format IN ACCESS EXCLUSIVE MODE".encode(), ())
        longest = " UNION ALL ".join(
            f"SELECT max(lease) AS lease FROM {schema}.{table} WHERE until > {NOW}"
            for table in ("ids", "entries", "dead")
        )
        used = (
            f"SELECT {NOW} - max(at), (SELECT max(lease) FROM ({longest}) AS leases)"
            f" FROM {schema}.seen WHERE format < $2::int8"
        ).encode()
        given = dump_time(now)
        *_, result = await exchange(
            connection, [(b"BEGIN", ()), lock, exclusive, (used, (given, dump_int(newest)))]
        )
        [(seconds, lease)] = rows(result)
        # A process with a running attempt calls the store after each third of the lease, so the
        # store has seen the process within the lease.
        patience = max(OLD_SECONDS, (lease or 0.0) + SEEN_SECONDS)
        if before < newest and seconds is not None and 0 <= seconds < patience:
            raise in_use(seconds)
        made = _statements(_migration(schema, before, newest))
        await exchange(connection, [*((one.encode(), ()) for one in made), (b"COMMIT", ())])
        self.number = newest
        return Upgrade(before, newest)


def _statements(script: str) -> list[str]:
    """Return the statements of a script."""
    return [statement for part in _END.split(script) if (statement := part.strip())]
