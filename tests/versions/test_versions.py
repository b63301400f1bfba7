"""The present version opens the files of every release."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool
from support.postgres import PostgresServer
from support.redis_servers import RedisServer
from support.sqlite_files import sqlite_connection

from hookonce import FileSecrets
from hookonce.cli.secrets_file import OpenRotation
from hookonce.effects.probe import check
from hookonce.effects.psycopg import PsycopgLedger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.postgres.schema import FORMATS, schema_sql
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore

from .content import NOW, check_ledger, check_store, write_keys

pytestmark = pytest.mark.anyio

FILES = Path(__file__).with_name("files")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=sorted(folder.name for folder in FILES.iterdir()))
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with copies of the files of a release, also if the checkout is read-only."""
    for file in (FILES / request.param).iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    return tmp_path


@pytest.fixture
def postgres(shared_postgres: PostgresServer) -> PostgresServer:
    """Return a PostgreSQL without a store, whose schema ``public`` is empty."""
    shared_postgres.clear()
    shared_postgres.execute("DROP SCHEMA IF EXISTS hookonce CASCADE")
    return shared_postgres


async def test_a_sqlite_file(release: Path) -> None:
    async with aclosing(SQLiteStore(release / "hooks.db", clock=lambda: NOW)) as store:
        await check_store(store)


def test_the_tables_of_a_format_are_those_of_its_release(release: Path, tmp_path: Path) -> None:
    """If you change a table, append a migration and raise the number of the format.

    Before the release, delete its files and write them again: ``python -m tests.versions 0.1.0``.
    """
    new = tmp_path / "new.db"
    asyncio.run(opened(new))
    (number, tables), (own_number, own_tables) = tables_of(release / "hooks.db"), tables_of(new)
    assert number < own_number or tables == own_tables


async def opened(path: Path) -> None:
    async with aclosing(SQLiteStore(path)) as store:
        await store.open()


def tables_of(path: Path) -> tuple[int, dict[str, str]]:
    with closing(sqlite_connection(path)) as connection:
        rows: Any = connection.execute("SELECT name, sql FROM sqlite_schema").fetchall()
        number: Any = connection.pragma("user_version")
    return number, {name: without_comments(sql or "") for name, sql in rows}


def without_comments(sql: str) -> str:
    return re.sub(r"--[^\n]*|\s+", " ", sql)


async def test_a_prefix_of_redis(release: Path, shared_valkey: RedisServer) -> None:
    shared_valkey.flush()
    lines = (release / "redis.jsonl").read_text().splitlines()
    with shared_valkey.client() as client:
        write_keys(client, [json.loads(line) for line in lines])
    async with aclosing(RedisStore(shared_valkey.url, shards=3, clock=lambda: NOW)) as store:
        await check_store(store)
    shared_valkey.flush()


async def test_a_schema_of_postgresql(release: Path, postgres: PostgresServer) -> None:
    for name in ("store", "rows"):
        postgres.execute((release / f"{name}.postgresql.sql").read_text())
    async with aclosing(PostgresStore(postgres.url, clock=lambda: NOW)) as store:
        await check_store(store)


def test_the_schema_of_a_format_is_that_of_its_release(release: Path) -> None:
    """Like the tables of a SQLite file: a change needs a migration and a new format."""
    released = without_comments((release / "store.postgresql.sql").read_text())
    number = int(released.rpartition("format VALUES (")[2].partition(")")[0])
    assert number < FORMATS[-1] or released == without_comments(schema_sql())


async def test_the_tables_of_a_ledger(release: Path) -> None:
    check_ledger(release / "ledger.db")
    ledger = SQLiteLedger(release / "ledger.db")
    await check(ledger)
    ledger.close()


async def test_the_tables_of_a_ledger_in_postgresql(
    release: Path, postgres: PostgresServer
) -> None:
    for statement in (release / "ledger.postgresql.sql").read_text().split(";\n")[:-1]:
        postgres.execute(statement)
    async with AsyncConnectionPool(postgres.url, open=False) as pool:
        await check(PsycopgLedger(pool))


def test_a_file_of_secrets(release: Path) -> None:
    assert len(FileSecrets(release / "secrets").current()) == 2
    rotation = OpenRotation.of((release / "secrets").read_text())
    assert rotation is not None
    assert rotation.webhook_id == "wh_1"
