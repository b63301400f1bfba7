"""`hookonce chaos` simulates an application with its own database, as an author would write it.

Each module makes its engine, pool or ledger at import, for each kind of ledger and its database.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.postgres import PostgresServer
from support.redis_servers import free_port

from hookonce.effects.table import create_statements

from .running import Result, run

pytestmark = pytest.mark.sample(1, of="file")

HEAD = """
import os

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived

URL = os.environ["DATABASE_URL"]
receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hooks.db")
"""

ASYNC_HANDLER = """
@receiver.on(CommentReceived, within=ledger)
async def note(event: CommentReceived, transaction) -> None:
    await transaction.execute({})
"""
HANDLER = """
@receiver.on(CommentReceived, within=ledger)
def note(event: CommentReceived, transaction) -> None:
    transaction.execute({})
"""

BY_TEXT = 'text("INSERT INTO done VALUES (:id)"), {"id": event.id}'
BY_DOLLAR = '"INSERT INTO done VALUES ($1)", event.id'
BY_PERCENT = '"INSERT INTO done VALUES (%s)", (event.id,)'
BY_MARK = '"INSERT INTO done VALUES (?)", (event.id,)'

SQLALCHEMY = """
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from hookonce.effects.sqlalchemy import SQLAlchemyLedger

engine = create_async_engine(URL)
ledger = SQLAlchemyLedger(async_sessionmaker(engine))
""" + ASYNC_HANDLER.format(BY_TEXT)
SQLALCHEMY_IN_THREADS = """
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from hookonce.effects.sqlalchemy import SyncSQLAlchemyLedger

ledger = SyncSQLAlchemyLedger(sessionmaker(create_engine(URL)))
""" + HANDLER.format(BY_TEXT)
PSYCOPG = """
from psycopg_pool import AsyncConnectionPool

from hookonce.effects.psycopg import PsycopgLedger

ledger = PsycopgLedger(lambda: AsyncConnectionPool(URL, open=False))
""" + ASYNC_HANDLER.format(BY_PERCENT)
PSYCOPG_IN_THREADS = """
from psycopg_pool import ConnectionPool

from hookonce.effects.psycopg import SyncPsycopgLedger

ledger = SyncPsycopgLedger(ConnectionPool(URL, open=True))
""" + HANDLER.format(BY_PERCENT)
ASYNCPG = """
import asyncpg

from hookonce.effects.asyncpg import AsyncpgLedger

ledger = AsyncpgLedger(lambda: asyncpg.create_pool(URL))
""" + ASYNC_HANDLER.format(BY_DOLLAR)
DJANGO = """
from urllib.parse import urlsplit

import django
from django.conf import settings

from hookonce.effects.django import DjangoLedger

place = urlsplit(URL)
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": URL}
if place.scheme:
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": place.path[1:],
        "USER": place.username,
        "HOST": place.hostname,
        "PORT": place.port,
    }
settings.configure(DATABASES={"default": database})
django.setup()


@receiver.on(CommentReceived, within=DjangoLedger())
def note(event: CommentReceived, connection) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO done VALUES (%s)", (event.id,))
"""
SQLITE = """
from hookonce.effects.sqlite import SQLiteLedger

ledger = SQLiteLedger(URL)
""" + HANDLER.format(BY_MARK)
AIOSQLITE = """
from hookonce.effects.aiosqlite import AioSQLiteLedger

