"""`hookonce try` runs a changed handler on real events, and rolls back."""

import asyncio
import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest
from support.postgres import PostgresServer, postgres_server

from hookonce.clock import system_clock
from hookonce.effects import create_sql
from hookonce.samples.events import event_body
from hookonce.stores.handled import Keeping
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, DeadReason, Delivery, new_token

from .running import Result, on_a_terminal, run, running

pytestmark = pytest.mark.sample(2, of="file")

APP = """
import sqlite3
import time
from pathlib import Path

from hookonce import EnvironmentSecrets, Receiver
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")
ledger = SQLiteLedger("shop.db")
PRICES = {"evt_1": 3, "evt_2": 4}


@receiver.on(CommentReceived, name="book", within=ledger)
def book(event: CommentReceived, connection: sqlite3.Connection) -> None:
    print("booking", event.id, flush=True)
    if Path("stop").exists():
        time.sleep(60)
    connection.execute("INSERT INTO orders VALUES (?, ?)", (event.id, PRICES[event.id]))


@receiver.on(CommentReceived, name="commit", within=ledger)
def commit(event: CommentReceived, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO orders VALUES (?, 0)", (event.id,))
    connection.execute("COMMIT")


@receiver.on(CommentReceived, name="mail")
async def mail(event: CommentReceived) -> None:
    with open("mails", "a") as mails:
        mails.write(f"{event.id}\\n")


@receiver.on("channel.*", name="watch", within=ledger)
def watch(event, connection) -> None: ...
"""


async def _keep(file: Path, handled: list[str], dead: list[str], endpoint: str) -> None:
    async with aclosing(SQLiteStore(file)) as store:
        for event_id in (*handled, *dead):
            body = event_body("comment.received", event_id=event_id)
            one = Delivery(endpoint, event_id, "comment.received", system_clock(), body)
            claim = await store.claim(one.key, new_token(), 30.0)
            assert isinstance(claim, Claimed)
            if event_id in handled:
                await store.complete_and_keep(claim, one, {"book"}, Keeping(1000.0))
            else:
                await store.bury(claim, DeadReason.EXHAUSTED, delivery=one)


def keep(here: Path, *handled: str, dead: str = "", endpoint: str = "default") -> None:
    """Put handled events and dead letters into the store of the receiver."""
    asyncio.run(_keep(here / "hookonce.db", list(handled), dead.split(), endpoint))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(create_sql("sqlite"))
        connection.execute("CREATE TABLE orders (event_id text, price int)")
    return tmp_path


def orders(here: Path) -> list[str]:
    with closing(sqlite3.connect(here / "shop.db")) as connection:
        assert connection.execute("SELECT * FROM hookonce_effects").fetchall() == []
        return [key for (key,) in connection.execute("SELECT event_id FROM orders")]


def attempt(here: Path, *arguments: str) -> Result:
    return run("try", "app:receiver", *arguments, here=here)


def test_a_handler_that_raises_nothing_exits_with_0_and_changes_nothing(here: Path) -> None:
    keep(here, "evt_1", dead="evt_2")
    result = attempt(here, "--handler", "book", "--since", "1h")
    assert (result.status, result.stores) == (0, (f"sqlite:///{here}/hookonce.db",))
    *printed, summary = result.output.splitlines()
    assert printed == ["booking evt_2", "booking evt_1"]
    assert summary.startswith("book: 2 tried, 0 raised; ")
    assert summary.endswith("; rolled back; rows that would have changed: all tables 2")
    assert orders(here) == []


def test_what_a_handler_raises_is_grouped_with_its_lines_and_no_body(here: Path) -> None:
    many = [f"evt_{number}" for number in range(1, 10)]
    keep(here, *many)
    result = attempt(here, "--handler", "book")
    assert result.status == 1
    error, line, summary = result.output.splitlines()[-3:]
    assert error == (
        "book raised KeyError: 'evt_3' for evt_3, evt_4, evt_5, evt_6, evt_7 and 2 more"
    )
    assert line.startswith("  app.py, line 20, in book: connection.execute(")
    assert summary.startswith("book: 9 tried, 7 raised; ")
    assert "walnut" not in result.output + result.errors
    assert orders(here) == []


