"""What the web and worker processes run: ``python program.py '{"role": "web", ...}'``."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import mmap
import os
import random
import shutil
import signal
import socket
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Literal

import uvicorn

from hookonce import Backoff, Context, Inbox, Limits, Receiver
from hookonce.clock import system_clock
from hookonce.events import CommentReceived
from hookonce.stores import open_store, sqlite_path
from hookonce.stores.protocols import Store
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Acquired,
    AcquireResult,
    Claimed,
    DeliveryKey,
    KeyLock,
    Token,
    Watermark,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from faults.journal import Writer

__all__ = [
    "ANSWER_SECONDS",
    "BLOCKED_SECONDS",
    "OPENED",
    "REFUSED",
    "Settings",
    "key_of",
    "set_clock",
    "shifted_clock",
]

FAILS_ONCE = "fail once"
ANSWER_SECONDS = 4.0
KEYS = 8
BLOCKED_SECONDS = 2.0
"""How long a process does nothing when it is sent SIGUSR1, as if a handler blocked its loop."""
_KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_NOBODY = 65534
REFUSED, OPENED = b"r", b"o"
_FOREIGN_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a process is told.

    Attributes:
        store: the URL of the store.
        secret: what deliveries are signed with.
        journal: the folder for its notes.
        role: what it does.
        port: where a web process listens, together with others.
        inbox: store deliveries for workers, instead of handling them inside the request.
        handlers: how many handlers each event is for.
        pause_seconds: how long the last handler takes at the most.
        concurrency: how many events a worker handles at once.
        backoff_seconds: how long an event waits after a failure.
        lease_seconds: as in ``Limits``.
        clock: a file that says how far the wall clock is off.
        is_mounted: serve without a lifespan, so that the store opens at the first delivery.
        is_nobody: give up the rights of root before the store is opened.
        foreign: a folder for notes, where `sqlite3` and `open` try the store's files all the time.
        is_old: be an earlier version, which does not know the handler "slow".
        database: the URL of a PostgreSQL, if the handlers are those of ``booking`` instead.
        is_keyed: have two handlers with keys instead, "latest" and "serial".
        formats: the formats of stores that its version knows.

    """

    store: str
    secret: str
    journal: str
    role: Literal["web", "worker"] = "web"
    port: int = 0
    inbox: bool = True
    handlers: int = 2
    pause_seconds: float = 0.03
    concurrency: int = 16
    backoff_seconds: float = 0.3
    lease_seconds: float = 2.0
    clock: str = ""
    is_mounted: bool = False
    is_nobody: bool = False
    foreign: str = ""
    is_old: bool = False
    database: str = ""
    is_keyed: bool = False
    formats: tuple[int, ...] = (1,)

    def to_json(self) -> str:
        """Return it as the argument of the program."""
        return json.dumps(asdict(self))

    @property
    def handler_names(self) -> list[str]:
        """The names of the handlers that every event is run by."""
        if self.is_keyed:
            return ["serial"]  # "latest" leaves out what comes too late
        return [] if self.database else ["slow", "quick"][self.is_old : self.handlers]


class _Clock:
    """The wall clock, and how far off a shared file says it is."""

    def __init__(self, path: str) -> None:
        self._real = time.time
        with Path(path).open("rb") as file:
            self._shared = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)

    def __call__(self) -> float:
        (offset,) = struct.unpack("d", self._shared[:8])
        return self._real() + float(offset)


def shifted_clock(path: Path) -> _Clock:
    """Return the time by a clock that jumps."""
    return _Clock(str(path))


