"""If a connection is lost during COMMIT, the ledger looks for its row, which decides the answer."""

import time
from typing import Any

import pytest
from support.deliveries import comment, deliver, receiver_on
from support.postgres import PostgresServer
from support.postgres_proxy import Cut, postgres_proxy

from hookonce.effects import create_sql
from hookonce.effects.ledger import is_async_ledger
from hookonce.events import CommentReceived

from .benches import ON_POSTGRES

pytestmark = pytest.mark.anyio


@pytest.fixture
def tables(postgres: PostgresServer) -> PostgresServer:
    for statement in (*create_sql("postgresql").split(";\n")[:-1], "CREATE TABLE done (key text)"):
        postgres.execute(statement)
    return postgres


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_after_a_lost_commit_the_row_is_looked_up(
    name: str, cut: Cut, tables: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    event, runs, is_cut = comment(), 0, False
    async with (
        postgres_proxy(tables.url) as proxy,
        ON_POSTGRES[name](proxy.url, time.time) as parts,
    ):
        receiver = receiver_on()

        async def work(_: CommentReceived, transaction: Any) -> None:
            nonlocal runs
            runs += 1
            await parts["write"](transaction, "once")
            proxy.cut = None if is_cut else cut

        def work_in_a_thread(_: CommentReceived, transaction: Any) -> None:
            nonlocal runs
            runs += 1
            parts["write"](transaction, "once")
            proxy.cut = None if is_cut else cut

        ledger = parts["ledger"]
        handler = work if is_async_ledger(ledger) else work_in_a_thread
        receiver.on(CommentReceived, name="book", within=ledger)(handler)
        status = (await deliver(receiver, event)).status
        assert proxy.cuts == 1
        if cut is Cut.AFTER_COMMIT:
            assert (status, runs) == (200, 1)
            assert "lost the answer to the COMMIT of book" in caplog.text
        else:
            assert (status, runs) == (500, 1)
            assert tables.execute("SELECT key FROM done") == []
            is_cut = True
            assert (await deliver(receiver, event)).status == 200
    assert tables.execute("SELECT key FROM done") == [("once",)]
