"""Each way to create the tables creates the same tables."""

import re
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from django.apps import apps  # type: ignore[import-untyped] # Django ships no types
from django.db import connections  # type: ignore[import-untyped]  # Django ships no types
from django.db.migrations import Migration, RunPython  # type: ignore[import-untyped]  # Django ships no types
from django.db.migrations.state import ProjectState  # type: ignore[import-untyped]  # Django ships no types
from integrations import django_project  # noqa: F401 - the import configures Django
from sqlalchemy import Connection, MetaData, create_engine, text
from support.postgres import PostgresServer

from hookonce.effects import create_sql
from hookonce.effects import django as django_ledger
from hookonce.effects.sqlalchemy import ledger_tables

COLUMNS = """
    SELECT table_name, column_name, data_type, character_maximum_length, collation_name,
           is_nullable, column_default
    FROM information_schema.columns WHERE table_name LIKE 'hookonce_%' ORDER BY table_name, 1
"""
INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'hookonce_%' ORDER BY 1"


def by_sql(connection: Connection) -> None:
    dialect = connection.dialect.name
    for statement in create_sql(dialect).split(";\n")[:-1]:
        connection.execute(text(statement))


def by_metadata(connection: Connection) -> None:
    metadata = MetaData()
    ledger_tables(metadata)
    metadata.create_all(connection)


def test_the_printed_sql_creates_the_tables_of_the_metadata(postgres: PostgresServer) -> None:
    seen: list[Any] = []
    for make in (by_sql, by_metadata):
        postgres.clear()
        engine = create_engine(postgres.sqlalchemy_url("psycopg"))
        with engine.begin() as connection:
            make(connection)
        engine.dispose()
        seen.append((postgres.execute(COLUMNS), postgres.execute(INDEXES)))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 5 + 7
    assert len(seen[0][1]) == 2 + 2


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_alembic_finds_nothing_to_change_in_the_printed_tables(
    database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    if database == "postgresql":
        url = postgres.sqlalchemy_url("psycopg")
    engine, metadata = create_engine(url), MetaData()
    ledger_tables(metadata)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        made = [name for name, *_ in compare_metadata(context, metadata)]
        assert made.count("add_table") == 2
        by_sql(connection)
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_postgresql_keeps_every_character_of_the_longest_name() -> None:
    """PostgreSQL cuts names to 63 bytes, so the indexes of two ledgers could get the same name."""
    sql = create_sql("postgresql", "t" * 40)
    assert max(map(len, re.findall(r"\w+", sql))) == 63
    with pytest.raises(ValueError, match="40 at most"):
        create_sql("postgresql", "t" * 41)


def test_a_migration_of_django_creates_the_tables_and_drops_them(tmp_path: Path) -> None:
    connections.databases["migrated"] = {
        **connections.databases["default"],
        "NAME": str(tmp_path / "app.db"),
    }
    connection = connections["migrated"]
    try:
        migration = Migration("0002_effects", "shop")
        migration.operations = [RunPython(django_ledger.create_table, django_ledger.drop_table)]
        state = ProjectState.from_apps(apps)
        with connection.schema_editor() as editor:
            migration.apply(state, editor)
        made = set(connection.introspection.table_names())
        assert made == {"hookonce_effects", "hookonce_watermarks"}
        with connection.schema_editor() as editor:
            migration.unapply(state, editor)
        assert connection.introspection.table_names() == []
    finally:
        connection.close()
        del connections["migrated"], connections.databases["migrated"]
