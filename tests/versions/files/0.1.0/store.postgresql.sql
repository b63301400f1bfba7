CREATE SCHEMA IF NOT EXISTS hookonce;

CREATE TABLE hookonce.format (number int4 NOT NULL);
CREATE TABLE hookonce.seen (format int4 PRIMARY KEY, at float8 NOT NULL);

CREATE TABLE hookonce.ids (
    key bytea PRIMARY KEY,
    expires int8 NOT NULL,
    endpoint text,
    token text,
    until float8,
    lease float8,
    attempt int4,
    finished json,
    outstanding json,
    history json
) WITH (fillfactor = 70);

CREATE TABLE hookonce.entries (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key bytea NOT NULL UNIQUE,
    endpoint text NOT NULL,
    event_id text NOT NULL,
    event_type text,
    received_at float8 NOT NULL,
    size int4 NOT NULL,
    part int2 NOT NULL,
    enqueue_token text NOT NULL,
    due float8 NOT NULL,
    delay float8 NOT NULL,
    key_lock bytea,
    token text,
    until float8,
    lease float8,
    attempt int4 NOT NULL DEFAULT 0,
    finished json,
    outstanding json,
    history json
) WITH (fillfactor = 45);
CREATE INDEX entries_due ON hookonce.entries (endpoint, due, id);
CREATE INDEX entries_key_lock ON hookonce.entries (key_lock)
WHERE key_lock IS NOT NULL AND due < 'infinity';
CREATE INDEX entries_parked ON hookonce.entries (key_lock, id) WHERE due = 'infinity';

