"""A receiver's start and ``hookonce doctor`` report faults of a ledger before the first event."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.deliveries import answer_of, comment, deliver, receiver_on

from hookonce import Receiver
from hookonce.cli.commands import cli
from hookonce.effects import TABLE, create_sql
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.effects.table import create_statements
from hookonce.errors import LedgerError
from hookonce.events import CommentReceived
from hookonce.operations.doctor import Level
from hookonce.operations.doctor.handlers import ledger_findings

pytestmark = pytest.mark.anyio

OLD = "CREATE TABLE hookonce_effects (endpoint text, event_id text, recorded_at bigint)"
NOT_UNIQUE = "CREATE TABLE hookonce_effects (endpoint, event_id, handler, recorded_at, generation)"
EFFECTS, WATERMARKS = create_statements("sqlite", TABLE)[::2]  # skips the CREATE INDEX statements
GENERATION = "    generation integer NOT NULL DEFAULT 0,\n"
NO_KEY = WATERMARKS.replace("PRIMARY KEY (endpoint, handler, resource)", "PRIMARY KEY (created_at)")


def with_table(folder: Path, *statements: str) -> Path:
    file = folder / "app.db"
    with closing(sqlite3.connect(file)) as connection:
        for statement in statements:
            connection.execute(statement)
    return file


def receiver_within(ledger: SQLiteLedger) -> Receiver:
    receiver = receiver_on()
    receiver.on(CommentReceived, name="book", within=ledger)(book)
    return receiver


def book(_: CommentReceived, __: sqlite3.Connection) -> None: ...


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        ((), "no such table: hookonce_effects.*hookonce ledger sql"),
        ((OLD,), "has no column named handler.*hookonce ledger sql"),
        ((NOT_UNIQUE,), "SQLiteLedger would record an effect twice: its table is old"),
        (
            (EFFECTS,),
            "SQLiteLedger cannot.*no such table: hookonce_watermarks.*hookonce ledger sql",
        ),
        (
            (EFFECTS.replace(GENERATION, ""), WATERMARKS),
            "has no column named generation.*hookonce ledger sql",
        ),
        (
            (EFFECTS, WATERMARKS.replace(GENERATION, "")),
            "has no column named generation.*hookonce ledger sql",
        ),
        ((EFFECTS, NO_KEY), "does not match any PRIMARY KEY.*hookonce ledger sql"),
    ],
)
async def test_a_missing_or_old_table_is_an_error_at_the_start(
    statements: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    ledger = SQLiteLedger(with_table(tmp_path, *statements))
    with pytest.raises(LedgerError, match=says):
        async with receiver_within(ledger):
            pass
    [finding] = await ledger_findings(receiver_within(ledger).handlers, None)
    assert finding.level is Level.FAULT
    assert "hookonce ledger sql" in finding.fix


async def test_without_the_check_at_the_start_the_first_event_reports_missing_tables(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receiver_within(SQLiteLedger(tmp_path / "app.db"))
    assert answer_of(await deliver(receiver, comment())) == (500, "handler_failed")
    assert "do its tables exist, as `hookonce ledger sql` prints them" in caplog.text


async def test_a_working_ledger_passes_the_check_which_leaves_no_rows(tmp_path: Path) -> None:
    ledger = SQLiteLedger(with_table(tmp_path))
    ledger.create_table()
    ledger.create_table()  # the second call changes nothing
    async with receiver_within(ledger):
        pass
    [finding] = await ledger_findings(receiver_within(ledger).handlers, None)
    assert (finding.level, finding.found) == (
        Level.OK,
        "SQLiteLedger records the effects of handlers: 1",
    )
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        for table in ("hookonce_effects", "hookonce_watermarks"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    ledger.close()


async def test_a_ledger_must_not_keep_rows_shorter_than_the_store(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "app.db", retention=timedelta(days=3))
    ledger.create_table()
    with pytest.raises(LedgerError, match=r"rows for 3 days, and the store .* for 15 days"):
        async with receiver_within(ledger):
            pass
    ledger.close()
    short = SQLiteLedger(tmp_path / "app.db", retention=timedelta(hours=1))
    with pytest.raises(ValueError, match="retention must be at least 26 hours"):
        receiver_within(short)
    short.close()


def test_a_commit_waits_for_the_drive_on_macos_too(tmp_path: Path) -> None:
    with SQLiteLedger(tmp_path / "app.db").transaction() as connection:
        for setting in ("fullfsync", "checkpoint_fullfsync"):
            assert connection.execute(f"PRAGMA {setting}").fetchone() == (1,)


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "sqlite"])
def test_the_command_prints_the_tables(dialect: str) -> None:
    result = CliRunner().invoke(cli, ["ledger", "sql", "--dialect", dialect])
    assert (result.exit_code, result.output) == (0, create_sql(dialect))
    other = CliRunner().invoke(cli, ["ledger", "sql", "--dialect", dialect, "--table", "app.done"])
    assert "CREATE TABLE IF NOT EXISTS app.done (" in other.output
    assert "CREATE TABLE IF NOT EXISTS app.done_watermarks (" in other.output


def test_the_command_refuses_a_name_that_needs_quoting() -> None:
    arguments = ["ledger", "sql", "--dialect", "sqlite", "--table", "a b"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "a table's name is letters" in result.output
