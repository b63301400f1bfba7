"""Worker: fetches events from the inbox under a lease and runs their handlers.

A worker fetches only events that it can begin at once. So if its process is killed, only events
that it had begun must wait until their leases expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

from ..delivery.attempt import Attempt
from ..delivery.attempts import Attempts
from ..delivery.dependencies import Dependencies
from ..delivery.lease import Instant
from ..delivery.origin import Queued
from ..errors import PayloadError, StoreError
from ..logs import get_logger
from ..stores.protocols import WORKER_SECONDS, Queue
from ..stores.time_limit import set_within, within
from ..stores.values import INTERRUPTED, Batch, DeadReason, Fetched, Ownership, Token, new_token
from ..watching.log import delivery_fields
from ..watching.process import process_name
from ..watching.records import EventBuried, EventFetched, EventRetried
from .settings import Inbox

_log = get_logger("hookonce.worker")

# How often a worker renews its entry in the store, even while it cannot take more events.
_BEAT_SECONDS = WORKER_SECONDS / 3
# A wake-up may be lost, so an idle worker polls.
_IDLE_LOOK_SECONDS = 2.0
# A worker stops fetching when its attempts, including those that only need to be recorded, reach
# this many times the concurrency.
_MOST_UNRECORDED = 4
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
        self._begun: list[Attempt] = []
        self._work, self._room, self._stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._asked_at = Instant(0.0, 0.0)
        self._name = ""
        self._task: asyncio.Task[None] | None = None

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
        self._work, self._room, self._stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())
        _log.info("working on the inbox of %s as %s", self._dependencies.endpoint, process_name())

    async def stop(self) -> None:
        """Stop fetching events; attempts in flight continue."""
        if self._task is not None:
            for waited_for in (self._stop, self._room, self._work):
                waited_for.set()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        token, pause = new_token(), _FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            self._work.clear()
            try:
                batch = await self._fetch(token)
                token, pause = new_token(), _FIRST_PAUSE_SECONDS
                await self._begin_all(batch.fetched)
                await self._until_worthwhile(batch)
            except StoreError as error:
                # Repeat the call with the same token, because it may have fetched events before it
                # failed.
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
        call = self._store.fetch(
            self._free(),
            self._dependencies.limits.lease_seconds,
            endpoint=self._dependencies.endpoint,
            worker=self._name,
            token=token,
        )
        return await within(self._dependencies.limits.store_seconds, call)

    def _free(self) -> int:
        """Return how many more attempts may begin now.

        An attempt whose handlers have ended only needs to be recorded, so it does not count as
        busy; but if the store is slow, too many of these attempts stop further fetching.
        """
        begun = self._begun = [attempt for attempt in self._begun if attempt.has_the_event]
        busy = len([attempt for attempt in begun if attempt.is_busy])
        most = self._settings.concurrency
        return max(0, min(most - busy, _MOST_UNRECORDED * most - len(begun)))

    async def _until_worthwhile(self, batch: Batch) -> None:
        """Wait until the worker may fetch and begin an event, or is stopped."""
        if not self._free():
            self._room.clear()
            if not self._stop.is_set():
                await set_within(_BEAT_SECONDS, self._room)
        elif batch.next_due_seconds != 0:
            seconds = _IDLE_LOOK_SECONDS
            if batch.next_due_seconds is not None:
                seconds = min(seconds, batch.next_due_seconds)
            if not self._work.is_set():
                await _first_of(
                    self._store.wait(self._dependencies.endpoint, seconds), self._work.wait()
                )

    async def _begin_all(self, batch: Sequence[Fetched]) -> None:
        """Begin an attempt at each event, then settle the events that cannot be attempted."""
        if settlements := [settled for fetched in batch if (settled := self._begin(fetched))]:
            await asyncio.gather(*settlements)

    def _begin(self, fetched: Fetched) -> Coroutine[Any, Any, None] | None:
        """Begin an attempt; return a coroutine to settle the event if it cannot be attempted."""
        claim = fetched.claim
        self._dependencies.observers.notify_of(EventFetched, fetched.delivery, claim.attempt)
        if self._attempts.adopt(claim):
            # The earlier attempt has lost its lease, but it still runs or is being recorded here.
            _log.warning(
                "%s is still being handled here; no second attempt begins",
                claim.key,
                extra=_log_fields(fetched),
            )
            return None
        if claim.attempt > self._settings.max_attempts:
            return self._begin_unless_broken_off(fetched)
        return self._begin_attempt(fetched)

    def _begin_attempt(self, fetched: Fetched) -> Coroutine[Any, Any, None] | None:
        claim, delivery = fetched.claim, fetched.delivery
        try:
            table = self._dependencies.handler_table
            event = table.parser.parse(delivery.body, delivery.event_id)
            handlers = table.find(event)
        except PayloadError as error:
            return self._bury(fetched, DeadReason.UNREADABLE, str(error))
        except Exception as error:  # noqa: BLE001 - one event must not hold up the others
            _log.exception("cannot begin %s", claim.key, extra=_log_fields(fetched))
            return self._defer(fetched, f"it could not be begun: {type(error).__name__}")
        if not handlers:
            # Another version of the application stored this event, and has a handler for it.
            return self._defer(fetched, f"this worker has no handler for {event.type}")
        origin = Queued(
            self._settings.backoff_seconds(claim.attempt, delivery.event_id),
            is_last=claim.attempt >= self._settings.max_attempts,
            room=self._room,
            work=self._work,
        )
        attempt = Attempt(self._dependencies, delivery, origin, event, handlers)
        attempt.hold(claim, self._asked_at)
        self._begun.append(self._attempts.begin(attempt))
        return None

    async def _begin_unless_broken_off(self, fetched: Fetched) -> None:
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
        elif settlement := self._begin_attempt(fetched):
            await settlement

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
        """Make a call that only a claim's owner may make; return whether the call succeeded."""
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
    """Log an error, with a text that has placeholders for the event's key and for each fault."""
    _log.error(text, fetched.claim.key, *faults, extra=_log_fields(fetched))


def _log_fields(fetched: Fetched) -> dict[str, object]:
    return delivery_fields(fetched.delivery, fetched.claim.attempt)


async def _first_of(*calls: Coroutine[Any, Any, object]) -> None:
    """Wait until one of the calls ends, and cancel the others; raise the error of a failed call."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