ledger = AioSQLiteLedger(URL)
""" + ASYNC_HANDLER.format(BY_MARK)

ON_POSTGRES = {
    "asyncpg": (ASYNCPG, ""),
    "django": (DJANGO, ""),
    "psycopg": (PSYCOPG, ""),
    "psycopg-threads": (PSYCOPG_IN_THREADS, ""),
    "sqlalchemy-asyncpg": (SQLALCHEMY, "+asyncpg"),
    "sqlalchemy-psycopg": (SQLALCHEMY, "+psycopg"),
    "sqlalchemy-psycopg-threads": (SQLALCHEMY_IN_THREADS, "+psycopg"),
}
ON_SQLITE = {
    "aiosqlite": (AIOSQLITE, ""),
    "django": (DJANGO, ""),
    "sqlalchemy-aiosqlite": (SQLALCHEMY, "sqlite+aiosqlite:///"),
    "sqlalchemy-threads": (SQLALCHEMY_IN_THREADS, "sqlite:///"),
    "sqlite3": (SQLITE, ""),
}


def url_on(postgres: PostgresServer, driver: str) -> str:
    return postgres.url.replace("postgresql:", f"postgresql{driver}:")


def expect_each_event_once(folder: Path, url: str, read: Callable[[], list[str]]) -> None:
    arguments = ("chaos", "app:receiver", "--events", "40", "--seed", "7", "--json")
    result = run(*arguments, here=folder, environment={"DATABASE_URL": url})
    assert (result.status, result.errors) == (0, ""), result
    report = json.loads(result.output)
    assert report["injected_faults"], report
    keys = read()
    assert len(keys) == len(set(keys)) == report["handled"] > 0


@pytest.mark.parametrize("kind", ON_POSTGRES)
def test_effects_in_postgresql_happen_once(
    kind: str, shared_postgres: PostgresServer, tmp_path: Path
) -> None:
    module, driver = ON_POSTGRES[kind]
    (tmp_path / "app.py").write_text(HEAD + module)
    shared_postgres.clear()
    for statement in create_statements("postgresql", "hookonce_effects"):
        shared_postgres.execute(statement)
    shared_postgres.execute("CREATE TABLE done (id varchar(100))")

    def read() -> list[str]:
        return [key for (key,) in shared_postgres.execute("SELECT id FROM done")]

    expect_each_event_once(tmp_path, url_on(shared_postgres, driver), read)


@pytest.mark.parametrize("kind", ON_SQLITE)
def test_effects_in_sqlite_happen_once(kind: str, tmp_path: Path) -> None:
    module, scheme = ON_SQLITE[kind]
    (tmp_path / "app.py").write_text(HEAD + module)
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        for statement in create_statements("sqlite", "hookonce_effects"):
            connection.execute(statement)
        connection.execute("CREATE TABLE done (id varchar(100))")
        connection.commit()

        def read() -> list[str]:
            return [key for (key,) in connection.execute("SELECT id FROM done")]

        expect_each_event_once(tmp_path, f"{scheme}app.db", read)


SHARED = """
import os

from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from hookonce import EnvironmentSecrets, Receiver
from hookonce.effects.sqlalchemy import SQLAlchemyLedger
from hookonce.events import CommentReceived

ledger = SQLAlchemyLedger(async_sessionmaker(create_async_engine(os.environ["DATABASE_URL"])))
receivers = [
    Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hooks.db", endpoint=name)
    for name in ("acme", "bakery")
]


async def note(event: CommentReceived, session) -> None:
    await session.execute(text("INSERT INTO done VALUES (:id)"), {"id": event.id})


for receiver in receivers:
    receiver.on(CommentReceived, within=ledger)(note)
"""


@pytest.mark.costs("2 s")
def test_receivers_that_share_an_engine_are_simulated_in_one_event_loop(
    shared_postgres: PostgresServer, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(SHARED)
    shared_postgres.clear()
    for statement in create_statements("postgresql", "hookonce_effects"):
        shared_postgres.execute(statement)
    shared_postgres.execute("CREATE TABLE done (id varchar(100))")
    result = run(
        *("chaos", "app:receivers", "--events", "20", "--seed", "7", "--json"),
        here=tmp_path,
        environment={"DATABASE_URL": url_on(shared_postgres, "+asyncpg")},
    )
    assert (result.status, result.errors) == (0, "")
    first, second = (json.loads(line) for line in result.output.splitlines())
    assert (first["endpoint"], second["endpoint"]) == ("acme", "bakery")
    assert first | {"endpoint": "bakery"} == second


def run_fails(folder: Path, url: str) -> Result:
    return run("chaos", "app:receiver", here=folder, environment={"DATABASE_URL": url})


@pytest.mark.parametrize("kind", ON_POSTGRES)
def test_a_missing_table_of_a_ledger_is_reported_in_one_line(
    kind: str, shared_postgres: PostgresServer, tmp_path: Path
) -> None:
    module, driver = ON_POSTGRES[kind]
    (tmp_path / "app.py").write_text(HEAD + module)
    shared_postgres.clear()
    run_fails(tmp_path, url_on(shared_postgres, driver)).says("hookonce ledger sql", status=2)


@pytest.mark.parametrize("kind", ON_POSTGRES)
def test_a_server_that_is_down_is_reported_in_one_line(kind: str, tmp_path: Path) -> None:
    module, driver = ON_POSTGRES[kind]
    (tmp_path / "app.py").write_text(HEAD + module)
    url = f"postgresql{driver}://postgres@127.0.0.1:{free_port()}/postgres"
    run_fails(tmp_path, url).says("Ledger ", status=2)
