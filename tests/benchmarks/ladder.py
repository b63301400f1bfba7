"""What the limit is made of: from an application that does nothing to a receiver, step by step.

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
from tempfile import mkdtemp

import apsw
import redis.asyncio
from starlette.types import ASGIApp, Receive, Scope, Send

from hookonce import Verifier
from hookonce.events import Event, EventParser
from hookonce.verification.headers import RawHeaders

__all__ = ["LEAST", "STEPS"]

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
    """Return an application that reads the body, hands it on, and answers 204 or with JSON."""
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
    """Let the handler go on when its time to answer is over, or the request is cancelled."""
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
    """Remembers ids in SQLite; those that wait while one transaction is written share the next."""

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


class _MicroBatch:
    """Remembers ids in Redis; those that wait for one call of the script share the next."""

    _SCRIPT = """
        for _, key in ipairs(KEYS) do redis.call('SET', key, '1', 'EX', ARGV[1]) end
    """

    def __init__(self) -> None:
        client = redis.asyncio.from_url(os.environ["BENCHMARK_REDIS"])
        self._script = client.register_script(self._SCRIPT)
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, key: str) -> None:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((f"least:{key}", done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())
        await done

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await self._script(keys=[key for key, _ in batch], args=[_RETENTION_SECONDS])
            _wake([done for _, done in batch])


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


LEAST: Mapping[str, Callable[[], ASGIApp]] = {
    "verified, SQLite, one transaction": lambda: _remembered(_GroupCommit(), times=1),
    "verified, SQLite, two transactions": lambda: _remembered(_GroupCommit(), times=2),
    "all steps, SQLite, two transactions": lambda: _all_steps(_GroupCommit()),
    "verified, Redis, one call": lambda: _remembered(_MicroBatch(), times=1),
    "verified, Redis, two calls": lambda: _remembered(_MicroBatch(), times=2),
    "all steps, Redis, two calls": lambda: _all_steps(_MicroBatch()),
}