def test_programs_read_a_record_for_each_event_and_a_summary(here: Path) -> None:
    keep(here, "evt_1", "evt_3")
    result = attempt(here, "--handler", "book", "--json")
    assert result.status == 1
    first, second, summary = map(json.loads, result.output.splitlines())
    assert first.pop("seconds") > 0
    assert first == {
        "id": "evt_1",
        "endpoint": "default",
        "type": "comment.received",
        "kept": "handled",
        "error": None,
        "lines": [],
        "rows": {"all tables": 1},
        "has_committed": False,
    }
    assert (second["error"], second["rows"]) == ("KeyError: 'evt_3'", None)
    assert second["lines"][0].startswith("app.py, line 20, in book: ")
    assert summary.pop("seconds") > 0
    assert summary == {"tried": 2, "raised": 1, "committed": 0, "rows": {"all tables": 1}}


def test_a_handler_that_commits_is_named_and_exits_with_1(here: Path) -> None:
    keep(here, "evt_1", "evt_2")
    result = attempt(here, "--handler", "commit")
    assert result.status == 1
    assert "commit committed its transaction itself for evt_1: these changes are" in result.output
    assert "stopped: its handler ends the transaction itself" in result.output
    assert orders(here) == ["evt_1"]


def test_without_a_ledger_a_handler_runs_for_real(here: Path) -> None:
    keep(here, "evt_1")
    result = attempt(here, "--handler", "mail", "--for-real")
    assert result.status == 0
    assert result.output.endswith("; nothing was rolled back\n")
    assert (here / "mails").read_text() == "evt_1\n"


@pytest.mark.parametrize(
    ("options", "summary"),
    [
        (["book", "--limit", "1"], "1 tried, 1 raised"),
        (["book", "--kept", "handled"], "2 tried, 0 raised"),
        (["book", "--kept", "dead"], "1 tried, 1 raised"),
        (["book", "--where", "id=evt_2"], "1 tried, 0 raised"),
        (["book", "--type", "message.received"], "the store keeps no event for book"),
        (["book", "--since", "2100-01-01"], "the store keeps no event for book"),
        (["watch"], "the store keeps no event for watch"),
    ],
)
def test_filters_and_a_limit_choose_the_events(
    options: list[str], summary: str, here: Path
) -> None:
    keep(here, "evt_1", "evt_2", dead="evt_3")
    assert summary in attempt(here, "--handler", *options).output


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--handler", "look"], "there is no handler 'look'; there is book, commit, mail, watch"),
        (["--handler", "book", "--endpoint", "x"], "there is no endpoint 'x'; there is default"),
        (["--handler", "mail"], "mail runs without a ledger, so nothing can roll"),
        (["--handler", "book", "--for-real"], "book runs within a ledger"),
        (["--handler", "book"], "SQLiteLedger cannot record effects"),
        ([], "Missing option '--handler'"),
    ],
)
def test_what_cannot_be_tried_is_said_in_one_line(
    options: list[str], error: str, here: Path
) -> None:
    keep(here, "evt_1")
    (here / "shop.db").unlink()
    attempt(here, *options).says(error, status=2)
    assert not (here / "mails").exists()


def test_without_its_store_nothing_is_tried_and_no_store_is_made(here: Path) -> None:
    attempt(here, "--handler", "book").says("there is no file", status=2)
    assert not (here / "hookonce.db").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_trial_is_rolled_back(here: Path, number: signal.Signals) -> None:
    keep(here, "evt_1", "evt_2")
    (here / "stop").touch()
    with running("try", "app:receiver", "--handler", "book", here=here) as process:
        process.printed("booking evt_1")
        process.signal(number)
        process.ended()
    assert "Traceback" not in process.errors
    assert orders(here) == []


