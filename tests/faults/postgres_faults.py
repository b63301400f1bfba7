"""PostgreSQL crashes, fails over, has a full disk, is slow, refuses, or cannot be reached."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from support.disks import fill, small_disk
from support.pgbouncer import pgbouncer
from support.postgres import PostgresServer, postgres_server

from .bench import Bench, Figures, bench
from .disk_faults import accepting, refusing
from .proxy import Fault, Proxy, proxy
from .server_faults import check_first_attempts, some_more

__all__ = [
    "crowded_database",
    "database_crashes",
    "database_failover",
    "database_faults",
    "full_database_disk",
    "read_only_standby",
]

# Longer than any fault here, so that a running attempt still has its claim after the fault.
_LEASE_SECONDS = 15.0
# A call to the store gives up after three seconds; some faults must last longer.
_LONGEST_FAULT_SECONDS = 5.0
_FAULTS = 9
_DISK_MEGABYTES = 80
_ENDED_COMMITS = 10
# Longer than the time limit of the store's statements, which the server then cancels.
_SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';
CREATE TRIGGER slow AFTER INSERT ON hookonce.ids EXECUTE FUNCTION slow();
"""


async def database_crashes(
    figures: Figures, here: Path, *, seed: int, count: int, inbox: bool = True
) -> None:
    """Let the server crash or restart, and recover from its write-ahead log."""
    with postgres_server() as server:
        async with (
            bench(
                figures,
                here,
                server.url,
                seed,
                webs=2,
                workers=2 if inbox else 0,
                inbox=inbox,
                lease_seconds=_LEASE_SECONDS,
            ) as on,
            on.load(),
        ):
            for number in range(count):
                await some_more(on)
                await asyncio.sleep(on.chance.uniform(0.1, 0.6))
                # SIGQUIT ends every process of the server at once; SIGINT rolls back first.
                how = signal.SIGINT if number % 3 == 2 else signal.SIGQUIT
                await asyncio.to_thread(server.stop, how)
                figures.faults += 1
                await asyncio.sleep(on.chance.uniform(0.0, 1.0))
                await asyncio.to_thread(server.start)
            await some_more(on)
        if inbox:
            check_first_attempts(on)


async def database_faults(
    figures: Figures,
    here: Path,
    *,
    seed: int,
    count: int,
    inbox: bool = True,
    with_pgbouncer: bool = False,
) -> None:
    """End connections, lock a table, refuse writes, slow statements down, freeze the server.

    Also drop replies, and block or delay all traffic.

    With PgBouncer the faults are between PgBouncer and the processes.
    """
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server())
        port = server.port
        if with_pgbouncer:
            url = stack.enter_context(pgbouncer(server, connections=6))
            port = urlsplit(url).port or 0
        async with (
            proxy(port) as between,
            bench(
                figures,
                here,
                f"postgresql://postgres@127.0.0.1:{between.port}/postgres",
                seed,
                webs=2,
                workers=2 if inbox else 0,
                inbox=inbox,
                lease_seconds=_LEASE_SECONDS,
            ) as on,
            on.load(),
        ):
            for number in range(count):
                await _disturb(on, server, between, number % _FAULTS)
                await some_more(on)
        # Do not call `check_first_attempts`: while the worker cannot reach the store, it cannot
        # release prefetched events in time, so these events lose an attempt.


async def _disturb(on: Bench, server: PostgresServer, between: Proxy, number: int) -> None:
    on.figures.faults += 1
    seconds = on.chance.uniform(0.3, _LONGEST_FAULT_SECONDS)
    if number == 0:
        for _ in range(5):
            between.reset()
            await asyncio.sleep(on.chance.uniform(0.0, 0.1))
    elif number == 1:
        for _ in range(10):
            await asyncio.to_thread(server.terminate_backends)
            await asyncio.sleep(on.chance.uniform(0.0, 0.05))
    elif number in _OF_SERVER:
        # The sender runs in this event loop, so wait in a thread.
        await asyncio.to_thread(_OF_SERVER[number], server, seconds)
    else:
        faults: tuple[Fault, ...] = ("swallow", "black-hole", "delay")
        between.begin(faults[number - 6])
        await asyncio.sleep(seconds)
        between.heal()


def _locked(server: PostgresServer, seconds: float) -> None:
    """Lock the table that every transaction writes to."""
    with psycopg.connect(server.url) as connection:
        connection.execute("LOCK TABLE hookonce.ids IN ACCESS EXCLUSIVE MODE")
        time.sleep(seconds)


def _read_only(server: PostgresServer, seconds: float) -> None:
    """Let the server refuse every write, like a standby server."""
    _set(server, "default_transaction_read_only = on")
    time.sleep(seconds)
    _set(server, "default_transaction_read_only = off")


def _slow(server: PostgresServer, seconds: float) -> None:
    """Let each statement that remembers events run into its time limit."""
    server.execute(_SLOW)
    time.sleep(seconds)
    server.execute("DROP FUNCTION slow CASCADE")


def _frozen(server: PostgresServer, seconds: float) -> None:
    """Stop the server's processes in the middle of their statements."""
    with server.frozen():
        time.sleep(seconds)


_OF_SERVER = {2: _locked, 3: _read_only, 4: _slow, 5: _frozen}


def _set(server: PostgresServer, setting: str) -> None:
    server.execute(f"ALTER SYSTEM SET {setting}")
    server.execute("SELECT pg_reload_conf()")


