"""A simulation of handlers within each kind of ledger, on real databases.

Database drivers wait in threads, or for sockets of the event loop. Virtual time must stand still
during such a wait, but a connection that is idle in a pool must not stop virtual time.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped] # asyncpg has no type annotations
import pytest
from _pytest.mark import ParameterSet
from effects.benches import ON_POSTGRES, ON_SQLITE, TABLE
from support.postgres import PostgresServer
from support.waiting import PATIENCE_SECONDS

from hookonce import Event, Receiver
from hookonce.clock import system_clock
from hookonce.effects.ledger import is_async_ledger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.effects.table import create_statements
from hookonce.simulation import Mode, SimulationReport
from hookonce.simulation.simulation import Drawing, Simulation
from hookonce.simulation.virtual_loop import VirtualLoop, run_virtually
from hookonce.verification.secrets import new_secret

EVENTS = 12


@pytest.fixture
def postgres(shared_postgres: PostgresServer) -> PostgresServer:
    """Return a PostgreSQL server with the tables of a ledger and of the handler."""
    shared_postgres.clear()
    for statement in (*create_statements("postgresql", "hookonce_effects"), TABLE):
        shared_postgres.execute(statement)
    return shared_postgres


def simulated(opened: Callable[..., Any], url: str, store: str, mode: Mode) -> SimulationReport:
    """Simulate a handler that writes the ids of its events within a ledger."""

    async def main(loop: VirtualLoop) -> SimulationReport:
        # A pool belongs to the loop that opened it, but `simulate` would make a loop of its own.
        async with opened(url, system_clock) as parts:
            receiver = Receiver(secrets=new_secret(), store="memory://")
            ledger, write = parts["ledger"], parts["write"]
            if is_async_ledger(ledger):

                @receiver.on("*", name="write", within=ledger)
                async def handler(event: Event[object], transaction: Any) -> None:
                    await write(transaction, event.id)

            else:

                @receiver.on("*", name="write", within=ledger)
                def handler_in_thread(event: Event[object], transaction: Any) -> None:
                    write(transaction, event.id)

            drawing = Drawing(EVENTS, chaos=0.3, seed=7, channels=None)
            return await Simulation(receiver, loop, store, mode, drawing).run()

    return run_virtually(main)


def expect_once(
    opened: Callable[..., Any], url: str, read: Callable[[], list[str]], store: str, mode: Mode
) -> None:
    """Expect every event to be written once, and the same report when the seed is used again."""
    first = simulated(opened, url, store, mode)
    assert first.passed, first.findings[:3]
    assert first.injected
    assert first.handled == len(read()) == len(set(read())) == EVENTS
    again = simulated(opened, url, store, mode)
    assert again == replace(first, hours=again.hours)
    assert again.hours == pytest.approx(first.hours)


ALWAYS = {
    ("aiosqlite", Mode.INLINE),
    ("sqlite3", Mode.INBOX),
    ("sqlalchemy-asyncpg", Mode.INBOX),
    ("psycopg", Mode.INLINE),
}


def cases(kinds: Iterable[str]) -> list[ParameterSet]:
    """Return each kind of ledger in each mode; most of these cases run only with ``-m full``."""
    return [
        pytest.param(kind, mode, marks=() if (kind, mode) in ALWAYS else pytest.mark.full("1 s"))
        for kind in kinds
        for mode in (Mode.INLINE, Mode.INBOX)
    ]


@pytest.mark.parametrize(("kind", "mode"), cases(ON_SQLITE))
def test_a_simulation_within_a_ledger_in_sqlite_has_each_effect_once(
    kind: str, mode: Mode, tmp_path: Path
) -> None:
    file = str(tmp_path / "app.db")
    SQLiteLedger(file).create_table()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(TABLE)

        def read() -> list[str]:
            return [key for (key,) in connection.execute("SELECT key FROM done")]

        expect_once(ON_SQLITE[kind], file, read, f"sqlite:///{tmp_path}/hooks.db", mode)


@pytest.mark.parametrize(("kind", "mode"), cases(ON_POSTGRES))
def test_a_simulation_within_a_ledger_in_postgresql_has_each_effect_once(
    kind: str, mode: Mode, postgres: PostgresServer, tmp_path: Path
) -> None:
    def read() -> list[str]:
        return [key for (key,) in postgres.execute("SELECT key FROM done")]

    store = f"sqlite:///{tmp_path}/hooks.db"
    expect_once(ON_POSTGRES[kind], postgres.url, read, store, mode)


@pytest.mark.full("2 s")
def test_a_connection_that_listens_does_not_stop_virtual_time(postgres: PostgresServer) -> None:
    async def main(loop: VirtualLoop) -> float:
        async with loop.outside():
            connection = await asyncpg.connect(postgres.url)
            await connection.add_listener("events", lambda *_: None)
        begun = loop.time()
        await asyncio.sleep(3600)
        passed = loop.time() - begun
        async with loop.outside():
            assert await connection.fetchval("SELECT 1") == 1
            await connection.close()
        return passed

    begun = time.monotonic()
    assert run_virtually(main) == 3600
    assert time.monotonic() - begun < PATIENCE_SECONDS
