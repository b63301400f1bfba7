"""The SQLite store: durable on one machine, shared by the processes of it.

WAL with synchronous=FULL: what has been answered survives a power cut. Only claims do not wait for
the disk, since no answer rests on them. The file must lie on a local disk; write-ahead logs do not
work over network file systems.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import apsw

from ...clock import Clock, system_clock
from .. import life
from ..applications import Application
from ..contract import DEFAULT_RETENTION, Flushes
from ..values import (
    Batch,
    Claimed,
    ClaimResult,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    Entry,
    Ownership,
    PutResult,
    StoreStats,
    Token,
)
from .bulk import BulkClaims, BulkCompletions, Claim, Completion
from .claims import Claims, LifeStep
from .inbox import BulkPuts, InboxTable, Put
from .register import register
from .writer import Writer

__all__ = ["SQLiteStore"]

T = TypeVar("T")

# One step of pruning reads this many keys: a few milliseconds in which no claim can run.
_PRUNE_KEYS = 2_000
_PRUNE_PAUSE_SECONDS = 0.05
_PRUNE_INTERVAL_SECONDS = 3_600.0
# A worker with nothing to do looks this often whether the file has changed. Such a look asks the
# system for a file's times and reads nothing; an idle worker takes 0.7 % of a core, as measured.
_LOOK_SECONDS = 0.025

_NONE: frozenset[str] = frozenset()


class SQLiteStore:
    """Remembers events in one SQLite file.

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
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        path = Path(path).absolute()  # the folder may be changed, and so may a link
        self._clock = clock
        self._claims = Claims(retention, clock)
        self._inbox = InboxTable(self._claims)
        self._bulk_claims = BulkClaims(self._claims)
        self._bulk_completions = BulkCompletions(self._claims)
        self._bulk_puts = BulkPuts(self._claims, self._inbox)
        self._looked: dict[str, tuple[int, int] | None] = {}
        self.path = path.resolve()
        self.retention_seconds = retention.total_seconds()
        self.flushes = Flushes()
        self._writer = Writer(path, self._maintain, self.flushes.tell)
        self._prune_walk: tuple[str, bytes] | None = None

    async def open(self) -> None:
        """Open the file and bring its schema up to date, or raise StoreError."""
        await self._writer.run(_nothing)

    async def warnings(self) -> tuple[str, ...]:
        """Return nothing, if the file can be used: there are no settings to mend."""
        await self.open()
        return ()

    async def aclose(self) -> None:
        """Finish what waits and close the file."""
        await self._writer.aclose()

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event; see ``Store.claim``."""
        # No answer rests on a claim: what one does rest on is committed later, and takes the claim
        # along to the disk. If a power cut comes first, the sender has no answer and repeats the
        # delivery; it counts them as well. Half the waits are saved: with a disk that takes 5 ms to
        # sync, a claim and its completion at 64 at once take 119 µs instead of 240.
        return await self._writer.run_with_others(
            self._bulk_claims, Claim(key, token, lease), may_be_dropped=True, may_be_lost=True
        )

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Claim a dead letter; see ``Store.replay``."""
        return await self._step(
            key,
            lambda record, moment: life.replay(record, moment, key, token, lease),
            may_be_dropped=True,
        )

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, owed: frozenset[str] = _NONE
    ) -> Ownership:
        """Start the lease anew; see ``Store.extend``."""
        return await self._step(
            claim.key, lambda record, moment: life.extend(record, moment, claim, finished, owed)
        )

    async def release(
        self,
        claim: Claimed,
        finished: frozenset[str],
        error: str | None = None,
        *,
        owed: frozenset[str] = _NONE,
        began: bool = True,
    ) -> Ownership:
        """Give the event back; see ``Store.release``."""
        return await self.retry(claim, 0.0, finished, error, owed=owed, began=began)

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled; see ``Store.complete``."""
        await self._writer.run_with_others(self._bulk_completions, Completion(claim.key))

    async def keep(self, claim: Claimed, delivery: Delivery) -> Ownership:
        """Keep the delivery beside its claim; see ``Store.keep``."""
        return await self._step(
            claim.key, lambda record, moment: life.keep(record, moment, claim), delivery
        )

    async def keep_in_flight(self, delivery: Delivery) -> None:
        """Keep a delivery beside somebody else's claim; see ``Store.keep_in_flight``."""
        await self._step(
            delivery.key,
            lambda record, moment: (None, life.keep_in_flight(record, moment)),
            delivery,
        )

    async def bury(
        self,
        claim: Claimed,
        reason: DeadReason,
        *,
        error: str = "",
        finished: frozenset[str] = _NONE,
        owed: frozenset[str] = _NONE,
        delivery: Delivery | None = None,
    ) -> Ownership:
        """Make the event a dead letter; see ``Store.bury``."""
        return await self._step(
            claim.key,
            lambda record, moment: life.bury(record, moment, claim, reason, error, finished, owed),
            delivery,
        )

    async def dead_letters(
        self, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first, with empty bodies."""
        return await self._writer.run(
            lambda connection: self._claims.letters(connection, endpoint, event_type, limit)
        )

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter with its body."""
        return await self._writer.run(lambda connection: self._claims.letter(connection, key))

    async def discard(self, key: DeliveryKey) -> bool:
        """Forget a dead letter and remember the event as done; see ``Store.discard``."""
        return await self._step(key, life.discard)

    async def prune(self) -> int:
        """Remove records whose retention is over, in small steps, and return how many."""
        removed = 0
        for table in ("done", "attempts"):
            after: bytes | None = b""
            while after is not None:
                count, after = await self._writer.run(partial(self._prune_step, table, after))
                removed += count
        return removed

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        """Return how much the store holds, of one endpoint or of all."""

        def step(connection: apsw.Connection) -> StoreStats:
            in_flight, dead = self._claims.count(connection, endpoint)
            sizes = self._inbox.sizes(connection, endpoint)
            return StoreStats(in_flight=in_flight, dead=dead, **sizes._asdict())

        return await self._writer.run(step)

    async def put(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
    ) -> PutResult:
        """Store a delivery durably; see ``InboxStore.put``."""
        call = Put(delivery.key, delivery, token, max_depth, max_bytes)
        return await self._writer.run_with_others(self._bulk_puts, call)

    async def take(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim events that are due; see ``InboxStore.take``."""
        # Noted before the look at the inbox: what is put after it shows as a change.
        self._looked[endpoint] = self._log_state()
        batch = await self._writer.run(
            lambda connection: self._inbox.take(connection, limit, lease, endpoint, worker, token),
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
        owed: frozenset[str] = _NONE,
        began: bool = True,
    ) -> Ownership:
        """Give an event back to the inbox; see ``InboxStore.retry``."""
        return await self._step(
            claim.key,
            lambda record, moment: life.release(
                record, moment, claim, finished, error, owed=owed, began=began, after=after
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

    async def retire(self, worker: str) -> None:
        """Forget a worker that ends."""
        await self._writer.run(lambda connection: self._inbox.retire(connection, worker))

    async def entries(
        self, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
    ) -> list[Entry]:
        """Return what is in the inbox, oldest first, with empty bodies."""
        return await self._writer.run(
            lambda connection: self._inbox.entries(connection, endpoint, event_type, limit)
        )

    async def entry(self, key: DeliveryKey) -> Entry | None:
        """Return one event of the inbox with its body."""
        return await self._writer.run(lambda connection: self._inbox.entry(connection, key))

    async def hasten(self, key: DeliveryKey) -> bool:
        """Make a waiting event due now; see ``InboxStore.hasten``."""
        return await self._step(key, life.hasten)

    @property
    def place(self) -> Path:
        """What is equal for two stores on one file; see ``RegisteringStore.place``."""
        return self.path

    async def register(
        self, endpoint: str, application: Application | None
    ) -> tuple[Application, ...]:
        """Note an application of an endpoint; see ``RegisteringStore.register``."""
        return await self._writer.run(
            lambda connection: register(connection, self._clock(), endpoint, application)
        )

    async def _step(
        self,
        key: DeliveryKey,
        step: LifeStep[T],
        delivery: Delivery | None = None,
        *,
        may_be_dropped: bool = False,
    ) -> T:
        return await self._writer.run(
            lambda connection: self._claims.step(connection, key, step, delivery),
            may_be_dropped=may_be_dropped,
        )

    def _log_state(self) -> tuple[int, int] | None:
        try:
            status = self._writer.log.stat()
        except OSError:  # not there yet, or not any more
            return None
        return status.st_mtime_ns, status.st_size

    def _prune_step(
        self, table: str, after: bytes, connection: apsw.Connection
    ) -> tuple[int, bytes | None]:
        """Prune the next keys of a table; return how many went, and where to go on, if anywhere."""
        last = connection.execute(
            f"SELECT key FROM {table} WHERE key > ? ORDER BY key LIMIT 1 OFFSET ?",
            (after, _PRUNE_KEYS - 1),
        ).get
        # 17 bytes of 0xff sort behind every 16-byte key.
        upto = b"\xff" * 17 if last is None else last
        now = self._clock()
        live = ""
        if table == "attempts":
            live = " AND until <= ? AND NOT EXISTS (SELECT 1 FROM inbox WHERE key = attempts.key)"
        connection.execute(
            f"DELETE FROM {table} WHERE key > ? AND key <= ? AND expires <= ?{live}",
            (after, upto, now, *([self._claims.uptime()] if live else [])),
        )
        return connection.changes(), cast("bytes | None", last)

    def _maintain(self, connection: apsw.Connection) -> float:
        """Prune one step further; a whole walk every hour keeps the file from growing."""
        table, after = self._prune_walk or ("done", b"")
        _, next_key = self._prune_step(table, after, connection)
        if next_key is not None:
            self._prune_walk = (table, next_key)
        elif table == "done":
            self._prune_walk = ("attempts", b"")
        else:
            self._prune_walk = None
            return _PRUNE_INTERVAL_SECONDS
        return _PRUNE_PAUSE_SECONDS


def _nothing(_: apsw.Connection) -> None:
    """Make the writer open the file."""
