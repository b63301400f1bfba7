"""Handled events whose deliveries are kept, for an operator to list, and to replay in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Protocol, cast

from ..clock import span_seconds, unix_seconds
from ..delivery.attempt import Attempt
from ..delivery.attempts import Attempts
from ..delivery.dependencies import Dependencies
from ..delivery.instant import Instant
from ..delivery.lease import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS
from ..delivery.verdict import not_claimed
from ..errors import PayloadError, ReplayError
from ..outcome import Outcome, Reason, later
from ..stores.filters import EventFilter, select
from ..stores.handled import HandledEvent, HandledStats, HandledStore, WantedHandled
from ..stores.protocols import Reports
from ..stores.replays import ReplayBatch, ReplayPlan
from ..stores.values import Claimed, Known, delivery_key, new_token
from .replay_id import ReplayId
from .replaying import Pace, Replayed, in_parallel
from .waiting import filter_of

# After this many failures of its handler, a replay becomes a dead letter.
_MOST_TRIES = 3
_PAUSES_SECONDS = (0.5, 2.0)
# The most events to replay at once. Without key locks, nothing else limits the load on the services
# that the handler calls.
_AT_ONCE = 16
# After this many events, check whether a later batch has begun.
_LOOK_EVERY = 100
_PAGE = 500


class KeepingStore(HandledStore, Reports, Protocol):
    """The part of a store that keeps handled events, and knows which replays are done."""


class HandledEvents:
    """The handled events of one endpoint, for as long as their deliveries are kept.

    Get it from ``Receiver.handled``. No method returns a delivery that is older than
    ``keep_handled``, even if the store has not deleted it yet. Every method raises StoreError if
    the store fails.

    To run a handler again, open a batch and replay it::

        batch = await receiver.handled.open_batch(handler="shop.book", since=timedelta(hours=6))
        async for replayed in receiver.handled.replay_all(batch):
            print(replayed.event_id, replayed.reason)

    Args:
        dependencies: the dependencies of the receiver.
        store: keeps the deliveries.
        attempts: the attempts in flight.
        seconds: how long a delivery is kept.

    Attributes:
        endpoint: the name of the endpoint.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        *,
        store: KeepingStore,
        attempts: Attempts,
        seconds: float,
    ) -> None:
        self._dependencies = dependencies.without_keeper()
        self._store = store
        self.endpoint: str = dependencies.endpoint
        self._attempts = attempts
        self._seconds = seconds

    async def list(
        self,
        *,
        event_type: str | None = None,
        handler: str | None = None,
        since: float | datetime | None = None,
        where: str | Sequence[str] = (),
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[HandledEvent]:
        """Return handled events in the order of their success, without their bodies.

        Args:
            event_type: only events of this type.
            handler: only events that this handler has finished.
            since: only events handled at this time or later: an aware ``datetime`` or Unix seconds.
            where: only events whose body meets all these conditions, as in ``DeadLetters.list``.
            after: the ``place`` of a listed event; the listing goes on after that event.
            limit: the largest number of events.

        Raises:
            ValueError: ``after`` is not a place in this store's listings, or a condition cannot be
                read.
        """
        wanted = self._kept(filter_of(self.endpoint, event_type, handler, since=since, where=where))
        find, load = self._store.handled_events, self._store.handled_event
        return await select(find, load, wanted, after=after, limit=limit)

    async def show(self, event_id: str) -> HandledEvent | None:
        """Return a handled event with its body; None if its delivery is not kept."""
        found = await self._store.handled_event(delivery_key(self.endpoint, event_id))
        return None if found is None or found.handled_unix < self._oldest else found

    async def stats(self) -> HandledStats:
        """Return the number of kept deliveries, and their total size in bytes."""
        return await self._store.handled_stats(self.endpoint)

    async def batches(self) -> Sequence[ReplayBatch]:
        """Return the last batch of replays of each handler, sorted by the handlers' names."""
        found = await self._store.replay_batches(self.endpoint)
        return sorted(found, key=lambda batch: batch.handler)

    async def open_batch(
        self,
        *,
        handler: str,
        event_type: str | None = None,
        since: float | datetime | timedelta | None = None,
        where: str | Sequence[str] = (),
        event_ids: str | Sequence[str] = (),
        late: bool = False,
        new_key: bool = False,
        new: bool = False,
        dry_run: bool = False,
    ) -> ReplayBatch:
        """Begin a batch of replays in the store, or join the batch that is open.

        A batch selects the events that the handler has finished and that were handled before the
        batch was begun. It stays open until all of them are replayed. A call with the same
        arguments joins it, in any process and after any crash, so each event is replayed once.

        If the last batch had the same arguments and is finished, the call returns that batch: its
        ``finished_at`` is not None, and it has nothing left. Pass ``new`` to begin another.

        Args:
            handler: the name of the handler that runs again.
            event_type: only events of this type.
            since: only events handled at this time or later: an aware ``datetime``, Unix seconds,
                or a ``timedelta`` before the start of the batch.
            where: only events whose body meets all these conditions, as in ``DeadLetters.list``.
            event_ids: only events with these webhook-ids.
            late: with ``latest_by``, also replay an event if a newer event with the same key has
                succeeded. Such a batch runs one event after the other, in the order of their
                creation. It does not lower the watermark.
            new_key: let ``context.idempotency_key`` differ from that of earlier runs, so that a
                service that you call repeats its effect, too.
            new: begin another batch, with a higher generation: after a finished batch with the same
                arguments, or instead of an open batch with other arguments, which then ends.
            dry_run: return the batch as it would be, and store nothing.

        Raises:
            LookupError: this process has no such handler; or the delivery of one of ``event_ids``
                is not kept, or the handler has not finished it.
            ReplayError: a batch with other arguments is open; or ``new`` would begin a second open
                batch with the same arguments; or the open batch is older than the store's
                retention.
            ValueError: an argument cannot be used.
        """
        self._check_handler(handler)
        since_unix = since_seconds = None
        if isinstance(since, timedelta):
            since_seconds = span_seconds("since", since, positive=True)
        elif since is not None:
            since_unix = unix_seconds("since", since)
        plan = ReplayPlan(
            event_type=event_type,
            since_unix=since_unix,
            since_seconds=since_seconds,
            where=(where,) if isinstance(where, str) else tuple(where),
            event_ids=(event_ids,) if isinstance(event_ids, str) else tuple(event_ids),
            late=late,
            new_key=new_key,
        )
        EventFilter(where=plan.where)  # raises ValueError for an invalid condition
        if event_type == "":
            raise ValueError("event_type is empty, so it selects no event")
        (event_type or "").encode()  # raises ValueError for a lone surrogate, which no store finds
        last = await self._last(handler)
        if last is not None and self._joins(last, plan, new=new):
            return last
        await self._check_ids(handler, plan.event_ids)
        generation = 1 if last is None else last.generation + 1
        if dry_run:
            now = self._dependencies.clock()
            return ReplayBatch(self.endpoint, handler, generation, plan, now)
        batch = await self._store.begin_replay_batch(self.endpoint, handler, generation, plan)
        if batch.plan != plan:  # another process began its batch at the same time
            raise _other_is_open(batch)
        return batch

    async def remaining(self, batch: ReplayBatch) -> Sequence[str]:
        """Return the webhook-ids of events that a batch must still replay, in the batch's order.

        An event that failed for good is a dead letter, and does not remain.

        Raises:
            ReplayError: a later batch of the handler was begun.
        """
        await self._check_last(batch)
        found: list[HandledEvent] = []
        plan, since = batch.plan, batch.since_unix
        wanted = filter_of(
            self.endpoint, plan.event_type, batch.handler, since=since, where=plan.where
        )
        async for page in self._pages(batch, self._kept(wanted)):
            ids = [str(self._id_of(event.delivery.event_id, batch)) for event in page]
            states = await self._store.known(self.endpoint, ids)
            done = {again for again, state in states.items() if state in (Known.DONE, Known.DEAD)}
            found += [event for event, again in zip(page, ids, strict=True) if again not in done]
        ordered = await self._by_creation(found) if plan.late else found
        return [event.delivery.event_id for event in ordered]

    async def replay_all(
        self, batch: ReplayBatch, *, rate: float | None = None
    ) -> AsyncGenerator[Replayed, None]:
        """Replay all remaining events of a batch; yield each event with its outcome.

        Several processes may replay a batch at the same time. If this process ends, another call
        continues the batch. Several events run at a time, unless the batch is ``late``. If all
        events are replayed at the end, the batch is finished. A loop that may end early closes the
        iterator, which releases the events that are being replayed: ``async with aclosing(…) as
        replays``.

        Args:
            batch: the batch, from ``open_batch``.
            rate: the largest number of attempts that this call begins in a second; None for no
                limit.

        Raises:
            ReplayError: a later batch of the handler was begun.
            ValueError: the rate is not positive.
        """
        pace, tried = Pace(rate), set[str]()
        while True:
            remaining = await self.remaining(batch)
            event_ids = [event_id for event_id in remaining if event_id not in tried]
            if not event_ids:
                break
            tried.update(event_ids)
            for start in range(0, len(event_ids), _LOOK_EVERY):
                if start:
                    await self._check_last(batch)
                some = event_ids[start : start + _LOOK_EVERY]
                left = len(event_ids) - start
                replays = in_parallel(
                    (partial(self._replayed, event_id, batch, pace) for event_id in some),
                    at_once=1 if batch.plan.late else _AT_ONCE,
                )
                async with aclosing(replays):
                    async for replayed in replays:
                        left -= 1
                        yield replayed._replace(left=left)
        if not remaining:
            await self._store.end_replay_batch(batch)

    async def replay(self, event_id: str, batch: ReplayBatch) -> Outcome:
        """Replay one event of a batch, and return the outcome.

        The event stays handled. The store treats its replay as a separate event, so a replay runs
        once for each handler and generation: a second call returns ``duplicate``, in every process.
        The handler sees ``context.is_replay`` and ``context.generation``. A ledger records the
        effect once for each generation. Key locks apply as usual.

        While another process replays the event, the call waits. If the handler fails three times,
        the replay becomes a dead letter with the id ``EVENT_ID.GENERATION.HANDLER``. After a
        ``Retry`` the handler is not tried again before the time that it asks for.

        Args:
            event_id: the webhook-id of the handled event.
            batch: the batch, from ``open_batch``.

        Raises:
            LookupError: the delivery is not kept, the handler has not finished it, or this process
                has no such handler for it.
            PayloadError: this version cannot read the body as an event.
        """
        return await self._replay(event_id, batch, Pace(None))

    async def _replayed(self, event_id: str, batch: ReplayBatch, pace: Pace) -> Replayed:
        try:
            outcome = await self._replay(event_id, batch, pace)
        except (LookupError, PayloadError) as error:
            return Replayed(event_id, None, str(error))
        return Replayed(event_id, outcome)

    async def _replay(self, event_id: str, batch: ReplayBatch, pace: Pace) -> Outcome:
        """Replay an event until it succeeds, has no tries left, or a shutdown begins."""
        pauses, poll = iter(_PAUSES_SECONDS), FIRST_POLL_SECONDS
        await pace.wait()
        while True:
            outcome = await self._try(event_id, batch)
            if outcome.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return outcome
            if outcome.reason == Reason.IN_FLIGHT:
                await asyncio.sleep(poll)
                poll = min(2 * poll, LONGEST_POLL_SECONDS)
                continue
            pause = next(pauses, None)
            if pause is None or outcome.reason == Reason.SHUTTING_DOWN:
                return outcome
            if outcome.reason == Reason.RETRY_REQUESTED:
                pause = float(outcome.headers["retry-after"])
            await asyncio.sleep(pause)
            await pace.wait()

    async def _try(self, event_id: str, batch: ReplayBatch) -> Outcome:
        """Make one attempt at the replay of an event."""
        kept, handler = await self.show(event_id), batch.handler
        if kept is None:
            raise LookupError(f"no delivery of {event_id!r} at {self.endpoint!r} is kept")
        if handler not in kept.finished:
            finished = ", ".join(sorted(kept.finished)) or "no handler"
            raise LookupError(f"{handler} has not finished {event_id!r}; {finished} has")
        dependencies = self._dependencies
        table, lease = dependencies.handler_table, dependencies.limits.lease_seconds
        event = table.parser.parse(kept.delivery.body, event_id)
        handlers = tuple(one for one in table.find(event) if one.name == handler)
        if not handlers:
            raise LookupError(f"this process has no handler {handler} for {event.type}")
        again = self._id_of(event_id, batch)
        delivery = kept.delivery._replace(event_id=str(again))
        asked_at = Instant.now(asyncio.get_running_loop())
        claim = await dependencies.store.claim(delivery.key, new_token(), lease)
        if not isinstance(claim, Claimed):
            return not_claimed(claim, dependencies.clock())
        if self._attempts.adopt(claim) is not None:
            return later(Reason.IN_FLIGHT)
        origin = again.origin(is_last=claim.attempt >= _MOST_TRIES)
        attempt = Attempt(dependencies, delivery, origin, event, handlers)
        attempt.begin_with(claim, asked_at)
        return await self._attempts.wait_for(self._attempts.begin(attempt))

    def _id_of(self, event_id: str, batch: ReplayBatch) -> ReplayId:
        plan = batch.plan
        return ReplayId(event_id, batch.generation, batch.handler, plan.late, plan.new_key)

    async def _pages(
        self, batch: ReplayBatch, wanted: EventFilter
    ) -> AsyncIterator[Sequence[HandledEvent]]:
        """Yield pages of all events that a batch selects, including events already replayed."""
        load = self._store.handled_event
        if batch.plan.event_ids:  # all were handled before the start, as `open_batch` has checked
            filters = cast("WantedHandled", wanted.of_store)
            for event_id in batch.plan.event_ids:
                kept = await load(delivery_key(self.endpoint, event_id))
                if kept and kept.matches(filters) and wanted.passes(kept.delivery.body):
                    yield [kept]
            return
        find = partial(self._store.handled_events, before_unix=batch.started_unix)
        after: str | None = None
        while page := await select(find, load, wanted, after=after, limit=_PAGE):
            yield page
            after = page[-1].place

    async def _by_creation(self, events: Sequence[HandledEvent]) -> Sequence[HandledEvent]:
        """Return events in the order of their creation times, which their bodies contain."""
        parser, created = self._dependencies.handler_table.parser, []
        for event in events:
            kept = await self._store.handled_event(event.delivery.key)
            at = event.delivery.received_at
            if kept is not None:
                with suppress(PayloadError):
                    parsed = parser.parse(kept.delivery.body, kept.delivery.event_id)
                    at = parsed.created_at or at
            created.append((at, event))
        return [event for _, event in sorted(created, key=lambda pair: pair[0])]

    def _check_handler(self, handler: str) -> None:
        names = [one.name for one in self._dependencies.handler_table.handlers]
        if handler not in names:
            known = ", ".join(names) or "none"
            raise LookupError(f"this process has no handler {handler!r}; it has {known}")

    async def _check_ids(self, handler: str, event_ids: Sequence[str]) -> None:
        for event_id in event_ids:
            kept = await self.show(event_id)
            if kept is None:
                raise LookupError(f"no delivery of {event_id!r} at {self.endpoint!r} is kept")
            if handler not in kept.finished:
                raise LookupError(f"{handler} has not finished {event_id!r}")

    async def _last(self, handler: str) -> ReplayBatch | None:
        batches = await self._store.replay_batches(self.endpoint)
        return next((batch for batch in batches if batch.handler == handler), None)

    async def _check_last(self, batch: ReplayBatch) -> None:
        last = await self._last(batch.handler)
        if last is not None and last.generation > batch.generation:
            raise ReplayError(
                f"generation {last.generation} of {batch.handler} was begun at"
                f" {last.started_at:%Y-%m-%dT%H:%M:%SZ}, and has ended generation"
                f" {batch.generation}"
            )

    def _joins(self, last: ReplayBatch, plan: ReplayPlan, *, new: bool) -> bool:
        """Return whether to continue the last batch; if False, begin another batch.

        Raises:
            ReplayError: it is safe neither to continue the last batch nor to begin another.
        """
        if last.finished_unix is not None:
            return last.plan == plan and not new
        if last.plan != plan:
            if new:
                return False
            raise _other_is_open(last)
        if self._is_forgotten(last):
            if new:
                return False
            raise ReplayError(
                f"generation {last.generation} of {last.handler} was begun at"
                f" {last.started_at:%Y-%m-%dT%H:%M:%SZ}, which is longer ago than the store"
                " remembers what was replayed; begin another batch with new=True (--new)"
            )
        if new:
            raise ReplayError(
                f"generation {last.generation} of {last.handler} is open, with the same arguments;"
                " continue it, without new=True (--new); if it cannot be finished, new=True with"
                " other arguments ends it"
            )
        return True

    def _is_forgotten(self, batch: ReplayBatch) -> bool:
        """Return whether the store may have forgotten which events of a batch are done."""
        retention = getattr(self._store, "retention_seconds", None)
        return retention is not None and (
            self._dependencies.clock() >= batch.started_unix + retention
        )

    def _kept(self, wanted: EventFilter) -> EventFilter:
        """Return the filter, limited to events that are not older than ``keep_handled``.

        The store deletes a delivery by the limit at the time of its success, which may have been
        longer.
        """
        return replace(wanted, since_unix=max(self._oldest, wanted.since_unix or 0.0))

    @property
    def _oldest(self) -> float:
        return self._dependencies.clock() - self._seconds


def _other_is_open(batch: ReplayBatch) -> ReplayError:
    return ReplayError(
        f"generation {batch.generation} of {batch.handler} is open with other arguments"
        f" ({batch.plan.describe()}); continue it with these, or end it and begin another with"
        " new=True (--new)"
    )
