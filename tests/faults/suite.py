"""Every fault scenario with its store, in a small size and in a full size for releases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from support.postgres import postgres_server
from support.redis_servers import REDIS_SERVER, VALKEY_SERVER, redis_server

from .bench import Figures, folder
from .disk_faults import full_disk, locked_file, read_only_file
from .key_faults import long_outages_of_a_file, long_outages_of_a_server
from .ledger_faults import driver_faults
from .library_faults import two_libraries
from .postgres_faults import (
    crowded_database,
    database_crashes,
    database_failover,
    database_faults,
    full_database_disk,
    read_only_standby,
)
from .process_faults import (
    clock_jumps,
    deployments,
    handler_sets,
    inline_stalls,
    kills,
    kills_of_four_senders,
    race,
    stalls,
)
from .replay_faults import replays
from .server_faults import failover, network_faults, power_cuts, server_kills, storm
from .version_faults import versions

__all__ = ["SCENARIOS", "Scenario", "UnavailableError"]

Run: TypeAlias = Callable[[Figures, Path, int, int], Awaitable[None]]


class UnavailableError(Exception):
    """This machine lacks something that a scenario needs."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario, and the number of its repetitions.

    Attributes:
        name: the scenario's name.
        small: the number of repetitions for each change.
        full: the number of repetitions before a release.
        run: runs the scenario with the figures, a folder, a seed and the number of repetitions.

    """

    name: str
    small: int
    full: int
    run: Run

    async def measure(self, *, is_full: bool, seed: int) -> Figures:
        """Return the scenario's figures, with any violations."""
        figures = Figures(self.name)
        with folder() as here:
            try:
                await self.run(figures, here, seed, self.full if is_full else self.small)
            except PermissionError as error:
                raise UnavailableError(str(error)) from error
        return figures


class _OnStore(Protocol):
    async def __call__(
        self, figures: Figures, here: Path, store: str, *, seed: int, count: int
    ) -> None: ...


class _OnServer(Protocol):
    async def __call__(self, figures: Figures, here: Path, *, seed: int, count: int) -> None: ...


def _sqlite(scenario: _OnStore) -> Run:
    async def run(figures: Figures, here: Path, seed: int, count: int) -> None:
        await scenario(figures, here, f"sqlite:///{here}/hooks.db", seed=seed, count=count)

    return run


def _valkey(scenario: _OnStore) -> Run:
    async def run(figures: Figures, here: Path, seed: int, count: int) -> None:
        with redis_server(append_only=True) as server:
            await scenario(figures, here, server.url, seed=seed, count=count)

    return run


def _postgres(scenario: _OnStore) -> Run:
    async def run(figures: Figures, here: Path, seed: int, count: int) -> None:
        with postgres_server() as server:
            await scenario(figures, here, server.url, seed=seed, count=count)

    return run


def _own(scenario: _OnServer) -> Run:
    async def run(figures: Figures, here: Path, seed: int, count: int) -> None:
        await scenario(figures, here, seed=seed, count=count)

    return run


def _redis_kills(figures: Figures, here: Path, seed: int, count: int) -> Awaitable[None]:
    if REDIS_SERVER is None:
        remedy = "apt-get install redis-server"
        raise UnavailableError(f"redis-server is not installed; to enable: {remedy}")
    return server_kills(
        figures, here, binary=REDIS_SERVER, fsync="always", query="", seed=seed, count=count
    )


def _valkey_kills(*, fsync: str, inbox: bool = True) -> Run:
    return _own(
        partial(
            server_kills,
            binary=VALKEY_SERVER,
            fsync=fsync,
            query="?durability=fsync",
            inbox=inbox,
        )
    )


