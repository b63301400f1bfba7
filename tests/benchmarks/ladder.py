"""The steps from an application that does nothing to a receiver, to find the cost of each step.

Each application of `STEPS` does what the one before it does and one thing more that no receiver can
leave out, written as plainly as it can be. Those of `LEAST` verify and remember durably, by group
commit or a script for many: once, as an inbox must; twice, as a receiver must that handles inside
the request, first to claim the event and then to record that it is done; and twice along with all
of `STEPS`. None of them would do: they release no claim of a handler that failed, tell no duplicate
from an event in flight, outlive no crash, and end no request whose store hangs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from tempfile import mkdtemp

import apsw
import asyncpg  # type: ignore[import-untyped]  # it has no types
import redis.asyncio
from starlette.types import ASGIApp, Receive, Scope, Send

from hookonce import Verifier
from hookonce.events import Event, EventParser
from hookonce.verification.headers import RawHeaders

__all__ = ["LEAST", "STEPS", "PostgresBatches"]

Take = Callable[[bytes, RawHeaders], Awaitable[None]]
Remember = Callable[[str], Awaitable[None]]

_ANSWER = b'{"status": "accepted", "reason": "handled"}'
_JSON = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(_ANSWER)).encode()),
]
_ANSWER_SECONDS, _HANDLER_SECONDS = 8.0, 900.0
_RETENTION_SECONDS = 15 * 86_400


def _app(take: Take, *, answers: bool) -> ASGIApp:
    """Return an application that reads the body, calls ``take``, and answers 204 or JSON."""
    status, headers, answer = (200, _JSON, _ANSWER) if answers else (204, [], b"")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        await take(body, scope["headers"])
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


async def _handler(event: Event[object]) -> None:
    """Do nothing with an event."""


async def _handler_in_time(event: Event[object]) -> None:
    async with asyncio.timeout(_HANDLER_SECONDS):
        await _handler(event)


def _verifier() -> Verifier:
    return Verifier(os.environ["BENCHMARK_SECRET"])


def _verified() -> ASGIApp:
    verifier = _verifier()

    async def take(body: bytes, headers: RawHeaders) -> None:
        verifier.verify(body, headers)

    return _app(take, answers=False)


def _parsed(*, answers: bool) -> ASGIApp:
    verifier, parser = _verifier(), EventParser()

    async def take(body: bytes, headers: RawHeaders) -> None:
        delivery = verifier.verify(body, headers)
        parser.parse(delivery.body, delivery.id)

    return _app(take, answers=answers)


def _handled(run: Callable[[Event[object]], Awaitable[None]]) -> ASGIApp:
    verifier, parser = _verifier(), EventParser()
    done: set[str] = set()

    async def take(body: bytes, headers: RawHeaders) -> None:
        delivery = verifier.verify(body, headers)
        event = parser.parse(delivery.body, delivery.id)
        if event.id not in done:
            await run(event)
            done.add(event.id)

    return _app(take, answers=True)


async def _in_a_task(event: Event[object]) -> None:
    """Run the handler in a task, which outlives the answer budget and a cancelled request."""
    await asyncio.wait({asyncio.create_task(_handler_in_time(event))}, timeout=_ANSWER_SECONDS)


STEPS: Mapping[str, Callable[[], ASGIApp]] = {
    "+ the signature is verified": _verified,
    "+ a typed event is read": lambda: _parsed(answers=False),
    "+ the answer has a body": lambda: _parsed(answers=True),
    "+ handled once, by a set": lambda: _handled(_handler),
    "+ the handler has a time limit": lambda: _handled(_handler_in_time),
    "+ and a task of its own": lambda: _handled(_in_a_task),
}


def _remembered(remember: Remember, *, times: int) -> ASGIApp:
    verifier = _verifier()

    async def take(body: bytes, headers: RawHeaders) -> None:
        delivery = verifier.verify(body, headers)
        for _ in range(times):
            await remember(delivery.id)

    return _app(take, answers=False)


def _all_steps(remember: Remember) -> ASGIApp:
    verifier, parser = _verifier(), EventParser()

    async def take(body: bytes, headers: RawHeaders) -> None:
        delivery = verifier.verify(body, headers)
        event = parser.parse(delivery.body, delivery.id)
        await remember(event.id)
        await _in_a_task(event)
        await remember(event.id)

    return _app(take, answers=True)


class _GroupCommit:
    """Remembers ids in SQLite; ids that arrive during a transaction share the next transaction."""

    def __init__(self) -> None:
        folder = Path(mkdtemp(dir=os.environ["BENCHMARK_FOLDER"]))
        self._connection = apsw.Connection(str(folder / "least.db"))
        self._connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE done (key TEXT PRIMARY KEY) WITHOUT ROWID")
        self._waiting: SimpleQueue[tuple[str, asyncio.Future[None]]] = SimpleQueue()
        threading.Thread(target=self._write, daemon=True).start()

    async def __call__(self, key: str) -> None:
        done = asyncio.get_running_loop().create_future()
        self._waiting.put((key, done))
        await done

    def _write(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            with self._connection:
                self._connection.executemany(
                    "INSERT OR REPLACE INTO done VALUES (?)", [(key,) for key, _ in batch]
                )
            batch[0][1].get_loop().call_soon_threadsafe(_wake, [done for _, done in batch])


class _Batches:
    """Remembers ids on a server; ids that arrive during a call share the next call."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, key: str) -> None:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((key, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())
        await done

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await self._remember([key for key, _ in batch])
            _wake([done for _, done in batch])

    async def _remember(self, keys: list[str]) -> None:
        raise NotImplementedError