SLOW = """
import asyncio

from hookonce import EnvironmentSecrets, Receiver
from hookonce.effects.aiosqlite import AioSQLiteLedger
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


@receiver.on(CommentReceived, name="book", within=AioSQLiteLedger("shop.db"))
async def book(event, connection) -> None:
    await connection.execute("INSERT INTO orders VALUES (?, 0)", (event.id,))
    print("booking", event.id, flush=True)
    if event.id == "evt_2":
        await asyncio.Event().wait()
"""


def test_an_interrupted_command_says_what_it_has_tried(here: Path) -> None:
    keep(here, "evt_1", "evt_2")
    (here / "app.py").write_text(SLOW)
    with running("try", "app:receiver", "--handler", "book", here=here) as process:
        process.printed("booking evt_2")
        process.signal(signal.SIGINT)
        result = process.ended()
    assert result.status == 130
    assert "stopped: book: 1 tried, 0 raised; " in result.output
    assert orders(here) == []


def test_a_killed_trial_leaves_nothing(here: Path) -> None:
    keep(here, "evt_1")
    (here / "stop").touch()
    with running("try", "app:receiver", "--handler", "book", here=here) as process:
        process.printed("booking evt_1")
        process.signal(signal.SIGKILL)
        process.ended()
    assert orders(here) == []
    (here / "stop").unlink()
    assert attempt(here, "--handler", "book").status == 0


def test_a_terminal_shows_the_same_summary(here: Path) -> None:
    keep(here, "evt_1")
    shown = on_a_terminal("try", "app:receiver", "--handler", "book", here=here, columns=200)
    assert "book: 1 tried, 0 raised; " in shown


def test_a_handler_of_two_receivers_is_tried_at_both_endpoints(here: Path) -> None:
    keep(here, "evt_1")
    keep(here, "evt_2", endpoint="social")
    both = 'both = [receiver, receiver.copy(endpoint="social")]\n'
    (here / "app.py").write_text(APP + both)
    at_both = run("try", "app:both", "--handler", "book", here=here)
    assert "book: 2 tried, 0 raised; " in at_both.output
    one = run("try", "app:both", "--handler", "book", "--endpoint", "social", here=here)
    assert one.output.splitlines()[0] == "booking evt_2"


IN_POSTGRES = """
import os

from psycopg_pool import AsyncConnectionPool

from hookonce import EnvironmentSecrets, Receiver
from hookonce.effects.psycopg import PsycopgLedger
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")
ledger = PsycopgLedger(lambda: AsyncConnectionPool(os.environ["DATABASE_URL"], open=False))


@receiver.on(CommentReceived, name="book", within=ledger)
async def book(event, connection) -> None:
    await connection.execute("INSERT INTO orders VALUES (%s)", [event.id])
    await connection.execute("UPDATE stock SET left_over = left_over - 1")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running_server:
        yield running_server


def test_postgresql_tells_the_rows_of_each_table(here: Path, server: PostgresServer) -> None:
    for statement in (
        *create_sql("postgresql").split(";\n")[:-1],
        "CREATE TABLE orders (event_id text)",
        "CREATE TABLE stock (left_over int)",
        "INSERT INTO stock VALUES (5), (6)",
    ):
        server.execute(statement)
    (here / "app.py").write_text(IN_POSTGRES)
    keep(here, "evt_1", "evt_2", dead="evt_3")
    result = run(
        *("try", "app:receiver", "--handler", "book"),
        here=here,
        environment={"DATABASE_URL": server.url},
    )
    assert (result.status, result.errors) == (0, "")
    assert result.output.endswith("; rows that would have changed: orders 3, stock 6\n")
    assert server.execute("SELECT * FROM orders") == []
    assert server.execute("SELECT sum(left_over) FROM stock") == [(11,)]
    assert server.execute("SELECT * FROM hookonce_effects") == []
