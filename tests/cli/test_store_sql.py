"""`hookonce store sql` prints the tables' SQL, for a PostgreSQL role that may not create tables."""

from pathlib import Path

import psycopg
import pytest
from support.postgres import PostgresServer

from .inboxes import APP, deliver, journal, url_of
from .running import SECRET, eventually, invoke, running

pytestmark = pytest.mark.sample(2, of="file")


def test_the_printed_tables_are_those_that_the_store_makes(postgres: PostgresServer) -> None:
    columns = (
        "SELECT table_name, column_name, data_type, is_nullable, column_default"
        " FROM information_schema.columns WHERE table_schema = 'hookonce' ORDER BY 1, 2"
    )
    printed = invoke("store", "sql")
    assert printed.status == 0
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(printed.output.encode())
    by_hand = postgres.execute(columns)
    assert by_hand
    assert "depth: 0\n" in invoke("inbox", "stats", postgres.url).output
    postgres.execute("DROP SCHEMA hookonce CASCADE")
    invoke("inbox", "stats", postgres.url)
    assert postgres.execute(columns) == by_hand


def test_store_sql_accepts_the_name_of_a_schema() -> None:
    assert "CREATE TABLE shop.entries" in invoke("store", "sql", "--schema", "shop").output
    invoke("store", "sql", "--schema", "a b").says("schema takes 1 to 63 small letters")


def test_a_store_in_postgresql_is_upgraded_and_pruned_but_not_copied(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    upgraded = invoke("store", "upgrade", postgres.url)
    assert upgraded.output == "the store has the newest format, 1\n"
    assert invoke("inbox", "prune", postgres.url).status == 0
    copied = invoke("store", "backup", postgres.url, str(tmp_path / "copy.db"))
    copied.says("back up PostgreSQL or Redis as its manual says")


def test_a_server_and_a_worker_share_a_store_in_postgresql(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    setting = {"STORE": postgres.url}
    serving = ("serve", "app:receiver", "--port", "0")
    with (
        running(*serving, here=tmp_path, secrets=[SECRET], environment=setting) as server,
        running("worker", "app:receiver", here=tmp_path, secrets=[SECRET], environment=setting),
    ):
        names = [f"evt_{number}" for number in range(5)]
        for name in names:
            assert deliver(url_of(server), name) == (202, "stored")
        handled = [f"finished {name} 1" for name in names]
        eventually(lambda: set(handled) <= set(journal(tmp_path)), what="all are handled")
        assert deliver(url_of(server), "evt_0")[0] == 200
