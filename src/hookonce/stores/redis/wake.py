"""Wakes workers that wait for events, with one subscription for an event loop.

Messages may be lost, or arrive without need. A waiting worker looks for events again after a while,
so a lost message only causes a delay.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import RedisError, ResponseError

from ...errors import StoreError
from ...logs import get_logger
from .codec import decode
from .connection import Servers

_log = get_logger("hookonce.store")

# How often waiting workers look for events while there is no subscription.
_DEAF_SECONDS = 0.5
_SILENCE_SECONDS = 5.0
_RECONNECT_SECONDS = 0.5
_LONGEST_RECONNECT_SECONDS = 10.0


class Listener:
    """Receives notifications about new events, in one event loop.

    Args:
        is_due: returns whether an endpoint has an event to fetch.
    """

    def __init__(
        self, servers: Servers, channel: bytes, is_due: Callable[[str], Awaitable[bool]]
    ) -> None:
        self._servers = servers
        self._channel = channel
        self._is_due = is_due
        self._signals: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._is_hearing = False
        self._task: asyncio.Task[None] | None = None
        self._has_complained = False

    def signal(self, endpoint: str) -> None:
        """Wake the workers that wait for an endpoint."""
        self._signals[endpoint].set()

    def looks(self, endpoint: str) -> None:
        """Clear an endpoint's signal before a fetch, so that ``wait`` notices a later signal."""
        self._signals[endpoint].clear()

    async def wait(self, endpoint: str, seconds: float) -> None:
        """Wait up to ``seconds`` for a signal; a signal since the last fetch ends the wait."""
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._work(), name="hookonce-redis-listener")
        if not self._is_hearing:
            seconds = min(seconds, _DEAF_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._signals[endpoint].wait()

    async def aclose(self) -> None:
        """Stop listening."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _work(self) -> None:
        pause = _RECONNECT_SECONDS
        while True:
            try:
                pool = (await self._servers.pools())[0]
                await self._listen(pool)
                pause = _RECONNECT_SECONDS
            except (RedisError, OSError, TimeoutError, StoreError) as error:
                self._complain(error)
                pause = min(2 * pause, _LONGEST_RECONNECT_SECONDS)
            self._servers.suspect()
            await asyncio.sleep(pause)

    async def _listen(self, pool: ConnectionPool) -> None:
        """Receive messages until the connection is silent or broken."""
        connection = await pool.get_connection()  # type: ignore[no-untyped-call]  # redis-py has no annotation
        try:
            await connection.send_command("SUBSCRIBE", self._channel)
            is_asked = False
            while True:
                message = await connection.read_response(
                    disable_decoding=True, timeout=_SILENCE_SECONDS
                )
                if message is None:
                    if is_asked:
                        return  # the connection is dead: the server has not answered the last ping
                    await connection.send_command("PING")
                    is_asked = True
                    continue
                is_asked = False
                if message[0] == b"subscribe":
                    self._is_hearing = True
                    await self._catch_up()
                elif message[0] == b"message":
                    self.signal(decode(message[2]))
        finally:
            self._is_hearing = False
            with contextlib.suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)
            await pool.release(connection)

    async def _catch_up(self) -> None:
        """Signal endpoints with due events: their messages may be older than the subscription."""
        for endpoint, signal in list(self._signals.items()):
            if await self._is_due(endpoint):
                signal.set()

    def _complain(self, error: Exception) -> None:
        if isinstance(error, ResponseError) and not self._has_complained:
            self._has_complained = True
            _log.warning(
                "workers look for new events only every %g s, since the Redis user may not"
                " subscribe to the channel %r: %s",
                _DEAF_SECONDS,
                decode(self._channel),
                error,
            )
