"""Settings of the server, and rights of the role, that put events at risk."""

from __future__ import annotations

from typing import Any

from .schema import BODY_PARTS
from .settings import PostgresSettings

CANNOT_EMPTY = (
    "the role of the database may not TRUNCATE the tables of bodies, so the disk space of handled"
    " events is never freed; let the owner of the schema run GRANT TRUNCATE ON ALL TABLES IN SCHEMA"
    " {schema} TO the role"
)

SETTINGS = f"""
SELECT current_setting('fsync')::bool, current_setting('full_page_writes')::bool,
       current_setting('synchronous_standby_names') <> '', (
           SELECT bool_and(has_table_privilege(
               ('{{schema}}.bodies_' || part)::regclass, 'TRUNCATE'))
           FROM generate_series(0, {BODY_PARTS - 1}) AS part
       )
"""
"""Returns the row that ``problems`` reads."""


def problems(row: tuple[Any, ...], settings: PostgresSettings) -> list[str]:
    """Return a warning for each problem, in the form "problem; remedy"."""
    syncs, writes_pages, has_standbys, may_empty = row
    found = []
    if not syncs:
        found.append(
            "the PostgreSQL server has fsync off, so a crash of its machine may lose every event;"
            " set fsync to on"
        )
    elif not writes_pages:
        found.append(
            "the PostgreSQL server has full_page_writes off, so a crash of its machine may damage"
            " the store; set full_page_writes to on unless the file system writes whole pages"
        )
    if settings.commit == "remote_apply" and not has_standbys:
        found.append(
            "durability=remote_apply waits for no standby, because the PostgreSQL server's"
            " synchronous_standby_names is empty; name the standbys there"
        )
    if not may_empty:
        found.append(CANNOT_EMPTY.format(schema=settings.schema))
    return found
