"""Redis and Valkey are killed, replaced by a replica, or hard to reach."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.redis_servers import VALKEY_SERVER, RedisServer, redis_server
from support.waiting import until, until_async

from .bench import Bench, Figures, bench, persistent_server
from .power import cut_power, server_that_notes_syncs
from .proxy import Fault, Proxy, proxy

__all__ = [
    "check_first_attempts",
    "failover",
    "network_faults",
    "power_cuts",
    "server_kills",
    "some_more",
    "storm",
]

# Longer than any fault here, so that a running attempt still has its claim after the fault.
_LEASE_SECONDS = 12.0
# A call to the store gives up after three seconds; some faults must last longer.
_LONGEST_FAULT_SECONDS = 5.0


async def server_kills(
    figures: Figures,
    here: Path,
    *,
    binary: str,
    fsync: str,
    query: str,
    seed: int,
    count: int,
    inbox: bool = True,
) -> None:
    """Kill the server and start it again with its append-only file."""
    with persistent_server(binary, "--appendfsync", fsync) as server:
        async with (
            bench(
                figures,
                here,
                server.url + query,
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
                await _restart(on, server)
            await some_more(on)
        if inbox:
            check_first_attempts(on)


async def power_cuts(figures: Figures, here: Path, *, fsync: str, seed: int, count: int) -> None:
    """Cut the server's power: its unsynced data is lost, and it starts again with the rest.

    With ``everysec`` events are lost in Valkey, also in 9.1, and in Redis 7.4.0 to 7.4.2: their
    WAITAOF answers up to a second before the sync (redis/redis pull request 13793).
    """
    server_program = server_that_notes_syncs(here)
    with persistent_server(server_program, "--appendfsync", fsync) as server:
        taken = 0
        async with (
            bench(
                figures,
                here,
                server.url + "?durability=fsync",
                seed,
                webs=2,
                workers=2,
                lease_seconds=_LEASE_SECONDS,
            ) as on,
            on.load(lanes=32),
        ):
            for _ in range(count):
                await some_more(on)
                await asyncio.sleep(on.chance.uniform(0.1, 1.0))
                taken += cut_power(here, server)
                figures.faults += 1
                await asyncio.to_thread(server.start)
            await some_more(on)
        check_first_attempts(on)
        figures.remark = f"{taken} bytes were not synced"


async def network_faults(
    figures: Figures, here: Path, *, seed: int, count: int, inbox: bool = True, shards: int = 1
) -> None:
    """Reset connections, delete the server's scripts, drop replies, block or delay all traffic."""
    with redis_server() as server:
        async with (
            proxy(server.port) as between,
            bench(
                figures,
                here,
                f"redis://127.0.0.1:{between.port}?shards={shards}",
                seed,
                webs=2,
                workers=2 if inbox else 0,
                inbox=inbox,
                lease_seconds=_LEASE_SECONDS,
            ) as on,
            on.load(),
        ):
            for number in range(count):
                await _disturb(on, server, between, number % 5)
                await some_more(on)
        if inbox:
            check_first_attempts(on)


async def _disturb(
    on: Bench,
    server: RedisServer,
    between: Proxy,
    number: int,
    *,
    longest_seconds: float = _LONGEST_FAULT_SECONDS,
) -> None:
    on.figures.faults += 1
    if number == 0:
        for _ in range(5):
            between.reset()
            await asyncio.sleep(on.chance.uniform(0.0, 0.1))
    elif number == 1:
        for _ in range(10):
            with server.client() as client:
                client.script_flush()
            await asyncio.sleep(on.chance.uniform(0.0, 0.05))
    else:
        faults: tuple[Fault, ...] = ("swallow", "black-hole", "delay")
        between.begin(faults[number - 2])
        await asyncio.sleep(on.chance.uniform(0.3, longest_seconds))
        between.heal()


async def storm(figures: Figures, here: Path, *, seed: int, count: int) -> None:
    """Kill web processes, workers and the server, and disturb connections, all at once."""
    with persistent_server(VALKEY_SERVER, "--appendfsync", "always") as server:
        async with (
            proxy(server.port) as between,
            bench(
                figures,
                here,
                f"redis://127.0.0.1:{between.port}?durability=fsync",
                seed,
                webs=2,
                workers=3,
                lease_seconds=_LEASE_SECONDS,
            ) as on,
            on.load(),
        ):
            on.statuses.add(0)  # 0: no answer, because the web process was killed
            killing = asyncio.create_task(on.fleet.kill_at_random(count, on.chance))
            try:
                number = 0
                while not killing.done():
                    await asyncio.sleep(on.chance.uniform(0.3, 1.5))
                    if number % 3 == 2:
                        await _restart(on, server)
                    else:
                        await _disturb(
                            on,
                            server,
                            between,
                            on.chance.randrange(5),
                            longest_seconds=2.0,
                        )
                    number += 1
                await killing
            finally:
                killing.cancel()
                await asyncio.wait([killing])
            await some_more(on)


async def _restart(on: Bench, server: RedisServer) -> None:
    server.kill()
    on.figures.faults += 1
    await asyncio.sleep(on.chance.uniform(0.0, 1.0))
    await asyncio.to_thread(server.start)


async def failover(figures: Figures, here: Path, *, seed: int, count: int) -> None:
    """Kill the master and promote its replica, which is about a tenth of a second behind."""
    with (
        redis_server("--repl-diskless-sync-delay", "0") as one,
        redis_server("--repl-diskless-sync-delay", "0") as other,
    ):
        master, replica = one, other
        async with proxy(master.port) as between, proxy(master.port) as lagging:
            lagging.delay_seconds = (0.02, 0.12)
            await _follow(replica, lagging, master)
            async with (
                bench(
                    figures,
                    here,
                    f"redis://127.0.0.1:{between.port}?replicas=1",
                    seed,
                    webs=2,
                    workers=2,
                    lease_seconds=_LEASE_SECONDS,
                ) as on,
                on.load(),
            ):
                for _ in range(count):
                    await some_more(on)
                    await asyncio.sleep(on.chance.uniform(0.1, 0.6))
                    master.kill()
                    figures.faults += 1
                    with replica.client() as client:
                        client.execute_command("REPLICAOF", "NO", "ONE")
                    between.target = replica.port
                    between.reset()
                    master, replica = replica, master
                    await asyncio.to_thread(replica.start)
                    await _follow(replica, lagging, master)
                await some_more(on)
            check_first_attempts(on)


async def _follow(replica: RedisServer, lagging: Proxy, master: RedisServer) -> None:
    """Make a server the replica of another, and return when it has all the data."""
    lagging.heal()
    lagging.target = master.port
    lagging.reset()
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(lagging.port))

        async def is_up() -> bool:
            info = await asyncio.to_thread(client.info, "replication")
            return bool(info.get("master_link_status") == "up")

        await until_async(is_up, what="the replica follows")
    lagging.begin("delay")


def check_first_attempts(on: Bench) -> None:
    """Check that no event of the inbox has lost an attempt because a reply was lost."""
    wasted = sum(line.note == "begin" and line.attempt > 1 for line in on.journal())
    on.check(not wasted, f"attempts that nobody has made: {wasted}")


async def some_more(on: Bench, events: int = 30) -> None:
    """Wait for this many more acknowledged events, which show that the store has recovered."""
    wanted = len(on.sender.acknowledged) + events
    await until(
        lambda: len(on.sender.acknowledged) >= wanted, what=f"recovery; {on.sender.answers}"
    )
