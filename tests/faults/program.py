"""The program of web and worker processes: ``python program.py '{"role": "web", ...}'``."""

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import uvicorn

from hookonce import Backoff, Context, Event, Inbox, Limits, Receiver
from hookonce.clock import system_clock
from hookonce.events import CommentReceived
from hookonce.http.app import ASGIApp
from hookonce.senders.built_in import BUILT_IN
from hookonce.stores import open_store, sqlite_path
from hookonce.stores.protocols import Store
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
from support.endpoints import application_of

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
"""How long SIGUSR1 blocks the event loop of a process, as a blocking handler would."""
_KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_NOBODY = 65534
REFUSED, OPENED = b"r", b"o"
_FOREIGN_PAUSE_SECONDS = 0.02
_KEPT = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a process.

    Attributes:
        store: the URL of the store.
        secret: the secret that signs deliveries.
        journal: the folder of the journal.
        role: what the process does; "replay" replays one batch of handled events after the other.
        port: the port at which all web processes listen.
        inbox: store deliveries for workers, instead of handling them inside the request.
        handlers: the number of handlers for each event.
        pause_seconds: the longest time that the last handler takes.
        concurrency: how many events a worker handles at once.
        backoff_seconds: how long an event waits after a failure.
        lease_seconds: the option of ``Limits``.
        clock: a file with the offset that the process adds to the wall clock.
        is_mounted: serve without a lifespan, so that the store opens at the first delivery.
        is_nobody: give up the rights of root before the store opens.
        foreign: a folder for notes. If it is given, a thread opens the store's files all the time
            with `sqlite3` and `open`.
        is_old: simulate an earlier version, which does not have the handler "slow".
        database: the URL of a PostgreSQL; if it is given, the handlers are those of ``booking``.
        is_keyed: use two handlers with key locks, "latest" and "serial".
        ledger: a SQLite file; if it is given, the store keeps handled events, and the handler of
            ``replaying`` runs within the ledger in this file.
        python: the interpreter, which decides the installed version of hookonce.
        senders: the names and secrets of built-in senders. Each gets a receiver at ``/<name>``,
            with the name as its endpoint; all use one store. By default there is one receiver.

    """

    store: str
    secret: str
    journal: str
    role: Literal["web", "worker", "replay"] = "web"
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
    ledger: str = ""
    python: str = sys.executable
    senders: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the settings as the argument of the program."""
        return json.dumps(asdict(self))

    @property
    def handler_names(self) -> list[str]:
        """The names of the handlers that run for every event."""
        if self.is_keyed:
            return ["serial"]  # "latest" does not run for late events
        return [] if self.database else ["slow", "quick"][self.is_old : self.handlers]


class _Clock:
    """The wall clock plus the offset in a shared file."""

    def __init__(self, path: str) -> None:
        self._real = time.time
        with Path(path).open("rb") as file:
            self._shared = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)

    def __call__(self) -> float:
        (offset,) = struct.unpack("d", self._shared[:8])
        return self._real() + float(offset)


def shifted_clock(path: Path) -> _Clock:
    """Return a clock that jumps when the offset in the file changes."""
    return _Clock(str(path))


