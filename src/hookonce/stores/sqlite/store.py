"""The SQLite store: durable, and shared by the processes of one machine.

The file uses a write-ahead log with synchronous=FULL, so every answered change survives a power
cut. Only claims, key locks and records of ignored types do not wait for the disk, because no answer
depends on them. The file must be on a local disk: write-ahead logs fail on network file systems.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import apsw

from ...clock import Clock, span_seconds, system_clock
from ...logs import get_logger
from .. import life
from ..formats import Upgrade, outdated, set_aside
from ..handled import Keeping
from ..protocols import DEFAULT_RETENTION, Flushes
from ..record_store import EventStep, KeyLockStep, StepStore
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
from .backup import restore_backup, write_backup
from .batch import StepJob
from .claiming import ClaimJob, CompleteJob
from .handled import CompleteAndKeepJob
from .handled_events import SQLiteHandled
from .inbox import EnqueueJob, InboxLimits
from .key_locks import take_step
from .reconciling import SQLiteReconciling
from .reports import SQLiteReports
from .schema import FORMATS
from .shared import shared_file

_log = get_logger("hookonce.store")

T = TypeVar("T")

# How often an idle worker checks whether the log has changed. The check is one stat() call.
_LOOK_SECONDS = 0.025

_NONE: frozenset[str] = frozenset()


class SQLiteStore(StepStore, SQLiteReports, SQLiteReconciling, SQLiteHandled):
    """A store in one SQLite file.

    The stores of a process with the same file, retention and clock share one connection and one
    thread. Closing the last of these stores closes both.

    Args:
        path: the file; it is created if it does not exist, but its folder must exist.
        retention: how long a done event is remembered; at least the span of the receiver's sender.
        clock: Unix time in seconds.

    Attributes:
        formats: the formats of files that this version can write, oldest first.
        path: the file, resolved.
        retention_seconds: how long a done event is remembered.
        flushes: listeners that are notified of each transaction.
    """

    keeps_bodies = True
    formats = FORMATS

    def __init__(
        self,
        path: str | Path,
        *,
        retention: float | timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self.retention_seconds: float = span_seconds("retention", retention, positive=True)
        path = Path(path).absolute()  # the working folder may change later
        self._file = shared_file(path, self.retention_seconds, clock, self.formats)
        self._claims, self._inbox = self._file.claims, self._file.inbox
        self._looked: dict[str, tuple[int, int] | None] = {}
        self.path: Path = path.resolve()
        self.flushes: Flushes = Flushes()
        self._logged: set[str] = set()

    def __str__(self) -> str:
        """Return the URL of the store."""
        return f"sqlite:///{self.path}"

    async def open(self) -> None:
        """Open the file, and log a warning if its format is not the newest; raises StoreError."""
        for warning in await self.warnings():
            if warning not in self._logged:
                self._logged.add(warning)
                _log.warning("%s", warning)

    async def warnings(self) -> tuple[str, ...]:
        """Warn of an older format and of records that were set aside; see ``Reports.warnings``."""
        count = await self._count_damaged()  # this call opens the file, and so reads its format
        return (*outdated(self._file.format.number, self.formats), *set_aside(count))

    async def upgrade(self) -> Upgrade:
        """Migrate the file to the newest format; see ``UpgradableStore.upgrade``."""
        return await self._run(self._file.format.upgrade)

    async def aclose(self) -> None:
        """Finish the waiting calls and close the file."""
        await self._file.writer.leave(self.flushes)

    async def backup(self, file: str | Path, *, overwrite: bool = False) -> int:
        """Copy the store into a file, while processes go on using the store.

        The copy contains every call that was answered before, and has mode 0600. It appears at its
        path complete and synced to the disk, or not at all. The store need not be open.

        Args:
            file: path of the copy; its folder must exist.
            overwrite: whether an existing file is replaced.

        Returns:
            The size of the copy in bytes.

        Raises:
            StoreError: the backup failed; the message says why.
        """
        source, target = self._file.path, Path(file)
        return await asyncio.to_thread(write_backup, source, target, overwrite=overwrite)

    async def restore(
        self, backup: str | Path, *, overwrite: bool = False
    ) -> tuple[int, Path | None]:
        """Copy a backup to the path of this store, which must not be open.

        The file has mode 0600. If root restores it, it belongs to the owner of the old file, or of
        the folder.

        Args:
            backup: a file that ``backup`` has written.
            overwrite: whether an existing store is moved aside.

        Returns:
            The size of the store in bytes, and the new path of the old store; None if there was
            none.

        Raises:
            StoreError: the restore failed; the message says why.
        """
        target = self._file.path
        return await asyncio.to_thread(restore_backup, Path(backup), target, overwrite=overwrite)

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        return await self._file.writer.run(ClaimJob(self.flushes, key, self._claims, token, lease))

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        return await self.change_event(
            key,
            lambda record, moment: life.replay(record, moment, key, token, lease),
            may_be_dropped=True,
        )

    async def complete(self, claim: Claimed) -> None:
        await self._file.writer.run(CompleteJob(self.flushes, claim.key, self._claims))

    async def complete_and_keep(
        self, claim: Claimed, delivery: Delivery, finished: Collection[str], keeping: Keeping
    ) -> None:
        await self._file.writer.run(
            CompleteAndKeepJob(self.flushes, claim.key, self._claims, delivery, finished, keeping)
        )

    async def enqueue(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
        key_lock: KeyLock | None = None,  # noqa: ARG002 - optional: it only saves workers useless fetches
    ) -> EnqueueResult:
        limits = InboxLimits(max_depth, max_bytes)
        return await self._file.writer.run(
            EnqueueJob(self.flushes, delivery.key, self._claims, delivery, token, limits)
        )

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        # Remember the state of the log before the fetch, so that `wait` notices any later enqueue.
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
        return await self.change_event(
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
        """Wait until there may be an event to fetch; see ``Queue.wait``.

        A commit by any process changes the write-ahead log, so this watches the log.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (remaining := end - loop.time()) > 0:
            await asyncio.sleep(min(_LOOK_SECONDS, remaining))
            if self._log_state() != self._looked.get(endpoint):
                return

    async def make_due(self, key: DeliveryKey) -> bool:
        return await self.change_event(key, life.make_due)

    @property
    def place(self) -> Path:
        """The identity of the store: the same for all stores on one file."""
        return self.path

    def change_event(
        self,
        key: DeliveryKey,
        step: EventStep[T],
        delivery: Delivery | None = None,
        **allowed: bool,
    ) -> asyncio.Future[T]:
        """Do a step; see ``StepStore.change_event``. The other arguments are those of ``Job``."""
        return self._run(
            lambda connection: self._claims.step(connection, key, step, delivery), **allowed
        )

    def change_key_lock(
        self,
        key_lock: KeyLock,
        step: KeyLockStep[T],
        *,
        is_acquiring: bool,
        event: DeliveryKey | None = None,
    ) -> asyncio.Future[T]:
        # Drop a cancelled acquire, since nobody would release the lock. Do not wait for the disk. A
        # power cut that loses a lock also ends the process that holds the lock. A watermark reaches
        # the disk with the commit of its event's success, which comes later and waits for the disk.
        return self._run(
            lambda connection: take_step(connection, self._claims.moment(), key_lock, step, event),
            may_be_dropped=is_acquiring,
            may_be_lost=True,
        )

    def _run(self, step: Callable[[apsw.Connection], T], **allowed: bool) -> asyncio.Future[T]:
        """Run ``step`` in a transaction; the keyword arguments are those of ``Job``."""
        return self._file.writer.run(StepJob(self.flushes, step, **allowed))

    def _log_state(self) -> tuple[int, int] | None:
        try:
            status = self._file.writer.log.stat()
        except OSError:  # there is no log
            return None
        return status.st_mtime_ns, status.st_size
