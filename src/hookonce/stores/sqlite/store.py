"""The SQLite store: durable on one machine, shared by the processes of it.

WAL with synchronous=FULL: what has been answered survives a power cut. Only claims do not wait for
the disk, since no answer rests on them. The file must lie on a local disk; write-ahead logs do not
work over network file systems.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import apsw

from ...clock import Clock, system_clock
from .. import life
from ..contract import DEFAULT_RETENTION, Flushes, check_retention
from ..steps import KeyLockStep, LifeStep, StepStore
from ..values import (
    Batch,
    Claimed,
    ClaimResult,
    Delivery,
    DeliveryKey,
    EnqueueResult,
    KeyLock,
    Ownership,
    Token,
)
from .backup import write_backup
from .batch import Step
from .claiming import Claim, Completion
from .inbox import Limits, Put
from .key_locks import fetch_step
from .reconciling import SQLiteReconciling
from .reports import SQLiteReports
from .shared import shared_file

T = TypeVar("T")

# A worker with nothing to do looks this often whether the file has changed. Such a look asks the
# system for a file's times, and reads nothing.
_LOOK_SECONDS = 0.025

_NONE: frozenset[str] = frozenset()


class SQLiteStore(StepStore, SQLiteReports, SQLiteReconciling):
    """Remembers events in one SQLite file.

    Stores of one process on one file, with one retention and clock, share a connection and a
    thread, which the last of them closes.

    Args:
        path: the file; it is created where it does not exist, its folder is not.
        retention: how long a done event is remembered; at least 26 hours.
        clock: Unix time in seconds.

    Attributes:
        path: the file, resolved.
        retention_seconds: how long a done event is remembered.
        flushes: who is told of each transaction.

    """

    keeps_bodies = True

    def __init__(
        self,
        path: str | Path,
        *,
        retention: float | timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self.retention_seconds = check_retention(retention)
        path = Path(path).absolute()  # the folder may be changed, and so may a link
        self._file = shared_file(path, self.retention_seconds, clock)
        self._claims, self._inbox = self._file.claims, self._file.inbox
        self._looked: dict[str, tuple[int, int] | None] = {}
        self.path = path.resolve()
        self.flushes = Flushes()

    async def open(self) -> None:
        """Open the file and bring its schema up to date, or raise StoreError."""
        await self._run(lambda _: None)  # the writer opens the file

    async def warnings(self) -> tuple[str, ...]:
        """Return nothing, if the file can be used: there are no settings to mend."""
        await self.open()
        return ()

    async def aclose(self) -> None:
        """Finish what waits and close the file."""
        await self._file.writer.leave(self.flushes)

    async def backup(self, file: str | Path, *, overwrite: bool = False) -> int:
        """Copy the store into a file, while every process goes on using the store.

        The copy has everything that was answered before the call, and mode 0600. It appears at its
        path complete and on the disk, or not at all. The store need not be open.

        Args:
            file: where the copy is to be; its folder must exist.
            overwrite: whether a file that is there is replaced.

        Returns:
            The size of the copy in bytes.

        Raises:
            StoreError: the backup failed; the message says why.

        """
        source, target = self._file.path, Path(file)
        return await asyncio.to_thread(write_backup, source, target, overwrite=overwrite)

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event; see ``Store.claim``."""
        return await self._file.writer.run(Claim(self.flushes, key, self._claims, token, lease))

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Claim a dead letter; see ``Store.replay``."""
        return await self._step(
            key,
            lambda record, moment: life.replay(record, moment, key, token, lease),
            may_be_dropped=True,
        )

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled; see ``Store.complete``."""
        await self._file.writer.run(Completion(self.flushes, claim.key, self._claims))

    async def enqueue(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
    ) -> EnqueueResult:
        """Store a delivery durably; see ``InboxStore.put``."""
        limits = Limits(max_depth, max_bytes)
        return await self._file.writer.run(
            Put(self.flushes, delivery.key, self._claims, delivery, token, limits)
        )

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim events that are due; see ``InboxStore.take``."""
        # Noted before the look at the inbox: what is put after it shows as a change.
        self._looked[endpoint] = self._log_state()
        batch: Batch = await self._run(
            lambda connection: self._inbox.fetch(connection, limit, lease, endpoint, worker, token),
            may_be_dropped=True,
        )
        self._inbox.looked()
        return batch

    async def retry(
        self,
        claim: Claimed,
        after: float,
        finished: frozenset[str] = _NONE,
        error: str | None = None,
        *,
        outstanding: frozenset[str] = _NONE,
        began: bool = True,
    ) -> Ownership:
        """Give an event back to the inbox; see ``InboxStore.retry``."""
        return await self._step(
            claim.key,
            lambda record, moment: life.release(
                record,
                moment,
                claim,
                finished,
                error,
                outstanding=outstanding,
                began=began,
                after=after,
            ),
        )

    async def wait(self, endpoint: str, seconds: float) -> None:
        """Return when there may be something to take; see ``InboxStore.wait``.

        Every process's commits change the write-ahead log.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (remaining := end - loop.time()) > 0:
            await asyncio.sleep(min(_LOOK_SECONDS, remaining))
            if self._log_state() != self._looked.get(endpoint):
                return

    async def make_due(self, key: DeliveryKey) -> bool:
        """Make a waiting event due now; see ``InboxStore.make_due``."""
        return await self._step(key, life.make_due)

    @property
    def place(self) -> Path:
        """What is equal for two stores on one file; see ``RegisteringStore.place``."""
        return self.path

    def _step(
        self,
        key: DeliveryKey,
        step: LifeStep[T],
        delivery: Delivery | None = None,
        **allowed: bool,
    ) -> asyncio.Future[T]:
        return self._run(
            lambda connection: self._claims.step(connection, key, step, delivery), **allowed
        )

    def _key_lock_step(
        self,
        key_lock: KeyLock,
        step: KeyLockStep[T],
        *,
        is_acquiring: bool,
        event: DeliveryKey | None = None,
    ) -> asyncio.Future[T]:
        # Nobody else would leave a gate that nobody waits to enter. A power cut may undo the step:
        # who was inside is inside no more, and the success that a mark stands for counts once it is
        # recorded, by a later commit that waits for the disk and takes the mark along.
        return self._run(
            lambda connection: fetch_step(connection, self._claims.moment(), key_lock, step, event),
            may_be_dropped=is_acquiring,
            may_be_lost=True,
        )

    def _run(self, step: Callable[[apsw.Connection], T], **allowed: bool) -> asyncio.Future[T]:
        """Run a step in a transaction; the keyword arguments are those of ``Job``."""
        return self._file.writer.run(Step(self.flushes, step, **allowed))

    def _log_state(self) -> tuple[int, int] | None:
        try:
            status = self._file.writer.log.stat()
        except OSError:  # not there yet, or not any more
            return None
        return status.st_mtime_ns, status.st_size
