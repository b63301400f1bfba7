"""Connections to one server, to the master that sentinels name, or to the nodes of a cluster.

Commands are sent on redis-py's connections directly, without its clients. The clients repeat a
command after a lost reply for much longer than a delivery can wait, and the cluster client would
not send WAIT on the connection that has written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError, ResponseError

ConnectionSettings: TypeAlias = Mapping[str, Any]
"""Keyword arguments of redis-py's connections."""
Address: TypeAlias = tuple[str, int]
Command: TypeAlias = Sequence[bytes] | bytes
"""The words of a command, or the command as bytes on the wire."""

_CONNECT_SECONDS = 1.0
_SENTINEL_SECONDS = 0.3


class Servers(Protocol):
    """Finds the connection pool of the server that holds a key, for one event loop."""

    async def pool(self, key: bytes) -> ConnectionPool:
        """Return the connection pool of the server that holds a key."""
        ...

    async def pools(self) -> list[ConnectionPool]:
        """Return the connection pool of each server that holds keys."""
        ...

    def suspect(self) -> None:
        """Forget which server holds which keys; the next call asks again."""
        ...

    async def aclose(self) -> None: ...


def bounded(given: ConnectionSettings) -> dict[str, Any]:
    """Return settings without retries, and with time-outs that the caller controls."""
    settings = dict(given)
    # Remove the arguments of a client's pool that our connections do not accept.
    for name in ("connection_pool", "maint_notifications_config", "max_connections", "timeout"):
        settings.pop(name, None)
    settings.pop("retry_on_timeout", None)
    connect = settings.get("socket_connect_timeout") or _CONNECT_SECONDS
    return settings | {
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_timeout": None,
        "socket_connect_timeout": min(connect, _CONNECT_SECONDS),
        "protocol": 2,
    }


def without_frames(error: Exception) -> Exception:
    """Return an error of redis-py without its traceback.

    Locals of its frames hold the password, and error trackers upload the locals of every frame.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class OneServer:
    """A single server, which holds every key."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def pool(self, key: bytes) -> ConnectionPool:  # noqa: ARG002 - the server holds every key
        return self._pool

    async def pools(self) -> list[ConnectionPool]:
        return [self._pool]

    def suspect(self) -> None:
        """Do nothing: there is only one server."""

    async def aclose(self) -> None:
        await self._pool.disconnect()


def one_server(
    connection_class: type[AbstractConnection], settings: ConnectionSettings
) -> OneServer:
    """Return a server with a pool of connections of this class and with these settings."""
    return OneServer(ConnectionPool(connection_class=connection_class, **bounded(settings)))


class SentinelServer(OneServer):
    """The master of a service; every new connection asks the sentinels for its address.

    A failed connection is closed, so that the next connection finds a new master.
    """

    def __init__(
        self,
        sentinels: Sequence[Address],
        service: str,
        settings: ConnectionSettings,
        sentinel_settings: ConnectionSettings,
    ) -> None:
        own = bounded(settings)
        # The time-out is short, to leave time for another sentinel if one is dead.
        watch = bounded(sentinel_settings) | {
            "socket_timeout": _SENTINEL_SECONDS,
            "socket_connect_timeout": _SENTINEL_SECONDS,
        }
        self._sentinel = Sentinel(list(sentinels), sentinel_kwargs=watch)  # type: ignore[no-untyped-call]  # redis-py has no annotation
        super().__init__(SentinelConnectionPool(service, self._sentinel, **own))  # type: ignore[no-untyped-call]  # redis-py has no annotation

    async def aclose(self) -> None:
        await super().aclose()
        for client in self._sentinel.sentinels:
            await client.aclose()


class ClusterServers:
    """The nodes of a cluster; each node knows which node holds which slot.

    While a slot is migrated to another node, the calls of its shard fail with StoreError: a script
    needs all keys of the shard on one node.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        connection_class: type[AbstractConnection],
        settings: ConnectionSettings,
    ) -> None:
        self._addresses = list(addresses)
        self._connection_class = connection_class
        self._settings = bounded(settings)
        self._pools: dict[Address, ConnectionPool] = {}
        self._slots: list[tuple[int, int, Address]] = []
        self._lock = asyncio.Lock()

    async def pool(self, key: bytes) -> ConnectionPool:
        """Return the connection pool of the master that holds a key's slot."""
        slot = key_slot(key)
        for start, end, address in await self._map():
            if start <= slot <= end:
                return self._pool_of(address)
        raise RedisError(f"no node of the cluster holds the slot {slot}")

    async def pools(self) -> list[ConnectionPool]:
        """Return the connection pool of each master."""
        return [self._pool_of(address) for address in sorted({at for *_, at in await self._map()})]

    def suspect(self) -> None:
        """Forget which node holds which slot."""
        self._slots = []

    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.disconnect()

    def _pool_of(self, address: Address) -> ConnectionPool:
        if address not in self._pools:
            place = {"host": address[0], "port": address[1]}
            self._pools[address] = ConnectionPool(
                connection_class=self._connection_class, **self._settings | place
            )
        return self._pools[address]

    async def _map(self) -> list[tuple[int, int, Address]]:
        async with self._lock:
            if not self._slots:
                self._slots = await self._discover()
            return self._slots

    async def _discover(self) -> list[tuple[int, int, Address]]:
        """Ask one node after another for the slots, until one answers."""
        failure: Exception = RedisError("no node of the cluster is known")
        for address in dict.fromkeys([*self._addresses, *self._pools]):
            try:
                # The time-out is short, to leave time for another node if one is dead.
                async with asyncio.timeout(_CONNECT_SECONDS / 2):
                    async with connected(self._pool_of(address)) as connection:
                        [reply] = await exchange(connection, [[b"CLUSTER", b"SLOTS"]])
            except (RedisError, OSError, TimeoutError) as error:
                failure = error
                continue
            if isinstance(reply, Exception):
                failure = reply
            elif reply:
                return [
                    (int(start), int(end), (master[0].decode() or address[0], int(master[1])))
                    for start, end, master, *_ in reply
                ]
        raise failure


@contextlib.asynccontextmanager
async def connected(pool: ConnectionPool) -> AsyncIterator[AbstractConnection]:
    """Lend a connection from a pool; close it if the block fails or is cancelled.

    An open connection could give late replies to its next user. A new connection also looks up the
    server's name again: after a failover the name may belong to another server.
    """
    connection: AbstractConnection = await pool.get_connection()  # type: ignore[no-untyped-call]  # redis-py has no annotation
    is_whole = False
    try:
        yield connection
        is_whole = True
    finally:
        if not is_whole:
            with contextlib.suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)
        await pool.release(connection)


async def exchange(
    connection: AbstractConnection,
    commands: Sequence[Command],
    *,
    heard: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Send commands together, and return their replies; a server's error counts as a reply.

    Args:
        heard: called when the first reply has arrived.
    """
    packed = [
        command if isinstance(command, bytes) else b"".join(connection.pack_command(*command))
        for command in commands
    ]
    await connection.send_packed_command(b"".join(packed), check_health=False)
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response(disable_decoding=True))
        except ResponseError as error:
            replies.append(error)
        if len(replies) == 1:
            heard()
    return replies
