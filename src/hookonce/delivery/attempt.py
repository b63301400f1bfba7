"""One attempt at an event: run its handlers under the claim, decide, settle, report.

The same for a delivery that waits for its answer, an event of the inbox, and a dead letter that is
replayed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar

from ..errors import Reject, Retry, StoreError
from ..events import Event
from ..stores.contract import InboxStore, Store
from ..stores.values import Claimed, DeadReason, Delivery, Ownership
from .context import Context
from .dispatch import Dispatcher, Progress, Report
from .handler import Handler
from .lease import LeaseKeeper, within
from .limits import Limits
from .outcome import HANDLED, Outcome, Reason, later
from .records import EventBuried, EventRetried, EventSettled, Observers
from .router import Router

__all__ = [
    "Attempt",
    "Attempts",
    "Bury",
    "Complete",
    "Release",
    "Settlement",
    "decide",
    "is_last_chance",
    "is_last_delivery",
]

_log = logging.getLogger("hookonce")

T = TypeVar("T")

# The sender makes nine attempts (interface, Limits: Delivery attempts). Own attempts can be fewer
# than the sender's, because a copy that finds the event in flight counts as one of the sender's
# only; giving up one earlier leaves room for that.
_LAST_OWN_ATTEMPT = 8
_LAST_DELIVERY_ATTEMPT = 9

_FIRST_RECORDING_PAUSE_SECONDS = 0.1
_LONGEST_RECORDING_PAUSE_SECONDS = 2.0


def is_last_delivery(delivery_attempt: int | None) -> bool:
    """Return whether the sender, by its own unsigned count, will not bring the event again."""
    return (delivery_attempt or 0) >= _LAST_DELIVERY_ATTEMPT


def is_last_chance(claim: Claimed, delivery_attempt: int | None) -> bool:
    """Return whether the sender may not bring the event again if this attempt fails."""
    return claim.attempt >= _LAST_OWN_ATTEMPT or is_last_delivery(delivery_attempt)


@dataclass(frozen=True, slots=True)
class Complete:
    """Every handler has succeeded: record it."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the event back; the sender or the inbox will bring it again."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Bury:
    """Make the event a dead letter."""

    reason: DeadReason
    outcome: Outcome


Settlement: TypeAlias = Complete | Release | Bury


