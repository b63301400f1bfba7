"""Each of our ledgers keeps the rules of the contract.

A generation is a number: 0 for an event's first handling, and higher for each later replay.
"""

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from support.postgres import PostgresServer

from hookonce.effects.contract import RULES, WATERMARK_RULES, Rule
from hookonce.effects.contract.generations import (
    a_generation_at_the_same_time_works_once,
    a_generation_committed_before_its_end_is_no_success,
    a_generation_needs_no_earlier_one,
    a_later_generation_does_the_effect_once_more,
    a_row_of_an_earlier_generation_is_not_held,
)
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


@pytest.mark.sample(30)
@EACH_RULE
@pytest.mark.parametrize("name", ON_SQLITE)
async def test_a_ledger_in_sqlite_keeps_the_rule(name: str, rule: Rule, tmp_path: Path) -> None:
    async with sqlite_bench(name, tmp_path) as bench:
        await rule(bench)


@pytest.mark.sample(30)
@EACH_RULE
@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_a_ledger_in_postgresql_keeps_the_rule(
    name: str, rule: Rule, postgres: PostgresServer
) -> None:
    async with postgres_bench(name, postgres) as bench:
        await rule(bench)


class TrustsItsDriver(SQLiteLedger):
    """A ledger that only asks the driver whether the transaction is still open."""

    def holds(self, transaction: sqlite3.Connection, _: Effect) -> bool:
        return transaction.in_transaction


class TrustsAnyRow(SQLiteLedger):
    """A ledger that takes the row of any transaction for its own row."""

    def holds(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        find = "SELECT 1 FROM hookonce_effects WHERE endpoint = ? AND event_id = ? AND handler = ?"
        return transaction.execute(find, effect[:3]).fetchone() is not None


class TakesBegunForDone(SQLiteLedger):
    """A ledger whose row says from the beginning that the effect is done."""

    def insert(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        statement = "INSERT INTO hookonce_effects VALUES (?, ?, ?, 1, 0) ON CONFLICT DO NOTHING"
        return transaction.execute(statement, effect[:3]).rowcount == 1


class IgnoresGenerations(SQLiteLedger):
    """A ledger that takes every replay for the first handling."""

    def insert(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        return super().insert(transaction, effect._replace(generation=0))


class NeedsAnEarlierRow(SQLiteLedger):
    """A ledger that records a replay only if it has a row of the first handling."""

    def insert(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        if effect.generation:
            find = "SELECT 1 FROM hookonce_effects WHERE event_id = ?"
            if transaction.execute(find, (effect.event_id,)).fetchone() is None:
                return False
        return super().insert(transaction, effect)


class BeginsEveryGeneration(SQLiteLedger):
    """A ledger that lets a replay run even if its row already has the replay's generation."""

    def insert(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        table, key = "hookonce_effects", "endpoint = ? AND event_id = ? AND handler = ?"
        if effect.generation:
            lower = f"UPDATE {table} SET generation = -1 WHERE {key}"
            transaction.execute(lower, effect[:3])
        return super().insert(transaction, effect)


class ForgetsThatItBegan(SQLiteLedger):
    """A ledger whose row says that the effect is done as soon as a replay begins."""

    def insert(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        has_begun = super().insert(transaction, effect)
        if has_begun and effect.generation:
            transaction.execute("UPDATE hookonce_effects SET recorded_at = 1")
        return has_begun


@pytest.mark.parametrize(
    ("ledger", "rule"),
    [
        (TrustsItsDriver, a_row_that_is_not_there_is_not_held),
        (TrustsAnyRow, a_row_of_an_earlier_transaction_is_not_held),
        (TrustsAnyRow, a_row_of_an_earlier_generation_is_not_held),
        (TakesBegunForDone, an_effect_committed_before_its_end_is_no_success),
        (IgnoresGenerations, a_later_generation_does_the_effect_once_more),
        (NeedsAnEarlierRow, a_generation_needs_no_earlier_one),
        (BeginsEveryGeneration, a_later_generation_does_the_effect_once_more),
        (BeginsEveryGeneration, a_generation_at_the_same_time_works_once),
        (ForgetsThatItBegan, a_generation_committed_before_its_end_is_no_success),
    ],
)
async def test_the_contract_fails_a_ledger_that_reports_success_without_proof(
    ledger: type[SQLiteLedger], rule: Rule, tmp_path: Path
) -> None:
    async with sqlite_bench("sqlite3", tmp_path) as bench:
        wrong = replace(bench, ledger=ledger(tmp_path / "app.db"))
        with pytest.raises(AssertionError, match=r"counts as held|counted as|ended as"):
            await rule(wrong)


@pytest.mark.skipif(
    MYSQL_URL is None,
    reason="there is no MySQL or MariaDB; to enable: pip install aiomysql PyMySQL, and"
    f" {MYSQL}=mysql://root@127.0.0.1:3306/test, a database that may be emptied",
)
@EACH_RULE
@pytest.mark.parametrize("name", ON_MYSQL)
async def test_a_ledger_in_mysql_keeps_the_rule(name: str, rule: Rule) -> None:
    pytest.importorskip("aiomysql", reason="aiomysql is not installed")
    pymysql = pytest.importorskip("pymysql", reason="PyMySQL is not installed")
    pymysql.install_as_MySQLdb()  # Django imports MySQLdb
    assert MYSQL_URL is not None
    async with mysql_bench(name, MYSQL_URL) as bench:
        await rule(bench)
