"""Worker: fetches events from the inbox under a lease and runs their handlers.

A worker whose handlers are quick prefetches events, so that a place that becomes free is filled at
once. If its process is killed, the events that it had begun or prefetched wait until their leases
expire. A worker that stops in order returns the prefetched events to the inbox in their order, and
their attempts do not count.

A prefetched event holds no key lock: its handlers ask for their key locks when it begins.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from itertools import count
from typing import Any

from ..delivery.attempt import Attempt
from ..delivery.attempts import Attempts
from ..delivery.dependencies import Dependencies
from ..delivery.instant import Instant
from ..delivery.origin import Queued
from ..delivery.places import Places
from ..errors import PayloadError, StoreError
from ..logs import get_logger
from ..stores.protocols import WORKER_SECONDS, Queue
from ..stores.time_limit import set_within, within
from ..stores.values import INTERRUPTED, Batch, DeadReason, Fetched, Ownership, Token, new_token
from ..watching.log import delivery_fields
from ..watching.process import process_name
from ..watching.records import EventBuried, EventFetched, EventRetried
from .prefetch import Prefetch, Prefetched
from .settings import Inbox

_log = get_logger("hookonce.worker")

# How often a worker renews its entry in the store, even while it cannot take more events.
_BEAT_SECONDS = WORKER_SECONDS / 3
# A wake-up may be lost, so an idle worker also polls, at this interval.
_IDLE_LOOK_SECONDS = 2.0
# Events that are returned together become due this far apart, so that their order stays.
_APART_SECONDS = 1e-5
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0


class Worker:
    """Handles the events in the inbox of one endpoint.

    Args:
        dependencies: the dependencies of the receiver.
        store: holds the inbox.
        settings: the settings of the inbox.
        attempts: the attempts in flight.
    """

    def __init__(
        self, dependencies: Dependencies, *, store: Queue, settings: Inbox, attempts: Attempts
    ) -> None:
        self._dependencies = dependencies
        self._store = store
        self._settings = settings
        self._attempts = attempts
        self._reset()
        self._asked_at = Instant(0.0, 0.0)
        self._name = ""
        self._task: asyncio.Task[None] | None = None

    def _reset(self) -> None:
        self._work, self._room, self._stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._places = Places(self._settings.concurrency, self._begin_soon)
        self._prefetch = Prefetch(
            self._settings.concurrency, self._dependencies.limits.lease_seconds
        )
        self._beginning: asyncio.Handle | None = None
        self._replied_at, self._left_before = 0.0, 0
        # Run attempts in this context. Otherwise they would inherit the context variables of the
        # handlers that ended before them.
        self._context = contextvars.copy_context()

    @property
    def is_running(self) -> bool:
        """Whether the worker is fetching events."""
        return self._task is not None and not self._task.done()

    def nudge(self) -> None:
        """Fetch soon: this process has just enqueued an event."""
        self._work.set()

    def start(self) -> None:
        """Start to fetch and begin events; RuntimeError if the worker has been started."""
        if self._task is not None:
            raise RuntimeError("this receiver works on its inbox already")
        # A process may run several workers, one for each receiver.
        self._name = f"{process_name()}:{new_token()[2:8]}"
        self._reset()
        self._task = asyncio.get_running_loop().create_task(self._run())
        _log.info("working on the inbox of %s as %s", self._dependencies.endpoint, process_name())

    async def stop(self) -> None:
        """Stop fetching events, and put back the events that have not begun; attempts continue."""
        if self._task is not None:
            for waited_for in (self._stop, self._room, self._work):
                waited_for.set()
            await asyncio.wait({self._task})
            await self._return(self._prefetch.take_all())

    async def _run(self) -> None:
        token, pause = new_token(), _FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            self._work.clear()
            try:
                await self._return(self._prefetch.take_late(asyncio.get_running_loop().time()))
                batch = await self._fetch(token)
                token, pause = new_token(), _FIRST_PAUSE_SECONDS
                await self._begin_all(batch.fetched)
                await self._until_worthwhile(batch)
            except StoreError as error:
                # Repeat the call with the same token, because the failed call may have fetched
                # events.
                _log.error("cannot work on the inbox, trying again: %s", error)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                _log.error("cannot work on the inbox, trying again: its store was cancelled")
            except Exception:  # noqa: BLE001 - one failure must not stop the worker for good
                _log.exception("cannot work on the inbox, trying again")
            else:
                continue
            await set_within(pause, self._stop)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _fetch(self, token: Token) -> Batch:
        self._asked_at = Instant.now(asyncio.get_running_loop())
        wanted = self._wanted()
        call = self._store.fetch(
            wanted,
            self._dependencies.limits.lease_seconds,
            endpoint=self._dependencies.endpoint,
            worker=self._name,
            token=token,
        )
        batch = await within(self._dependencies.limits.store_seconds, call)
        replied_at, left = asyncio.get_running_loop().time(), self._places.left
        self._prefetch.learn(
            left - self._left_before,
            replied_at - self._replied_at,
            replied_at - self._asked_at.loop,
        )
        self._replied_at, self._left_before = replied_at, left
        return batch

    def _wanted(self) -> int:
        return self._prefetch.wanted(self._places.free)

    async def _until_worthwhile(self, batch: Batch) -> None:
        """Wait until the worker should fetch or return events, or is stopped."""
        late_in = self._prefetch.late_in(asyncio.get_running_loop().time())
        if not self._wanted():
            self._room.clear()
            if not self._stop.is_set():
                await set_within(min(_BEAT_SECONDS, late_in), self._room)
        elif batch.next_due_seconds != 0:
            seconds = min(_IDLE_LOOK_SECONDS, late_in)
            if batch.next_due_seconds is not None:
                seconds = min(seconds, batch.next_due_seconds)
            if not self._work.is_set():
                await _first_of(
                    self._store.wait(self._dependencies.endpoint, seconds), self._work.wait()
                )

    async def _begin_all(self, batch: Sequence[Fetched]) -> None:
        """Begin one event for each free place, then settle the events that cannot be attempted."""
        settlements = [settled for fetched in batch if (settled := self._prepare(fetched))]
        self._begin_prefetched()
        if settlements:
            await asyncio.gather(*settlements)
            self._begin_prefetched()

    def _begin_soon(self) -> None:
        """Begin prefetched events in the next turn of the loop: an attempt has freed a place."""
        if self._beginning is None:
            loop = asyncio.get_running_loop()
            self._beginning = loop.call_soon(self._begin_prefetched, context=self._context)

    def _begin_prefetched(self) -> None:
        """Begin prefetched events, one for each free place, then fetch more events."""
        self._beginning = None
        if self._stop.is_set():
            return
        for attempt, claim, asked_at in self._prefetch.take(self._places.free):
            if self._attempts.adopt(claim) is not None:
                # The earlier attempt has lost its lease, but still runs or is being recorded here.
                _log.warning(
                    "%s is still being handled here; no second attempt begins",
                    claim.key,
                    extra=delivery_fields(attempt.delivery, claim.attempt),
                )
                continue
            self._places.take()
            attempt.begin_with(claim, asked_at)
            self._attempts.begin(attempt)
        if self._wanted():
            self._room.set()

    def _prepare(self, fetched: Fetched) -> Coroutine[Any, Any, None] | None:
        """Prepare an attempt; if none is possible, return a coroutine that settles the event."""
        claim = fetched.claim
        self._dependencies.observers.notify_of(EventFetched, fetched.delivery, claim.attempt)
        if claim.attempt > self._settings.max_attempts:
            return self._prepare_unless_broken_off(fetched)
        return self._prepare_attempt(fetched)

    def _prepare_attempt(self, fetched: Fetched) -> Coroutine[Any, Any, None] | None:
        claim, delivery = fetched.claim, fetched.delivery
        try:
            table = self._dependencies.handler_table
            event = table.parser.parse(delivery.body, delivery.event_id)
            handlers = table.find(event)
        except PayloadError as error:
            return self._bury(fetched, DeadReason.UNREADABLE, str(error))
        except Exception as error:  # noqa: BLE001 - an event that cannot be prepared must not delay other events
            _log.exception("cannot begin %s", claim.key, extra=_log_fields(fetched))
            return self._defer(fetched, f"it could not be begun: {type(error).__name__}")
        if not handlers:
            # Another version of the application stored this event: a worker of that version can
            # handle it.
            return self._defer(fetched, f"this worker has no handler for {event.type}")
        origin = Queued(
            self._settings.backoff_seconds(claim.attempt, delivery.event_id),
            is_last=claim.attempt >= self._settings.max_attempts,
            places=self._places,
            work=self._work,
        )
        attempt = Attempt(self._dependencies, delivery, origin, event, handlers)
        self._prefetch.add(Prefetched(attempt, claim, self._asked_at))
        return None

    async def _prepare_unless_broken_off(self, fetched: Fetched) -> None:
        """Bury an event whose last attempt was interrupted; otherwise begin one more attempt.

        An event whose last attempt was interrupted might kill the next worker too. An event that
        was released in order, for example at a shutdown, gets one more attempt.
        """
        call = self._store.entry(fetched.claim.key)
        try:
            entry = await within(self._dependencies.limits.store_seconds, call)
        except StoreError as error:
            _log_error("cannot begin %s; its lease will run out: %s", fetched, error)
            return
        last = entry.history[-1] if entry is not None and entry.history else None
        if last is not None and last.error == INTERRUPTED:
            await self._bury(fetched, DeadReason.INTERRUPTED, INTERRUPTED)
        elif settlement := self._prepare_attempt(fetched):
            await settlement

    async def _return(self, prefetched: Iterable[Prefetched]) -> None:
        """Put events that have not begun back into the inbox, due now and in the same order."""
        calls = [
            within(
                self._dependencies.limits.store_seconds,
                self._store.retry(one.claim, apart, one.claim.finished, began=False),
            )
            for one, apart in zip(prefetched, count(step=_APART_SECONDS), strict=False)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        failures = [result for result in results if isinstance(result, StoreError)]
        if failures:
            _log.warning(
                "could not return %d prefetched events to the inbox of %s; their leases will run"
                " out: %s",
                len(failures),
                self._dependencies.endpoint,
                failures[0],
            )

    async def _defer(self, fetched: Fetched, fault: str) -> None:
        """Defer an event that this worker cannot handle, or bury it after its last attempt."""
        claim = fetched.claim
        if claim.attempt >= self._settings.max_attempts:
            await self._bury(fetched, DeadReason.EXHAUSTED, fault)
            return
        _log_error("%s waits: %s", fetched, fault)
        after = self._settings.backoff_seconds(claim.attempt, fetched.delivery.event_id)
        if await self._is_settled(fetched, self._store.retry(claim, after, claim.finished, fault)):
            self._dependencies.observers.notify(
                EventRetried(fetched.delivery, claim.attempt, after, fault)
            )

    async def _bury(self, fetched: Fetched, reason: DeadReason, error: str) -> None:
        _log_error("%s is a dead letter now, %s: %s", fetched, reason, error)
        if await self._is_settled(
            fetched, self._dependencies.store.bury(fetched.claim, reason, error=error)
        ):
            self._dependencies.observers.notify(
                EventBuried(fetched.delivery, fetched.claim.attempt, reason, error)
            )

    async def _is_settled(self, fetched: Fetched, call: Awaitable[Ownership]) -> bool:
        """Await a call that only a claim's owner may make; return whether the call succeeded."""
        try:
            return await within(self._dependencies.limits.store_seconds, call) is Ownership.HELD
        except StoreError as error:
            _log_error("cannot settle %s; its lease will run out: %s", fetched, error)
            return False

    async def retire(self) -> None:
        """Unregister this worker, after ``stop`` and after its last attempt has ended."""
        if self._task is None:
            return
        self._task = None
        try:
            await within(self._dependencies.limits.store_seconds, self._store.retire(self._name))
        except StoreError as error:
            _log.warning("could not unregister this worker; its entry will expire: %s", error)


def _log_error(text: str, fetched: Fetched, *faults: object) -> None:
    """Log an error; the text has placeholders for the event's key and for each fault."""
    _log.error(text, fetched.claim.key, *faults, extra=_log_fields(fetched))


def _log_fields(fetched: Fetched) -> dict[str, object]:
    return delivery_fields(fetched.delivery, fetched.claim.attempt)


async def _first_of(*calls: Coroutine[Any, Any, object]) -> None:
    """Wait until one of the calls ends, and cancel the other calls; raise a failed call's error."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