def set_clock(path: Path, offset: float) -> None:
    """Set the offset of the clocks of all processes that read the file."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(struct.pack("d", offset))


def _receiver(settings: Settings, journal: Writer, sender: str) -> Receiver:
    store = open_store(settings.store, clock=system_clock)
    _note_completions(store, journal)
    if settings.foreign:
        _open_by_others(store, settings)
    # An old version of hookonce may not know `keep_handled`.
    kept: dict[str, Any] = {"keep_handled": _KEPT} if settings.ledger else {}
    receiver = Receiver(
        secrets=settings.senders.get(sender, settings.secret),
        store=store,
        sender=BUILT_IN[sender],
        endpoint=sender if settings.senders else "default",
        limits=Limits(
            lease_seconds=settings.lease_seconds,
            # If there are several senders, each endpoint answers within the time limit of its own
            # sender.
            answer_seconds=None if settings.senders else ANSWER_SECONDS,
        ),
        inbox=Inbox(
            embedded=False,
            concurrency=settings.concurrency,
            # A longer pause would outlast the bench's wait for the last retries.
            backoff=Backoff(first_seconds=settings.backoff_seconds, longest_seconds=15),
        )
        if settings.inbox
        else None,
        **kept,
    )

    async def slow(event: Event[Any], context: Context) -> None:
        journal.write("begin", event.id, "slow", context.attempt)
        if settings.pause_seconds:
            share = int(event.id[-4:], 16) / 0xFFFF
            await asyncio.sleep(settings.pause_seconds * share)
        if FAILS_ONCE in str(event.data) and context.attempt == 1:
            journal.write("fail", event.id, "slow", context.attempt)
            raise RuntimeError(FAILS_ONCE)
        journal.write("end", event.id, "slow", context.attempt)

    def quick(event: Event[Any], context: Context) -> None:
        journal.write("begin", event.id, "quick", context.attempt)
        journal.write("end", event.id, "quick", context.attempt)

    if settings.is_keyed:
        _note_asking(store, journal)
        _add_keyed_handlers(receiver, settings, journal)
        return receiver
    for handler in (slow, quick):
        if handler.__name__ in settings.handler_names:
            receiver.on("comment.received", "response.*", name=handler.__name__)(handler)
    if settings.ledger:
        from faults.replaying import add_booking

        add_booking(receiver, store, settings.ledger, journal)
    return receiver


def key_of(event_id: str) -> str:
    """Return one of a few keys, so that events compete for key locks."""
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
            known.add(token)  # the holder's later calls only renew the key lock: do not note them
        return result

    store.acquire_key_lock = noted  # type: ignore[method-assign]  # replaces one method of a real store


def _note_completions(store: Store, journal: Writer) -> None:
    complete = store.complete

    async def noted(claim: Claimed) -> None:
        await complete(claim)
        journal.write("done", claim.key.partition(":")[2], "-", claim.attempt)

    store.complete = noted  # type: ignore[method-assign]  # replaces one method of a real store


def _open_by_others(store: Store, settings: Settings) -> None:
    """Let a thread read the store's files with other libraries once the store is open."""
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
                    pass  # the store has closed, and SQLite has deleted the log
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

    store.open = opened  # type: ignore[method-assign]  # replaces one method of a real store


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _around(
    receiver: Receiver, settings: Settings, journal: Writer
) -> AbstractAsyncContextManager[None]:
    """Return ``booking`` if the settings name a database, else a context that does nothing."""
    if not settings.database:
        return nullcontext()
    # Imported here, because it imports every driver: too slow for processes that need no driver.
    from faults.booking import booking

    return booking(receiver, settings.database, journal)


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it listens."""

    around: AbstractAsyncContextManager[None]

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with self.around:
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _say_ready()


def _serve(app: ASGIApp, settings: Settings, around: AbstractAsyncContextManager[None]) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", settings.port))
    config = uvicorn.Config(
        app,
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


async def _work(receivers: Sequence[Receiver], around: AbstractAsyncContextManager[None]) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with around, AsyncExitStack() as stack:
        for receiver in receivers:
            await stack.enter_async_context(receiver.working())
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
    senders = settings.senders or ("publishing",)
    receivers = [_receiver(settings, journal, sender) for sender in senders]
    around = _around(receivers[0], settings, journal)
    if settings.role == "replay":
        from faults.replaying import replay

        asyncio.run(replay(receivers[0], settings.ledger, _say_ready))
    elif settings.role == "web":
        app = application_of(receivers) if settings.senders else receivers[0]
        _serve(app, settings, around)
    else:
        asyncio.run(_work(receivers, around))


if __name__ == "__main__":
    _main()