def decide(report: Report, *, last_chance: bool, keeps_bodies: bool) -> Settlement:
    """Return what follows from a report.

    A rejection counts only when nothing else has failed: as long as another handler may still
    succeed, the event comes again, and the rejecting one will reject it then.
    """
    if not report.failures:
        return Complete()
    if report.rejected:
        return Bury(DeadReason.REJECTED, Outcome(HTTPStatus.ACCEPTED, Reason.REJECTED))
    if last_chance and keeps_bodies:
        return Bury(DeadReason.EXHAUSTED, Outcome(HTTPStatus.ACCEPTED, Reason.EXHAUSTED))
    if report.errors:
        return Release(Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.HANDLER_FAILED))
    return Release(later(Reason.RETRY_REQUESTED, report.retry_after))


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an attempt is made of.

    Attributes:
        claim: the claim it runs under.
        delivery: the delivery as it arrived or was kept.
        event: the event read from it.
        handlers: every handler the event is for; those that have finished are left out.
        last_chance: whether nobody may have the event any more if this attempt fails.
        delivery_attempt: the sender's own count, unsigned.
        is_replay: whether an operator replays a dead letter.
        backoff_seconds: for an event of the inbox, how long it waits if this attempt fails. None
            where only the sender brings it again.

    """

    claim: Claimed
    delivery: Delivery
    event: Event[Any]
    handlers: Sequence[Handler]
    last_chance: bool
    delivery_attempt: int | None = None
    is_replay: bool = False
    backoff_seconds: float | None = None

    @property
    def number(self) -> int:
        """Which attempt at the event it is, from 1."""
        return self.claim.attempt

    @property
    def is_kept(self) -> bool:
        """Whether the store has the body already, so that a crash cannot lose the event."""
        return self.is_replay or self.backoff_seconds is not None

    def context(self, handler: str) -> Context:
        """Return what the handler of that name is told."""
        return Context(
            key=self.claim.key,
            endpoint=self.delivery.endpoint,
            event_id=self.event.id,
            event_type=self.event.type,
            handler=handler,
            attempt=self.claim.attempt,
            delivery_attempt=self.delivery_attempt,
            last_chance=self.last_chance,
            is_replay=self.is_replay,
            received_at=self.delivery.received_at,
            body=self.delivery.body,
        )


class Attempts:
    """Makes attempts: runs handlers, keeps the lease, settles with the store, tells of failures.

    Args:
        store: where claims are settled.
        router: whose error hooks are told.
        limits: time limits.
        inbox: the same store, where events of its inbox are attempted.
        observers: who is told of handlers, and of what becomes of the event.

    """

    def __init__(
        self,
        *,
        store: Store,
        router: Router,
        limits: Limits,
        inbox: InboxStore | None,
        observers: Observers,
    ) -> None:
        self._observers = observers
        self._store = store
        self._inbox = inbox
        self._router = router
        self._limits = limits
        self._dispatcher = Dispatcher(
            threads=limits.threads,
            handler_timeout=limits.handler_timeout_seconds,
            observers=observers,
        )

    @property
    def overdue(self) -> int:
        """How many sync handlers run longer than their time limit; each occupies a thread."""
        return self._dispatcher.overdue

    def close(self) -> None:
        """Let go of the threads of sync handlers."""
        self._dispatcher.close()

    async def make(
        self,
        attempt: Attempt,
        *,
        settled: Callable[[Outcome], None],
        kept: Callable[[LeaseKeeper | None], None],
        ended: Callable[[Report], None],
    ) -> None:
        """Run the attempt to its end.

        Args:
            attempt: what to run.
            settled: called with the outcome as soon as it stands, and again if it changes; error
                hooks run after it.
            kept: called with what keeps the claim, and with None once that is settled.
            ended: called when every handler has ended, before that is recorded.

        """
        progress, store_seconds = Progress(), self._limits.store_seconds
        async with LeaseKeeper(self._store, attempt.claim, progress, store_seconds) as keeper:
            kept(keeper)
            try:
                if attempt.last_chance and not attempt.is_kept:
                    await self._keep(attempt)
                report = await self._dispatcher.run(
                    [h for h in attempt.handlers if h.name not in attempt.claim.finished],
                    attempt.event,
                    attempt,
                    progress,
                )
            except asyncio.CancelledError:
                await asyncio.shield(self._give_back(keeper.claim, progress))
                raise
            ended(report)
            settlement = decide(
                report,
                last_chance=attempt.last_chance,
                keeps_bodies=self._store.keeps_bodies,
            )
            if isinstance(settlement, Complete):
                await self._complete(attempt, keeper, settled)
            else:
                settled(await self._give_up(attempt, report, settlement, keeper, settled))
        kept(None)
        await self._tell(attempt, report, buried=isinstance(settlement, Bury))

    async def _keep(self, attempt: Attempt) -> None:
        """Keep the body, so that not even a crash of the last attempt can lose the event."""
        if not self._store.keeps_bodies:
            return
        try:
            await self._in_time(self._store.keep(attempt.claim, attempt.delivery))
        except StoreError as error:
            _log.error("could not keep %s for its last attempt: %s", attempt.claim.key, error)

    async def _complete(
        self, attempt: Attempt, keeper: LeaseKeeper, settled: Callable[[Outcome], None]
    ) -> None:
        """Record the success; the answer is 200 even if that fails, since a 5xx would repeat it."""
        # Out of the inbox it comes again for certain, unless this is recorded some day.
        is_certain_to_come = attempt.backoff_seconds is not None
        loop = asyncio.get_running_loop()
        try:
            await self._record(
                lambda: self._store.complete(attempt.claim),
                failed=lambda: settled(HANDLED),
                gives_up=lambda: not is_certain_to_come and loop.time() >= keeper.expires_at,
            )
        except StoreError as error:
            _log.error(
                "%s is handled, but that could not be recorded while its lease lived; a further"
                " delivery of it would be handled again: %s",
                attempt.claim.key,
                error,
            )
        self._tell_settled(attempt, HANDLED)
        settled(HANDLED)

    async def _give_up(
        self,
        attempt: Attempt,
        report: Report,
        settlement: Release | Bury,
        keeper: LeaseKeeper,
        settled: Callable[[Outcome], None],
    ) -> Outcome:
        """Release or bury the event, and return the answer that is true after that."""
        unavailable = later(Reason.STORE_UNAVAILABLE)
        after, error = _wait(attempt, report), report.describe()
        loop = asyncio.get_running_loop()
        # Extended for ever, a claim that cannot be given back would never be free.
        end = keeper.expires_at

        def call() -> Awaitable[Ownership]:
            if isinstance(settlement, Release):
                if self._inbox is None or after is None:
                    return self._store.release(keeper.claim, report.finished, error)
                return self._inbox.retry(keeper.claim, after, report.finished, error)
            return self._store.bury(
                keeper.claim,
                settlement.reason,
                error=error,
                finished=report.finished,
                delivery=attempt.delivery,
            )

        try:
            ownership = await self._record(
                call, failed=lambda: settled(unavailable), gives_up=lambda: loop.time() >= end
            )
        except StoreError as fault:
            _log.error("could not settle %s; its lease will run out: %s", attempt.claim.key, fault)
            self._tell_settled(attempt, unavailable)
            return unavailable
        delivery, number = attempt.delivery, attempt.claim.attempt
        if ownership is Ownership.LOST:
            # Another attempt has begun or even succeeded; its outcome is the one that counts.
            outcome = later(Reason.IN_FLIGHT)
            self._tell_settled(attempt, outcome)
            return outcome
        if isinstance(settlement, Bury):
            self._observers.tell(EventBuried(delivery, number, settlement.reason, error))
        elif after is not None:
            self._observers.tell(EventRetried(delivery, number, after, error))
        else:
            self._tell_settled(attempt, settlement.outcome)
        return settlement.outcome

    def _tell_settled(self, attempt: Attempt, outcome: Outcome) -> None:
        delivery = attempt.delivery
        if self._observers.wants(EventSettled, delivery.event_id):
            self._observers.tell(EventSettled(delivery, attempt.claim.attempt, outcome))

    async def _record(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        failed: Callable[[], None],
        gives_up: Callable[[], bool],
    ) -> T:
        """Return what a settling call returns; it is repeated while the store fails.

        Args:
            call: makes the call.
            failed: called after a failure: an answer cannot wait for the next try.
            gives_up: whether a failure is the last; it is raised then.

        """
        pause = _FIRST_RECORDING_PAUSE_SECONDS
        while True:
            try:
                return await within(self._limits.store_seconds, call())
            except StoreError:
                failed()
                if gives_up():
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_RECORDING_PAUSE_SECONDS)

    async def _give_back(self, claim: Claimed, progress: Progress) -> None:
        """Release the claim of an attempt that was cancelled.

        A thread cannot be cancelled. While one goes on, no other attempt shall run beside it, so
        the claim is left to its lease.
        """
        finished = progress.all_finished()
        try:
            if progress.thread_goes_on:
                await self._in_time(self._store.extend(claim, finished))
            else:
                await self._in_time(self._store.release(claim, finished, "cancelled at shutdown"))
        except StoreError as error:
            _log.error("could not release %s; its lease will run out: %s", claim.key, error)

    async def _tell(self, attempt: Attempt, report: Report, *, buried: bool) -> None:
        # A retry that was asked for is no failure, unless it was asked for in vain.
        failures = report.failures if buried else report.errors
        if not failures:
            return
        count = len(failures)
        group = ExceptionGroup(
            f"{count} handler{'s' if count > 1 else ''} of {attempt.event.type} failed",
            [failure.error for failure in failures],
        )
        number, key = attempt.claim.attempt, attempt.claim.key
        if all(isinstance(failure.error, Reject | Retry) for failure in failures):
            _log.warning("attempt %d at %s was its last: %s", number, key, report.describe())
        else:
            _log.error("attempt %d at %s failed", number, key, exc_info=group)
        context = attempt.context(", ".join(failure.handler for failure in failures))
        await self._dispatcher.tell(self._router.error_hooks, group, attempt.event, context)

    async def _in_time(self, call: Awaitable[T]) -> T:
        return await within(self._limits.store_seconds, call)


def _wait(attempt: Attempt, report: Report) -> float | None:
    """Return how long an event of the inbox waits after a failure, in seconds; None for others.

    A wait that a handler asked for is its own affair; others' failures wait as long at least.
    """
    if attempt.backoff_seconds is None:
        return None
    least = attempt.backoff_seconds if report.errors else 0.0
    asked = attempt.backoff_seconds if report.retry_after is None else report.retry_after
    return max(least, asked)