CREATE TABLE hookonce.bodies (
    part int2 NOT NULL,
    id bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (part, id)
) PARTITION BY LIST (part);
CREATE TABLE hookonce.bodies_0 PARTITION OF hookonce.bodies FOR VALUES IN (0) WITH (autovacuum_vacuum_insert_threshold = -1, toast.autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE hookonce.bodies_1 PARTITION OF hookonce.bodies FOR VALUES IN (1) WITH (autovacuum_vacuum_insert_threshold = -1, toast.autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE hookonce.bodies_2 PARTITION OF hookonce.bodies FOR VALUES IN (2) WITH (autovacuum_vacuum_insert_threshold = -1, toast.autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE hookonce.bodies_3 PARTITION OF hookonce.bodies FOR VALUES IN (3) WITH (autovacuum_vacuum_insert_threshold = -1, toast.autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE hookonce.bodies_4 PARTITION OF hookonce.bodies FOR VALUES IN (4) WITH (autovacuum_vacuum_insert_threshold = -1, toast.autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE hookonce.bodies_5 PARTITION OF hookonce.bodies FOR VALUES IN (5) WITH (autovacuum_vacuum_insert_threshold = -1, toast.autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE hookonce.bodies_6 PARTITION OF hookonce.bodies FOR VALUES IN (6) WITH (autovacuum_vacuum_insert_threshold = -1, toast.autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE hookonce.bodies_7 PARTITION OF hookonce.bodies FOR VALUES IN (7) WITH (autovacuum_vacuum_insert_threshold = -1, toast.autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE hookonce.body_part (part int2 NOT NULL, since float8 NOT NULL);
INSERT INTO hookonce.body_part VALUES (0, extract(epoch FROM clock_timestamp()));
CREATE TABLE hookonce.pruned (at float8 NOT NULL);
INSERT INTO hookonce.pruned VALUES (extract(epoch FROM clock_timestamp()));

CREATE TABLE hookonce.dead (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key bytea NOT NULL UNIQUE,
    endpoint text NOT NULL,
    event_id text NOT NULL,
    event_type text,
    received_at float8 NOT NULL,
    reason text NOT NULL,
    error text NOT NULL,
    buried_at float8 NOT NULL,
    kept int2 NOT NULL,
    body bytea NOT NULL,
    record bytea,
    token text,
    until float8,
    lease float8,
    attempt int4 NOT NULL DEFAULT 0,
    finished json,
    outstanding json,
    history json
);
CREATE INDEX dead_by_endpoint ON hookonce.dead (endpoint, kept, buried_at);

CREATE TABLE hookonce.handled (
    id bigint GENERATED ALWAYS AS IDENTITY,
    key bytea NOT NULL UNIQUE,
    endpoint text NOT NULL,
    event_id text NOT NULL,
    event_type text,
    received_at float8 NOT NULL,
    finished json,
    handled_at float8 NOT NULL,
    expires float8 NOT NULL,
    size int4 NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (endpoint, id)
);
CREATE TABLE hookonce.handled_sizes (
    endpoint text NOT NULL,
    slot int8 NOT NULL,
    events int8 NOT NULL,
    bytes int8 NOT NULL,
    PRIMARY KEY (endpoint, slot)
) WITH (fillfactor = 50);

CREATE TABLE hookonce.replay_batches (
    endpoint text NOT NULL,
    handler text NOT NULL,
    generation int8 NOT NULL,
    plan json NOT NULL,
    started_at float8 NOT NULL,
    finished_at float8,
    PRIMARY KEY (endpoint, handler)
);
CREATE FUNCTION hookonce.keep(in_slot int8, at_time float8, keys bytea[], endpoints text[],
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
        LOCK TABLE hookonce.handled IN ROW EXCLUSIVE MODE;
        unix := coalesce(at_time, extract(epoch FROM clock_timestamp()));
        LOOP
            WITH added AS (
                INSERT INTO hookonce.handled (key, endpoint, event_id, event_type, received_at,
                    finished, handled_at, expires, size, body)
                SELECT g.key, g.endpoint, g.event_id, g.event_type, g.arrival, g.names::json,
                    greatest(unix, b.started_at), unix + g.span, length(g.content), g.content
                FROM unnest(keys, endpoints, event_ids, event_types, arrivals, names, spans,
                    contents) WITH ORDINALITY AS g (key, endpoint, event_id, event_type, arrival,
                    names, span, content, number)
                LEFT JOIN (
                    SELECT r.endpoint, max(r.started_at) AS started_at
                    FROM hookonce.replay_batches AS r
                    WHERE r.finished_at IS NULL GROUP BY r.endpoint
                ) AS b USING (endpoint)
                ORDER BY g.number ON CONFLICT (key) DO NOTHING RETURNING endpoint, size
            ), counted AS (
                INSERT INTO hookonce.handled_sizes AS s (endpoint, slot, events, bytes)
                SELECT t.endpoint, in_slot, 1 * count(*), 1 * sum(t.size)
                FROM added AS t GROUP BY t.endpoint ORDER BY t.endpoint
                ON CONFLICT (endpoint, slot) DO UPDATE
                SET events = s.events + excluded.events, bytes = s.bytes + excluded.bytes
            )
            SELECT count(*) INTO changed FROM added;
            missing := missing - changed;
            EXIT WHEN missing = 0;
            WITH deleted AS (
                DELETE FROM hookonce.handled AS h
                WHERE h.key = ANY (keys) AND h.expires <= unix RETURNING h.endpoint, h.size
            ), counted AS (
                INSERT INTO hookonce.handled_sizes AS s (endpoint, slot, events, bytes)
                SELECT t.endpoint, in_slot, -1 * count(*), -1 * sum(t.size)
                FROM deleted AS t GROUP BY t.endpoint ORDER BY t.endpoint
                ON CONFLICT (endpoint, slot) DO UPDATE
                SET events = s.events + excluded.events, bytes = s.bytes + excluded.bytes
            )
            SELECT count(*) INTO changed FROM deleted;
            EXIT WHEN changed = 0;
        END LOOP;
        FOR one IN SELECT * FROM unnest(limited, limits) AS l (endpoint, most) LOOP
            -- Two transactions that delete an endpoint's oldest deliveries would delete too many.
            CONTINUE WHEN NOT pg_try_advisory_xact_lock(
                hashtext('hookonce.handled'), hashtext(one.endpoint)
            );
            SELECT sum(s.bytes) INTO held FROM hookonce.handled_sizes AS s
            WHERE s.endpoint = one.endpoint;
            last_id := NULL;
            FOR old IN
                SELECT h.id, h.size, h.expires FROM hookonce.handled AS h
                WHERE h.endpoint = one.endpoint ORDER BY h.id LIMIT 500
            LOOP
                EXIT WHEN old.expires > unix AND (one.most IS NULL OR held <= one.most);
                last_id := old.id;
                held := held - old.size;
            END LOOP;
            CONTINUE WHEN last_id IS NULL;
            WITH deleted AS (
                DELETE FROM hookonce.handled AS h
                WHERE h.endpoint = one.endpoint AND h.id <= last_id RETURNING h.endpoint, h.size
            )
            INSERT INTO hookonce.handled_sizes AS s (endpoint, slot, events, bytes)
                SELECT t.endpoint, in_slot, -1 * count(*), -1 * sum(t.size)
                FROM deleted AS t GROUP BY t.endpoint ORDER BY t.endpoint
                ON CONFLICT (endpoint, slot) DO UPDATE
                SET events = s.events + excluded.events, bytes = s.bytes + excluded.bytes;
        END LOOP;
    END
$$;

CREATE TABLE hookonce.finishes (
    key bytea NOT NULL,
    handler text NOT NULL,
    others text[] NOT NULL,
    PRIMARY KEY (key, handler)
);
CREATE FUNCTION hookonce.finish(of_key bytea, of_token text, of_handler text, of_others text[])
RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        -- A process that stops before its COMMIT must not keep the event's row locked.
        PERFORM set_config('idle_in_transaction_session_timeout', '5s', true);
        -- In this order: an event that is moved with its owner goes to a later table.
        PERFORM 1 FROM hookonce.ids WHERE key = of_key AND token = of_token FOR KEY SHARE;
        IF NOT FOUND THEN
            PERFORM 1 FROM hookonce.dead WHERE key = of_key AND token = of_token FOR KEY SHARE;
        END IF;
        IF NOT FOUND THEN
            PERFORM 1 FROM hookonce.entries
            WHERE key = of_key AND token = of_token FOR KEY SHARE;
        END IF;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'another attempt owns the event' USING ERRCODE = 'HK001';
        END IF;
        INSERT INTO hookonce.finishes VALUES (of_key, of_handler, of_others)
        ON CONFLICT (key, handler) DO UPDATE SET others = excluded.others;
    END
$$;

CREATE TABLE hookonce.workers (
    worker text PRIMARY KEY,
    endpoint text NOT NULL,
    seen float8 NOT NULL
);

CREATE TABLE hookonce.key_locks (
    key bytea PRIMARY KEY,
    token text,
    until float8 NOT NULL,
    lease float8 NOT NULL,
    created_at int8,
    event_id text,
    generation int8,
    expires float8 NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE hookonce.waiting (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key_lock bytea NOT NULL,
    event text NOT NULL
);
CREATE UNIQUE INDEX waiting_event ON hookonce.waiting (key_lock, md5(event));
CREATE INDEX waiting_place ON hookonce.waiting (key_lock, place);

CREATE TABLE hookonce.applications (
    endpoint text NOT NULL,
    mark bytea NOT NULL,
    application json NOT NULL,
    seen float8 NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (endpoint, mark)
);
CREATE TABLE hookonce.activity (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint text NOT NULL,
    line bytea NOT NULL
);
CREATE INDEX activity_by_endpoint ON hookonce.activity (endpoint, place);
CREATE TABLE hookonce.watched (endpoint text PRIMARY KEY, until float8 NOT NULL);
CREATE TABLE hookonce.worker_reports (
    endpoint text NOT NULL,
    worker text NOT NULL,
    seen float8 NOT NULL,
    report bytea NOT NULL,
    PRIMARY KEY (endpoint, worker)
) WITH (fillfactor = 50);

CREATE TABLE hookonce.ignored (
    endpoint text NOT NULL,
    event_type text NOT NULL,
    first int8 NOT NULL,
    last int8 NOT NULL,
    PRIMARY KEY (endpoint, event_type, first)
);
CREATE TABLE hookonce.accepted (key bytea PRIMARY KEY, expires int8 NOT NULL);
INSERT INTO hookonce.format VALUES (1);
