"""Every ledger of ours keeps to the contract."""

import asyncio
import os
from pathlib import Path

import pytest
from support.postgres import PostgresServer

from hookonce.effects.contract import MARK_RULES, RULES, Rule

from .benches import (
    ON_MYSQL,
    ON_POSTGRES,
    ON_SQLITE,
    mysql_bench,
    postgres_bench,
    sqlite_bench,
)

MYSQL = "HOOKONCE_TEST_MYSQL"
MYSQL_URL = os.environ.get(MYSQL)  # such as mysql://root@127.0.0.1:3306/test

EACH_RULE = pytest.mark.parametrize("rule", [*RULES, *MARK_RULES], ids=lambda rule: rule.__name__)


@pytest.mark.sample(50)
@EACH_RULE
@pytest.mark.parametrize("name", ON_SQLITE)
def test_a_ledger_in_sqlite(name: str, rule: Rule, tmp_path: Path) -> None:
    asyncio.run(rule(sqlite_bench(name, tmp_path)))


@pytest.mark.sample(60)
@EACH_RULE
@pytest.mark.parametrize("name", ON_POSTGRES)
def test_a_ledger_in_postgresql(name: str, rule: Rule, postgres: PostgresServer) -> None:
    asyncio.run(rule(postgres_bench(name, postgres)))


@pytest.mark.skipif(
    MYSQL_URL is None,
    reason="there is no MySQL or MariaDB; to enable: pip install aiomysql PyMySQL, and"
    f" {MYSQL}=mysql://root@127.0.0.1:3306/test, a database that may be emptied",
)
@EACH_RULE
@pytest.mark.parametrize("name", ON_MYSQL)
def test_a_ledger_in_mysql(name: str, rule: Rule) -> None:
    pytest.importorskip("aiomysql", reason="aiomysql is not installed")
    pymysql = pytest.importorskip("pymysql", reason="PyMySQL is not installed")
    pymysql.install_as_MySQLdb()  # the name that Django asks for
    assert MYSQL_URL is not None
    asyncio.run(rule(mysql_bench(name, MYSQL_URL)))
