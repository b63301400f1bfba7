"""Each of our ledgers keeps the rules of the contract."""

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from support.postgres import PostgresServer

from hookonce.effects.contract import RULES, WATERMARK_RULES, Rule
from hookonce.effects.contract.rules import (
    a_row_of_an_earlier_transaction_is_not_held,
    a_row_that_is_not_there_is_not_held,
    an_effect_committed_before_its_end_is_no_success,
)
from hookonce.effects.ledger import Effect
from hookonce.effects.sqlite import SQLiteLedger

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

EACH_RULE = pytest.mark.parametrize("rule", [*RULES, *WATERMARK_RULES])

pytestmark = pytest.mark.anyio


@pytest.mark.sample(50)
@EACH_RULE
@pytest.mark.parametrize("name", ON_SQLITE)
async def test_a_ledger_in_sqlite(name: str, rule: Rule, tmp_path: Path) -> None:
    async with sqlite_bench(name, tmp_path) as bench:
        await rule(bench)


@pytest.mark.sample(60)
@EACH_RULE
@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_a_ledger_in_postgresql(name: str, rule: Rule, postgres: PostgresServer) -> None:
    async with postgres_bench(name, postgres) as bench:
        await rule(bench)


class TrustsItsDriver(SQLiteLedger):
    """A ledger that believes what its driver knows about the transaction."""

    def holds(self, transaction: sqlite3.Connection, _: Effect) -> bool:
        return transaction.in_transaction


class TrustsAnyRow(SQLiteLedger):
    """A ledger that looks for any row, not for that of its own transaction."""

    def holds(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        find = "SELECT 1 FROM hookonce_effects WHERE endpoint = ? AND event_id = ? AND handler = ?"
        return transaction.execute(find, effect).fetchone() is not None


class TakesBegunForDone(SQLiteLedger):
    """A ledger whose row says from the beginning that the effect is done."""

    def insert(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        statement = "INSERT INTO hookonce_effects VALUES (?, ?, ?, 1, 0) ON CONFLICT DO NOTHING"
        return transaction.execute(statement, effect).rowcount == 1


@pytest.mark.parametrize(
    ("ledger", "rule"),
    [
        (TrustsItsDriver, a_row_that_is_not_there_is_not_held),
        (TrustsAnyRow, a_row_of_an_earlier_transaction_is_not_held),
        (TakesBegunForDone, an_effect_committed_before_its_end_is_no_success),
    ],
)
async def test_the_contract_fails_a_ledger_that_reports_success_without_proof(
    ledger: type[SQLiteLedger], rule: Rule, tmp_path: Path
) -> None:
    async with sqlite_bench("sqlite3", tmp_path) as bench:
        wrong = replace(bench, ledger=ledger(tmp_path / "app.db"))
        with pytest.raises(AssertionError, match=r"counts as held|has counted as"):
            await rule(wrong)


@pytest.mark.skipif(
    MYSQL_URL is None,
    reason="there is no MySQL or MariaDB; to enable: pip install aiomysql PyMySQL, and"
    f" {MYSQL}=mysql://root@127.0.0.1:3306/test, a database that may be emptied",
)
@EACH_RULE
@pytest.mark.parametrize("name", ON_MYSQL)
async def test_a_ledger_in_mysql(name: str, rule: Rule) -> None:
    pytest.importorskip("aiomysql", reason="aiomysql is not installed")
    pymysql = pytest.importorskip("pymysql", reason="PyMySQL is not installed")
    pymysql.install_as_MySQLdb()  # the name that Django asks for
    assert MYSQL_URL is not None
    async with mysql_bench(name, MYSQL_URL) as bench:
        await rule(bench)
