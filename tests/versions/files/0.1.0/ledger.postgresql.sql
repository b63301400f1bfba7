CREATE TABLE IF NOT EXISTS hookonce_effects (
    endpoint varchar(64) COLLATE "C" NOT NULL,
    event_id varchar(512) COLLATE "C" NOT NULL,
    handler varchar(200) COLLATE "C" NOT NULL,
    recorded_at bigint NOT NULL,
    generation integer NOT NULL DEFAULT 0,
    PRIMARY KEY (endpoint, event_id, handler)
);
CREATE INDEX IF NOT EXISTS hookonce_effects_recorded_at ON hookonce_effects (recorded_at);
CREATE TABLE IF NOT EXISTS hookonce_watermarks (
    endpoint varchar(64) COLLATE "C" NOT NULL,
    handler varchar(200) COLLATE "C" NOT NULL,
    resource varchar(200) COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    event_id varchar(512) COLLATE "C" NOT NULL,
    recorded_at bigint NOT NULL,
    generation integer NOT NULL DEFAULT 0,
    PRIMARY KEY (endpoint, handler, resource)
);
CREATE INDEX IF NOT EXISTS hookonce_watermarks_recorded_at ON hookonce_watermarks (recorded_at);