def set_clock(path: Path, offset: float) -> None:
    """Let the clocks of all processes that look at the file jump."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(struct.pack("d", offset))


def _receiver(settings: Settings, journal: Writer) -> Receiver:
    SQLiteStore.formats = RedisStore.formats = tuple(settings.formats)
    store = open_store(settings.store, clock=system_clock)
    _note_completions(store, journal)
    if settings.foreign:
        _open_by_others(store, settings)
    receiver = Receiver(
        secrets=settings.secret,
        store=store,
        limits=Limits(lease_seconds=settings.lease_seconds, answer_seconds=ANSWER_SECONDS),
        inbox=Inbox(
            embedded=False,
            concurrency=settings.concurrency,
            # No longer than the bench waits at the end for what is left.
            backoff=Backoff(first_seconds=settings.backoff_seconds, longest_seconds=15),
        )
        if settings.inbox
        else None,
    )

    async def slow(event: CommentReceived, context: Context) -> None:
        journal.write("begin", event.id, "slow", context.attempt)
        if settings.pause_seconds:
            share = int(event.id[-4:], 16) / 0xFFFF
            await asyncio.sleep(settings.pause_seconds * share)
        if event.data.text == FAILS_ONCE and context.attempt == 1:
            journal.write("fail", event.id, "slow", context.attempt)
            raise RuntimeError(FAILS_ONCE)
        journal.write("end", event.id, "slow", context.attempt)

    def quick(event: CommentReceived, context: Context) -> None:
        journal.write("begin", event.id, "quick", context.attempt)
        journal.write("end", event.id, "quick", context.attempt)

    if settings.is_keyed:
        _note_asking(store, journal)
        _add_keyed_handlers(receiver, settings, journal)
        return receiver
    for handler in (slow, quick):
        if handler.__name__ in settings.handler_names:
            receiver.on(CommentReceived, name=handler.__name__)(handler)
    return receiver


def key_of(event_id: str) -> str:
    """Return which of a few keys an event has."""
    return str(int(event_id[-4:], 16) % KEYS)


def _add_keyed_handlers(receiver: Receiver, settings: Settings, journal: Writer) -> None:
    async def run(event: CommentReceived, context: Context) -> None:
        journal.write("begin", event.id, context.handler, context.attempt)
        await asyncio.sleep(settings.pause_seconds * random.uniform(0.2, 1.0))
        journal.write("end", event.id, context.handler, context.attempt)

    receiver.on(CommentReceived, name="latest", latest_by=lambda event: key_of(event.id))(run)
    receiver.on(CommentReceived, name="serial", serial_by=lambda event: key_of(event.id))(run)


def _note_asking(store: Store, journal: Writer) -> None:
    enter, known = store.acquire_key_lock, set[Token]()

    async def noted(
        key_lock: KeyLock,
        token: Token,
        lease: float,
        *,
        watermark: Watermark | None = None,
        drop_ties: bool = False,
        waiting: DeliveryKey | None = None,
    ) -> AcquireResult:
        if watermark is not None and token not in known:
            journal.write("ask", watermark.event_id, key_lock.handler, 0)
        result = await enter(
            key_lock, token, lease, watermark=watermark, drop_ties=drop_ties, waiting=waiting
        )
        if isinstance(result, Acquired):
            known.add(token)  # from now on it asks for its own key again
        return result

    store.acquire_key_lock = noted  # type: ignore[method-assign]  # the store itself shall be the real one


def _note_completions(store: Store, journal: Writer) -> None:
    complete = store.complete

    async def noted(claim: Claimed) -> None:
        await complete(claim)
        journal.write("done", claim.key.partition(":")[2], "-", claim.attempt)

    store.complete = noted  # type: ignore[method-assign]  # the store itself shall be the real one


def _open_by_others(store: Store, settings: Settings) -> None:
    """Let a thread read the store's files by other libraries as soon as the store is open."""
    file = sqlite_path(settings.store)
    ways: list[Callable[[], object]] = [
        lambda: sqlite3.connect(file),
        lambda: sqlite3.connect(f"file:{file}?mode=ro", uri=True),
        *(Path(f"{file}{suffix}").read_bytes for suffix in ("", "-wal", "-shm")),
        lambda: shutil.copyfile(file, Path(settings.foreign, f"{os.getpid()}.copy")),
    ]

    def read_for_ever() -> None:
        with Path(settings.foreign, f"{os.getpid()}.notes").open("wb", buffering=0) as notes:
            for way in cycle(ways):
                try:
                    opened = way()
                except PermissionError:
                    notes.write(REFUSED)
                except (OSError, sqlite3.Error):
                    pass  # the store is closed, and its log is gone
                else:
                    if isinstance(opened, sqlite3.Connection):
                        with suppress(sqlite3.Error):
                            opened.execute("SELECT count(*) FROM entries").fetchall()
                        opened.close()
                    notes.write(OPENED)
                time.sleep(_FOREIGN_PAUSE_SECONDS)

    open_store = store.open
    threads: list[threading.Thread] = []

    async def opened() -> None:
        await open_store()
        if not threads:
            threads.append(threading.Thread(target=read_for_ever, daemon=True))
            threads[0].start()

    store.open = opened  # type: ignore[method-assign]  # the store itself shall be the real one


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _around(
    receiver: Receiver, settings: Settings, journal: Writer
) -> AbstractAsyncContextManager[None]:
    """Return what lasts as long as the receiver does."""
    if not settings.database:
        return nullcontext()
    from faults.booking import booking  # every driver: too slow to import for who needs none

    return booking(receiver, settings.database, journal)


class _Server(uvicorn.Server):
    """Uvicorn's server, which says when it listens."""

    around: AbstractAsyncContextManager[None]

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with self.around:
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _say_ready()


def _serve(
    receiver: Receiver, settings: Settings, around: AbstractAsyncContextManager[None]
) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", settings.port))
    config = uvicorn.Config(
        receiver,
        lifespan="off" if settings.is_mounted else "on",
        access_log=False,
        log_level="warning",
        backlog=512,
    )
    config.load()
    if settings.is_nobody:
        os.setuid(_NOBODY)
    server = _Server(config)
    server.around = around
    server.run(sockets=[listener])


async def _work(receiver: Receiver, around: AbstractAsyncContextManager[None]) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with around, receiver.working():
        _say_ready()
        await stopped.wait()


def _main() -> None:
    ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(BLOCKED_SECONDS))
    settings = Settings(**json.loads(sys.argv[1]))
    if settings.clock:
        time.time = _Clock(settings.clock)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    journal = Writer(Path(settings.journal))
    receiver = _receiver(settings, journal)
    around = _around(receiver, settings, journal)
    if settings.role == "web":
        _serve(receiver, settings, around)
    else:
        asyncio.run(_work(receiver, around))


if __name__ == "__main__":
    _main()
