"""The PostgreSQL store, for many machines: PostgreSQL 15 to 18, also behind PgBouncer."""

from ...errors import NeedsExtra

with NeedsExtra("postgres", "the PostgreSQL store", "psycopg"):
    from .schema import schema_sql
    from .settings import Durability
    from .store import PostgresStore

__all__ = ["Durability", "PostgresStore", "schema_sql"]
