"""Wakes workers of other processes that wait for events, by NOTIFY and LISTEN.

A commit with NOTIFY takes a lock of the whole database. So the calls of the store do not notify: a
task notifies afterwards, at most once every few milliseconds. LISTEN needs a connection of its own,
which must not go through PgBouncer in transaction mode; so listening is an option.

Notifications may be lost, so a waiting worker also looks for events from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from hashlib import blake2b
from typing import Any, TypeAlias

import psycopg
from psycopg import AsyncConnection, sql

from ...errors import StoreError
from ...logs import get_logger
from .connection import Statement
from .wire import dump_text, load_text

_log = get_logger("hookonce.store")

_NOTIFY = b"SELECT FROM pg_notify($1::text, $2::text)"  # no column: its type would be void
_TOGETHER_SECONDS = 0.01
_RECONNECT_SECONDS, _LONGEST_RECONNECT_SECONDS = 0.5, 10.0

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]]


class Wakeups:
    """Notifies other processes of due events, and receives their notifications; for one event loop.

    Args:
        schema: the schema of the store, which names the channel.
        connect: lends a connection that nobody else uses at the same time.
        send: runs a statement in a transaction of its own.
        is_due: called with an endpoint that has an event to fetch.
    """

    def __init__(
        self,
        schema: str,
        connect: Connect,
        send: Callable[[Statement], Any],
        is_due: Callable[[str], object],
    ) -> None:
        # Use a digest of the schema's name: the name itself with a prefix could be too long for a
        # channel.
        digest = blake2b(schema.encode(), digest_size=8).hexdigest()
        self._channel = f"hookonce_{digest}"
        self._connect = connect
        self._send = send
        self._is_due = is_due
        self._endpoints: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self.is_listening: bool = False
        """Whether notifications arrive, so that a worker need not look often."""

    def notify(self, endpoint: str) -> None:
        """Wake the workers of an endpoint soon."""
        self._endpoints.add(endpoint)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._notify())

    def listen(self) -> None:
        """Start the listening task, unless it has been started already."""
        if self._listening is None:
            loop = asyncio.get_running_loop()
            self._listening = loop.create_task(self._listen(), name="hookonce-postgres-listener")

    async def aclose(self) -> None:
        """Stop notifying and listening."""
        for task in (self._listening, self._sending):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _notify(self) -> None:
        while self._endpoints:
            await asyncio.sleep(_TOGETHER_SECONDS)
            endpoints, self._endpoints = self._endpoints, set()
            for endpoint in endpoints:
                try:
                    await self._send((_NOTIFY, (dump_text(self._channel), dump_text(endpoint))))
                except StoreError as error:  # workers also look without a notification
                    _log.debug("could not notify other workers", exc_info=error)

    async def _listen(self) -> None:
        pause, has_complained = _RECONNECT_SECONDS, False
        while True:
            try:
                async with self._connect() as connection:
                    async for endpoint in self._endpoints_of(connection):
                        pause, has_complained = _RECONNECT_SECONDS, False
                        self._is_due(endpoint)
            except (psycopg.Error, OSError) as error:
                if not has_complained:
                    has_complained = True
                    _log.warning("cannot listen for new events, trying again: %s", error)
            finally:
                self.is_listening = False
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_RECONNECT_SECONDS)

    async def _endpoints_of(self, connection: AsyncConnection[Any]) -> AsyncIterator[str]:
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self.is_listening = True
        async with contextlib.aclosing(connection.notifies()) as notifies:
            async for notification in notifies:
                yield load_text(notification.payload.encode())