async def crowded_database(figures: Figures, here: Path, *, seed: int, count: int) -> None:
    """End the store's connections, and let other clients take all connections of the server."""
    with postgres_server(max_connections="30", superuser_reserved_connections="3") as server:
        server.execute("CREATE ROLE receiver LOGIN")
        server.execute("GRANT CREATE ON DATABASE postgres TO receiver")
        url = server.url.replace("postgres@", "receiver@")
        async with (
            bench(figures, here, url, seed, webs=2, workers=2, lease_seconds=_LEASE_SECONDS) as on,
            on.load(),
        ):
            for _ in range(count):
                await some_more(on)
                seconds = on.chance.uniform(0.3, _LONGEST_FAULT_SECONDS)
                await asyncio.to_thread(_crowd, server, url, seconds)
                figures.faults += 1
            await some_more(on)


def _crowd(server: PostgresServer, url: str, seconds: float) -> None:
    """End the store's connections, and take all connections of the server for some seconds."""
    with ExitStack() as others:
        server.terminate_backends()
        for _ in range(30):
            with suppress(psycopg.OperationalError):
                others.enter_context(psycopg.connect(url))
        time.sleep(seconds)


async def database_failover(
    figures: Figures,
    here: Path,
    *,
    seed: int,
    count: int,
    inbox: bool = True,
    with_ended_commits: bool = False,
) -> None:
    """Crash the primary and promote its standby, which is about a tenth of a second behind.

    The processes find the new primary by the two hosts of their URL. The old primary comes back
    as a standby; until then no commit succeeds, because ``remote_apply`` waits for a standby.

    Args:
        with_ended_commits: also end connections whose commits wait for the standby, right before
            the crash. Their events are committed on the primary only, so no delivery of these
            events may be acknowledged.
    """
    ended = 0
    with (
        postgres_server(synchronous_standby_names="*") as one,
        postgres_server(synchronous_standby_names="*") as other,
    ):
        primary, standby = one, other
        async with proxy(primary.port) as lagging:
            lagging.delay_seconds = (0.02, 0.12)
            await _follow(standby, lagging, primary)
            async with (
                bench(
                    figures,
                    here,
                    f"postgresql://postgres@127.0.0.1:{one.port},127.0.0.1:{other.port}/postgres"
                    "?target_session_attrs=read-write&durability=remote_apply",
                    seed,
                    webs=2,
                    workers=2 if inbox else 0,
                    inbox=inbox,
                    lease_seconds=_LEASE_SECONDS,
                ) as on,
                on.load(),
            ):
                for _ in range(count):
                    await some_more(on)
                    await asyncio.sleep(on.chance.uniform(0.1, 0.6))
                    for _ in range(_ENDED_COMMITS if with_ended_commits else 0):
                        ended += await asyncio.to_thread(
                            primary.terminate_backends, that_wait_for_standby=True
                        )
                        await asyncio.sleep(on.chance.uniform(0.0, 0.1))
                    primary.stop()
                    figures.faults += 1
                    await asyncio.to_thread(standby.promote)
                    primary, standby = standby, primary
                    await _follow(standby, lagging, primary)
                await some_more(on)
            if with_ended_commits:
                on.check(ended, "no commit was ended")
                figures.remark += f"; {ended} ended commits"


async def read_only_standby(figures: Figures, here: Path, *, seed: int, count: int) -> None:
    """Lead the processes to a standby for some seconds, as a wrong address of the primary does."""
    with postgres_server() as primary, postgres_server() as standby:
        await asyncio.to_thread(standby.follow, primary)
        async with (
            proxy(primary.port) as between,
            bench(
                figures,
                here,
                f"postgresql://postgres@127.0.0.1:{between.port}/postgres",
                seed,
                webs=2,
                workers=2,
                lease_seconds=_LEASE_SECONDS,
            ) as on,
            on.load(),
        ):
            for _ in range(count):
                await accepting(on)
                async with refusing(on):
                    between.target = standby.port
                    between.reset()
                between.target = primary.port
                between.reset()
            await accepting(on)


async def _follow(standby: PostgresServer, lagging: Proxy, primary: PostgresServer) -> None:
    """Copy the primary's data, and let the standby get later changes through a slow proxy."""
    lagging.heal()
    lagging.target = primary.port
    lagging.reset()
    await asyncio.to_thread(standby.follow, primary, port=lagging.port)
    lagging.begin("delay")


async def full_database_disk(
    figures: Figures, here: Path, *, seed: int, count: int, inbox: bool, with_wal: bool
) -> None:
    """Fill the server's disk, then make room again.

    Args:
        with_wal: whether the write-ahead log is on the full disk too. Then the server crashes, and
            cannot recover before there is room.
    """
    with small_disk(here, _DISK_MEGABYTES) as disk:
        wal = None if with_wal else here / "wal"
        with postgres_server(None, disk / "data", wal) as server:
            async with (
                bench(
                    figures,
                    here,
                    server.url,
                    seed,
                    webs=1,
                    workers=1 if inbox else 0,
                    inbox=inbox,
                    lease_seconds=_LEASE_SECONDS,
                ) as on,
                on.load(),
            ):
                for _ in range(count):
                    await accepting(on)
                    async with refusing(on, unless_accepted=500):
                        fill(disk / "filler")
                    (disk / "filler").unlink()
                    await asyncio.to_thread(server.recover)
                await accepting(on)