SCENARIOS = [
    Scenario("kills, SQLite, inline", 8, 60, _sqlite(partial(kills, inbox=False))),
    Scenario("kills, SQLite, inbox", 10, 80, _sqlite(kills)),
    Scenario("kills, Valkey, inline", 6, 60, _valkey(partial(kills, inbox=False))),
    Scenario("kills, Valkey, inbox", 10, 80, _valkey(kills)),
    Scenario("kills, PostgreSQL, inline", 6, 60, _postgres(partial(kills, inbox=False))),
    Scenario("kills, PostgreSQL, inbox", 10, 80, _postgres(kills)),
    Scenario(
        "kills, four senders, SQLite, inline",
        6,
        60,
        _sqlite(partial(kills_of_four_senders, inbox=False)),
    ),
    Scenario("kills, four senders, SQLite, inbox", 6, 60, _sqlite(kills_of_four_senders)),
    Scenario("kills, four senders, Valkey, inbox", 6, 60, _valkey(kills_of_four_senders)),
    Scenario("replays under kills, SQLite", 8, 60, _sqlite(replays)),
    Scenario("replays under kills, Valkey", 8, 60, _valkey(replays)),
    Scenario("replays under kills, PostgreSQL", 8, 60, _postgres(replays)),
    Scenario("deployments, SQLite, inline", 4, 30, _sqlite(partial(deployments, inbox=False))),
    Scenario("deployments, SQLite, inbox", 4, 30, _sqlite(deployments)),
    Scenario("deployments, Valkey, inbox", 4, 30, _valkey(deployments)),
    Scenario("handler sets, SQLite, inline", 3, 30, _sqlite(partial(handler_sets, inbox=False))),
    Scenario("handler sets, SQLite, inbox", 3, 30, _sqlite(handler_sets)),
    Scenario("handler sets, Valkey, inline", 3, 30, _valkey(partial(handler_sets, inbox=False))),
    Scenario("handler sets, Valkey, inbox", 3, 30, _valkey(handler_sets)),
    Scenario(
        "versions side by side, SQLite, inline", 3, 20, _sqlite(partial(versions, inbox=False))
    ),
    Scenario("versions side by side, SQLite, inbox", 3, 20, _sqlite(versions)),
    Scenario(
        "versions side by side, Valkey, inline", 3, 20, _valkey(partial(versions, inbox=False))
    ),
    Scenario("versions side by side, Valkey, inbox", 3, 20, _valkey(versions)),
    Scenario(
        "versions side by side, PostgreSQL, inline",
        3,
        20,
        _postgres(partial(versions, inbox=False)),
    ),
    Scenario("versions side by side, PostgreSQL, inbox", 3, 20, _postgres(versions)),
    Scenario("server kills, Valkey, fsync each", 3, 30, _valkey_kills(fsync="always")),
    Scenario("server kills, Valkey, fsync a second", 1, 15, _valkey_kills(fsync="everysec")),
    Scenario("server kills, Valkey, inline", 2, 20, _valkey_kills(fsync="always", inbox=False)),
    Scenario("server kills, Redis 7.0, fsync each", 3, 30, _redis_kills),
    Scenario("crashes, PostgreSQL, inline", 3, 30, _own(partial(database_crashes, inbox=False))),
    Scenario("crashes, PostgreSQL, inbox", 3, 30, _own(database_crashes)),
    Scenario("faults of PostgreSQL, inline", 9, 45, _own(partial(database_faults, inbox=False))),
    Scenario("faults of PostgreSQL, inbox", 9, 45, _own(database_faults)),
    Scenario(
        "faults behind PgBouncer, inbox",
        9,
        45,
        _own(partial(database_faults, with_pgbouncer=True)),
    ),
    Scenario("too many connections, PostgreSQL", 2, 20, _own(crowded_database)),
    Scenario(
        "failover of PostgreSQL, inline", 2, 20, _own(partial(database_failover, inbox=False))
    ),
    Scenario("failover of PostgreSQL, inbox", 2, 20, _own(database_failover)),
    *(
        Scenario(
            f"ended commits, PostgreSQL, {mode}",
            2,
            20,
            _own(partial(database_failover, inbox=mode == "inbox", with_ended_commits=True)),
        )
        for mode in ("inline", "inbox")
    ),
    Scenario("read-only standby, PostgreSQL", 2, 12, _own(read_only_standby)),
    Scenario("power cuts, Valkey, fsync each", 2, 20, _own(partial(power_cuts, fsync="always"))),
    Scenario("network faults", 5, 40, _own(network_faults)),
    Scenario("network faults, 4 shards", 5, 40, _own(partial(network_faults, shards=4))),
    Scenario("network faults, inline", 5, 40, _own(partial(network_faults, inbox=False))),
    Scenario("failover to a replica", 2, 20, _own(failover)),
    Scenario("storm: all of these at once", 4, 60, _own(storm)),
    Scenario("stalled worker, SQLite", 1, 12, _sqlite(stalls)),
    Scenario("stalled worker, Valkey", 1, 12, _valkey(stalls)),
    Scenario("stalls inline, SQLite, alone", 2, 12, _sqlite(partial(inline_stalls, webs=1))),
    Scenario("stalls inline, SQLite", 2, 12, _sqlite(partial(inline_stalls, webs=2))),
    Scenario("stalls inline, Valkey, alone", 2, 12, _valkey(partial(inline_stalls, webs=1))),
    Scenario("stalls inline, Valkey", 2, 12, _valkey(partial(inline_stalls, webs=2))),
    Scenario("full disk, inline", 1, 12, _own(partial(full_disk, inbox=False))),
    Scenario("full disk, inbox", 1, 12, _own(partial(full_disk, inbox=True))),
    *(
        Scenario(
            f"full disk{part}, PostgreSQL, {mode}",
            1,
            12,
            _own(partial(full_database_disk, inbox=mode == "inbox", with_wal=not part)),
        )
        for part in ("", " without WAL")
        for mode in ("inline", "inbox")
    ),
    Scenario("locked file, inline", 1, 5, _own(partial(locked_file, inbox=False))),
    Scenario("locked file, inbox", 1, 5, _own(partial(locked_file, inbox=True))),
    Scenario("two SQLite libraries, inline", 3, 60, _sqlite(partial(two_libraries, inbox=False))),
    Scenario("two SQLite libraries, inbox", 3, 60, _sqlite(two_libraries)),
    Scenario("read-only file", 1, 1, _own(read_only_file)),
    Scenario("driver faults in ledgers, inline", 2, 60, _own(partial(driver_faults, inbox=False))),
    Scenario("driver faults in ledgers, inbox", 2, 60, _own(partial(driver_faults, inbox=True))),
    *(
        Scenario(f"long outages, {store}, {mode}", 1, 8, _own(partial(run, inbox=mode == "inbox")))
        for store, run in (("SQLite", long_outages_of_a_file), ("Valkey", long_outages_of_a_server))
        for mode in ("inline", "inbox")
    ),
    Scenario("clock jumps, SQLite", 6, 60, _sqlite(clock_jumps)),
    Scenario("clock jumps, Valkey", 6, 60, _valkey(clock_jumps)),
    Scenario("race, SQLite", 2_000, 100_000, _sqlite(race)),
    Scenario("race, Valkey", 2_000, 100_000, _valkey(race)),
    Scenario("race, PostgreSQL", 2_000, 100_000, _postgres(race)),
]
