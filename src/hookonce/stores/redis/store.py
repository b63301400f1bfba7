"""The Redis store, for many machines: Redis or Valkey, alone, with sentinels or as a cluster.

Time is the server's. Whatever is asked in one turn of the event loop goes out as one script call.
How safe a write is, is the server's configuration and ``durability`` and ``replicas`` here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from math import ceil
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Unpack
from zlib import crc32

from ...errors import StoreError
from ...verification.clock import Clock, system_clock
from ...verification.loggers import get_logger
from ..activity import MOST_LINES, WATCHED_SECONDS, Activity
from ..applications import MOST_REMEMBERED, REMEMBERED_SECONDS, Application
from ..contract import DEFAULT_RETENTION, Flushes
from ..tokens import new_token
from ..values import (
    Batch,
    Claimed,
    ClaimResult,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    EnterResult,
    Entry,
    Gate,
    Known,
    Mark,
    Ownership,
    PutResult,
    Stored,
    StoreStats,
    Taken,
    Token,
    Wanted,
    WantedLetters,
    delivery_key,
)
from . import codec
from .codec import Step, step
from .safety import Durability
from .session import Session, listed
from .settings import settings_of
from .shard import Shard
from .takes import Look, Looks, Takes

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

__all__ = ["RedisStore"]

_log = get_logger("hookonce.store")

# More at once would keep the server from everybody else; a worker that can do more asks again.
_MOST_TAKEN = 256
_MOST_LOOKED_UP = 500

_NONE: frozenset[str] = frozenset()


class RedisStore:
    """Remembers events on a Redis or Valkey server, which many machines may share.

    While a shard cannot be reached, calls about its events fail with StoreError, and workers take
    from the others. In a cluster that is so too while the shard's slot is being migrated.

    Args:
        client_or_url: a URL, or a client of redis-py's asyncio whose settings are used; the store
            makes connections of its own.
        prefix: what its keys begin with.
        shards: into how many parts events are divided, which the nodes of a cluster share; 1 for a
            server and 16 for a cluster unless given. It must be the same everywhere, and must not
            be changed while events are remembered.
        durability: "memory" if the server's answer is enough; "fsync" to wait until it has written
            to its append-only file, once for each batch.
        replicas: how many replicas must have a write before it counts.
        retention: how long a done event is remembered; at least 26 hours.
        clock: Unix time in seconds; other than the system's, it is used in place of the server's.

    Attributes:
        retention_seconds: how long a done event is remembered.
        flushes: who is told of each batch.

    Raises:
        ValueError: a URL, or another argument, that cannot be used.

    """

    keeps_bodies = True

    def __init__(
        self,
        client_or_url: str | Redis | RedisCluster,
        *,
        prefix: str | None = None,
        shards: int | None = None,
        durability: Durability | None = None,
        replicas: int | None = None,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        try:
            self._settings = settings_of(
                client_or_url,
                prefix,
                shards,
                durability,
                replicas,
                retention=retention,
                clock=clock,
            )
        finally:
            del client_or_url  # error trackers send the locals of every frame away
        self._clock = clock
        self.retention_seconds = self._settings.retention
        self.flushes = Flushes()
        self._session: Session | None = None
        self._takes = Takes()
        self._looks = Looks()
        self._logged: set[str] = set()

    async def open(self) -> None:
        """Connect and check what the servers can do, or raise StoreError.

        What is dangerous about their configuration is logged, once.
        """
        for warning in await self.warnings():
            if warning not in self._logged:
                self._logged.add(warning)
                _log.warning("%s", warning)

    async def aclose(self) -> None:
        """Finish what is under way and close the connections."""
        session, self._session = self._session, None
        if session is not None and session.is_ours:
            await session.aclose()

    async def warnings(self) -> tuple[str, ...]:
        """Return what is dangerous about the servers' configuration, each as a sentence."""
        return await self._running().warnings()

    async def server_times(self) -> list[float]:
        """Return the Unix time by the clock of each server.

        Raises:
            StoreError: a server does not tell.

        """
        return await self._running().server_times()

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event; see ``Store.claim``."""
        shard = self._of(key)
        reply = await shard.run(codec.claim_step(key, token, lease), may_be_dropped=True)
        if reply == b"C":
            return Claimed(key, token, 1, _NONE, lease)
        return codec.read_claim(reply, key, token, self._clock_offset(shard))

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Claim a dead letter; see ``Store.replay``."""
        shard = self._of(key)
        reply = await shard.run(step("replay", key, token, lease), may_be_dropped=True)
        if reply == b"N":
            return None
        return codec.read_claim(reply, key, token, self._clock_offset(shard))

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, owed: frozenset[str] = _NONE
    ) -> Ownership:
        """Start the lease anew; see ``Store.extend``."""
        names = codec.write_names(finished), codec.write_names(owed)
        return await self._own(claim, "extend", claim.lease, *names)

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled; see ``Store.complete``."""
        await self._of(claim.key).run(codec.completion_step(claim.key))

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
        """Give an event back to the inbox for later; see ``InboxStore.retry``."""
        return await self._own(
            claim,
            "give_back",
            new_token(),
            codec.write_names(finished),
            *codec.error_arguments(error),
            max(0.0, after),
            codec.write_names(owed),
            "1" if began else "0",
        )

    async def keep(self, claim: Claimed, delivery: Delivery) -> Ownership:
        """Keep the delivery beside its claim; see ``Store.keep``."""
        return await self._own(claim, "keep", *codec.write_delivery(delivery))

    async def keep_in_flight(self, delivery: Delivery) -> None:
        """Keep a delivery beside somebody else's claim; see ``Store.keep_in_flight``."""
        await self._do(delivery.key, "keep_in_flight", *codec.write_delivery(delivery))

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
        return await self._own(
            claim,
            "bury",
            new_token(),
            codec.write_names(finished),
            *codec.error_arguments(error),
            str(reason),
            codec.write_names(owed),
            *(() if delivery is None else codec.write_delivery(delivery)),
        )

    async def enter(
        self,
        gate: Gate,
        token: Token,
        lease: float,
        *,
        mark: Mark | None = None,
        drop_ties: bool = False,
        waiting: DeliveryKey | None = None,
    ) -> EnterResult:
        """Pass a gate, or learn why not; see ``Gates.enter``."""
        shard, ties = self._of(gate.name), "1" if drop_ties else "0"
        asked = step("enter", gate.name, token, lease, *codec.write_mark(mark), ties, waiting or "")
        reply = await shard.run(asked, may_be_dropped=True)
        return codec.read_entered(reply, self._clock_offset(shard))

    async def leave(
        self,
        gate: Gate,
        token: Token,
        *,
        mark: Mark | None = None,
        event: DeliveryKey | None = None,
    ) -> DeliveryKey | None:
        """Give a gate back, and return who is to come next; see ``Gates.leave``."""
        called = await self._do(
            gate.name, "leave", token, new_token(), *codec.write_mark(mark), event or ""
        )
        return DeliveryKey(codec.decode(called)) if called else None

    async def dead_letters(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedLetters]
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first, with empty bodies; see ``Letters.dead_letters``."""
        behind = codec.write_cursor(after)
        asked = (wanted.get("endpoint") or "", *codec.write_wanted(wanted, wanted.get("reason")))
        lists = await asyncio.gather(
            *(listed(shard, "letters", asked, behind, limit) for shard in self._running().shards)
        )
        found = _in_order(chain(*lists), 8)[:limit]
        return [replace(codec.read_letter(row), place=str(place)) for place, row in found]

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter with its body."""
        reply = await self._do(key, "letter")
        return None if reply == b"N" else codec.read_letter(reply)

    async def discard(self, key: DeliveryKey) -> bool:
        """Forget a dead letter and remember the event as done; see ``Store.discard``."""
        return bool(await self._do(key, "discard", new_token()) == b"1")

    async def put(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
    ) -> PutResult:
        """Store a delivery; see ``InboxStore.put``.

        With several shards each has its part of the limits, rounded up; but one that holds nothing
        of the endpoint takes any body that is no larger than ``max_bytes``.
        """
        shards = len(self._settings.bases)
        depth = "" if max_depth is None else str(ceil(max_depth / shards))
        size = ""
        if max_bytes is not None:
            size = str(max(ceil(max_bytes / shards), min(max_bytes, len(delivery.body))))
        given = codec.write_delivery(delivery)
        reply = await self._of(delivery.key).run(
            step("put", *given, token, depth, size, delivery.key), may_be_dropped=True
        )
        result = codec.PUT_RESULTS[reply]
        if isinstance(result, Stored):
            self._running().listener.signal(delivery.endpoint)
        return result

    async def take(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim events that are due; see ``InboxStore.take``.

        Shards that do not answer are left out, unless none does.
        """
        limit = min(limit, _MOST_TAKEN)
        session, take = self._running(), self._takes.of(worker, token)
        unanswered = self._takes.unanswered(worker)
        session.listener.looks(endpoint)
        if len(session.shards) == 1:
            looks = [Look(0, unanswered.get(0, take), None, is_repeat=True)]
        else:
            looks = await self._looks.look(session.shards, endpoint, worker, take, unanswered)
        # A take that is repeated asks where it has taken something, and nowhere else.
        is_repeated = any(look.is_repeat for look in looks)
        taken: list[Taken] = []
        due: list[float | None] = []
        failures: dict[int, StoreError] = {}
        for look in looks:
            # What was taken must not wait for one shard after another to fail.
            room = 0 if failures and taken else limit - len(taken)
            is_asked = look.is_repeat if is_repeated else look.next_due == 0 and room > 0
            if not is_asked:
                due.append(look.next_due)
                continue
            own = look.take
            asked = step("take", endpoint, worker, own.token, own.number, room, lease)
            try:
                reply = await session.shards[look.number].run(asked, may_be_dropped=True)
            except BaseException as error:
                unanswered[look.number] = own
                if not isinstance(error, StoreError):
                    raise
                failures[look.number] = error
                continue
            unanswered.pop(look.number, None)
            next_due, rows = reply
            taken += [codec.read_taken(row, own.token, lease) for row in rows]
            due.append(float(next_due) if next_due else None)
        if failures and not taken:
            # Repeated with its token, it finds what a shard has taken and could not say.
            raise next(iter(failures.values()))
        if failures:
            self._looks.take_note(failures)
        return Batch(tuple(taken), min((one for one in due if one is not None), default=None))

    async def wait(self, endpoint: str, seconds: float) -> None:
        """Return when there may be something new to take; see ``InboxStore.wait``."""
        await self._running().listener.wait(endpoint, seconds)

    async def retire(self, worker: str) -> None:
        """Forget a worker that ends."""
        await self._of_all(step("retire", worker, self._takes.end(worker)))

    async def entries(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[Wanted]
    ) -> list[Entry]:
        """Return what is in the inbox, oldest first; see ``Listing.entries``."""
        rows: list[Any] = []
        behind, asked = codec.write_cursor(after), codec.write_wanted(wanted)
        endpoint = wanted.get("endpoint")
        for shard in self._running().shards:
            if endpoint is None:
                endpoints = await shard.run(step("endpoints"))
            else:
                endpoints = [codec.encode(endpoint)]
            for name in endpoints:
                rows += await listed(shard, "entries", (codec.decode(name), *asked), behind, limit)
        offset = self._clock_offset(self._running().shards[0])
        found = _in_order(rows, 10)[:limit]
        return [replace(codec.read_entry(row, offset), place=str(place)) for place, row in found]

    async def entry(self, key: DeliveryKey) -> Entry | None:
        """Return one event of the inbox with its body."""
        reply = await self._do(key, "entry")
        return None if reply == b"N" else codec.read_entry(reply, self._clock_offset(self._of(key)))

    async def hasten(self, key: DeliveryKey) -> bool:
        """Make a waiting event due now; see ``InboxStore.hasten``."""
        return bool(await self._do(key, "hasten") == b"1")

    async def known(self, endpoint: str, event_ids: Sequence[str]) -> dict[str, Known]:
        """Return what is known of these events; see ``Store.known``."""
        by_shard: dict[Shard, list[str]] = {}
        for event_id in dict.fromkeys(event_ids):
            by_shard.setdefault(self._of(delivery_key(endpoint, event_id)), []).append(event_id)
        found: dict[str, Known] = {}
        for shard, ids in by_shard.items():
            for start in range(0, len(ids), _MOST_LOOKED_UP):
                some = ids[start : start + _MOST_LOOKED_UP]
                asked = step("known", *(delivery_key(endpoint, event_id) for event_id in some))
                reply = await shard.run(asked)
                found |= codec.read_known(some, reply)
        return found

    async def prune(self) -> int:
        """Remove records whose retention is over, and return how many.

        The server does so by itself, and 0 is left for this call, unless a clock was given.
        """
        removed = 0
        for shard in self._running().shards:
            cursor = b"0"
            while True:
                cursor, count = await shard.run(step("sweep", cursor))
                removed += int(count)
                if cursor == b"0":
                    break
        return removed

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        """Return how much the store holds, of one endpoint or of all."""
        replies = await self._of_all(step("stats", endpoint or ""))
        numbers = [[codec.read_count(number) for number in reply[:4]] for reply in replies]
        in_flight, dead, depth, size = (sum(column) for column in zip(*numbers, strict=True))
        received = [float(reply[4]) for reply in replies if reply[4]]
        return StoreStats(
            in_flight=in_flight,
            dead=dead,
            depth=depth,
            bytes=size,
            oldest_age=max(0.0, self._clock() - min(received)) if received else None,
            workers=len({worker for reply in replies for worker in reply[5]}),
        )

    @property
    def place(self) -> Hashable:
        """What is equal for two stores of one URL and prefix; see ``RegisteringStore.place``."""
        return self._settings.identity

    async def register(
        self, endpoint: str, application: Application | None
    ) -> tuple[Application, ...]:
        """Note an application of an endpoint; see ``RegisteringStore.register``."""
        own = "" if application is None else application.dump()
        given = endpoint, REMEMBERED_SECONDS, MOST_REMEMBERED, own
        rows = await self._do_first("register", *given)
        return tuple(
            Application.load(text, float(seen))
            for text, seen in zip(rows[::2], rows[1::2], strict=True)
        )

    async def tell(self, endpoint: str, lines: Sequence[bytes]) -> bool:
        """Keep lines while somebody looks; see ``ActivityStore.tell``."""
        reply = await self._do_first("tell", endpoint, WATCHED_SECONDS, MOST_LINES, *lines)
        return bool(reply == b"1")

    async def follow(self, endpoint: str, place: int | None) -> Activity:
        """Return what was told after a place; see ``ActivityStore.follow``."""
        behind = "" if place is None else str(place)
        last, lines = await self._do_first("follow", endpoint, WATCHED_SECONDS, behind)
        return Activity(int(last), tuple(lines))

    def _running(self) -> Session:
        if self._session is None or not self._session.is_ours:
            # What belongs to another loop, or to the parent process, cannot even be closed here.
            self._session = Session(self._settings, self.flushes.tell)
        return self._session

    def _of(self, key: str) -> Shard:
        """Return the shard of an event, or of a gate by its name."""
        shards = self._running().shards
        return shards[0 if len(shards) == 1 else crc32(codec.encode(key)) % len(shards)]

    def _do(self, key: str, name: str, *arguments: str | bytes | float) -> asyncio.Future[Any]:
        return self._of(key).run(step(name, key, *arguments))

    async def _own(self, claim: Claimed, name: str, *arguments: str | bytes | float) -> Ownership:
        """Take a step that only the owner may take."""
        return codec.read_ownership(await self._do(claim.key, name, claim.token, *arguments))

    def _do_first(self, name: str, *arguments: str | bytes | float) -> asyncio.Future[Any]:
        """Take a step of an endpoint, which lies in the first shard."""
        return self._running().shards[0].run(step(name, *arguments))

    async def _of_all(self, asked: Step) -> list[Any]:
        return await asyncio.gather(*(shard.run(asked) for shard in self._running().shards))

    def _clock_offset(self, shard: Shard) -> float:
        """Return by how much this machine's clock is ahead of that which a shard goes by."""
        return 0.0 if self._settings.clock is not None else self._clock() - shard.now


def _in_order(rows: Iterable[Any], column: int) -> list[tuple[codec.Cursor, Any]]:
    """Return rows of all shards with their places, by the time in a column and then by shard."""
    return sorted(((codec.Cursor.of(row, row[column]), row) for row in rows), key=itemgetter(0))