class _RedisBatches(_Batches):
    """Remembers ids in Redis."""

    _SCRIPT = """
        for _, key in ipairs(KEYS) do redis.call('SET', key, '1', 'EX', ARGV[1]) end
    """

    def __init__(self) -> None:
        super().__init__()
        client = redis.asyncio.from_url(os.environ["BENCHMARK_REDIS"])
        self._script = client.register_script(self._SCRIPT)

    async def _remember(self, keys: list[str]) -> None:
        await self._script(keys=[f"least:{key}" for key in keys], args=[_RETENTION_SECONDS])


class PostgresBatches(_Batches):
    """Remembers ids in PostgreSQL, with a prepared statement of asyncpg for each batch.

    A psycopg connection takes more of the processor for the same batch.

    Args:
        url: the server, where each object has a table of its own.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._table = f"least_{token_hex(4)}"
        self._connection: asyncpg.Connection | None = None

    async def _remember(self, keys: list[str]) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(self._url)
            await self._connection.execute(
                f"CREATE TABLE {self._table} (key text PRIMARY KEY, steps int NOT NULL)"
            )
        await self._connection.execute(
            f"INSERT INTO {self._table} AS known SELECT key, 1 FROM unnest($1::text[]) AS key"
            " ON CONFLICT (key) DO UPDATE SET steps = known.steps + 1",
            keys,
        )

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.close()


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _postgres() -> PostgresBatches:
    return PostgresBatches(os.environ["BENCHMARK_POSTGRES"])


LEAST: Mapping[str, Callable[[], ASGIApp]] = {
    "verified, SQLite, one transaction": lambda: _remembered(_GroupCommit(), times=1),
    "verified, SQLite, two transactions": lambda: _remembered(_GroupCommit(), times=2),
    "all steps, SQLite, two transactions": lambda: _all_steps(_GroupCommit()),
    "verified, Redis, one call": lambda: _remembered(_RedisBatches(), times=1),
    "verified, Redis, two calls": lambda: _remembered(_RedisBatches(), times=2),
    "all steps, Redis, two calls": lambda: _all_steps(_RedisBatches()),
    "all steps, PostgreSQL, two calls": lambda: _all_steps(_postgres()),
}
