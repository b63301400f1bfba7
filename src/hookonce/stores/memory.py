"""A store in this process's memory: for tests, and where handling twice after a restart is fine.

It forgets everything at a restart, and the oldest done events when it is full; it says so in the
log. It keeps no bodies: an event that would need a dead letter with bytes is answered 500 instead.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import timedelta

from ..clock import Clock, system_clock
from ..errors import StoreError
from ..verification.loggers import get_logger
from .applications import MOST_REMEMBERED, REMEMBERED_SECONDS, Application
from .contract import DEFAULT_RETENTION, check_retention
from .values import (
    INTERRUPTED,
    Claimed,
    ClaimResult,
    Dead,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    FailedAttempt,
    InFlight,
    Ownership,
    StoreStats,
    Token,
)

__all__ = ["MemoryStore"]

_log = get_logger("hookonce.store")


_NONE: frozenset[str] = frozenset()
_MAX_HISTORY = 20


@dataclass(slots=True)
class _Attempt:
    """An event that is neither done nor new: claimed now, or given back."""

    token: Token | None
    until: float
    lease: float
    attempt: int
    finished: frozenset[str]
    expires: float
    history: tuple[FailedAttempt, ...] = ()
    owed: frozenset[str] = _NONE

    def note(self, finished: frozenset[str], owed: frozenset[str] = _NONE) -> None:
        self.finished |= finished
        self.owed = (self.owed | owed) - self.finished

    def fail(self, ended_at: float, error: str | None) -> None:
        if error:
            failure = FailedAttempt(self.attempt, ended_at, error)
            self.history = (*self.history, failure)[-_MAX_HISTORY:]


class MemoryStore:
    """Remembers events in memory, a bounded number of them; for one event loop.

    Args:
        retention: how long a done event is remembered; at least 26 hours.
        max_records: how many events are remembered at the most. Beyond it the oldest done ones are
            forgotten early, with a warning; with nothing left to forget a claim raises StoreError.
        clock: Unix time in seconds.

    """

    keeps_bodies = False

    def __init__(
        self,
        *,
        retention: timedelta = DEFAULT_RETENTION,
        max_records: int = 1_000_000,
        clock: Clock = system_clock,
    ) -> None:
        if max_records < 1:
            raise ValueError("max_records must be at least 1")
        self.retention_seconds = check_retention(retention)
        self._max_records = max_records
        self._clock = clock
        # Both in the order of expiry, since all records live equally long from their last change.
        self._done: OrderedDict[DeliveryKey, float] = OrderedDict()
        self._attempts: OrderedDict[DeliveryKey, _Attempt] = OrderedDict()
        self._dead: dict[DeliveryKey, DeadLetter] = {}
        self._applications: dict[str, dict[Application, float]] = {}
        self._forgotten = 0

    async def open(self) -> None:
        """Do nothing: memory is open."""

    async def warnings(self) -> tuple[str, ...]:
        """Return nothing: this store has no settings to mend."""
        return ()

    async def aclose(self) -> None:
        """Do nothing: what is remembered lasts as long as the object."""

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event; see ``Store.claim``."""
        now = self._clock()
        done_until = self._done.get(key)
        if done_until is not None and now < done_until:
            return Done()
        attempt = self._attempts.get(key)
        history: tuple[FailedAttempt, ...] = ()
        if attempt is not None and now < attempt.until:
            # A lease cannot end later than it lasts, unless the clock was set back.
            attempt.until = min(attempt.until, now + attempt.lease)
            if attempt.token == token:
                return Claimed(
                    key, token, attempt.attempt, attempt.finished, attempt.lease, attempt.owed
                )
            return InFlight(attempt.until)
        if key in self._dead:
            return Dead()
        if attempt is None:
            self._make_room(now)
            count, finished, owed = 1, _NONE, _NONE
        else:
            del self._attempts[key]
            if attempt.token is not None:
                attempt.fail(attempt.until, INTERRUPTED)
            count, finished, history = attempt.attempt + 1, attempt.finished, attempt.history
            owed = attempt.owed
        self._attempts[key] = _Attempt(
            token, now + lease, lease, count, finished, now + self.retention_seconds, history, owed
        )
        return Claimed(key, token, count, finished, lease, owed)

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, owed: frozenset[str] = _NONE
    ) -> Ownership:
        """Start the lease anew; see ``Store.extend``."""
        attempt = self._owned(claim, finished)
        if attempt is None:
            return Ownership.LOST
        attempt.until = self._clock() + claim.lease
        attempt.note(finished, owed)
        return Ownership.HELD

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled; see ``Store.complete``."""
        self._finish(claim.key)

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
        attempt = self._owned(claim, finished)
        if attempt is None:
            return Ownership.LOST
        attempt.token, attempt.until = None, 0.0
        attempt.note(finished, owed)
        attempt.fail(self._clock(), error)
        attempt.attempt -= not began
        return Ownership.HELD

    async def keep(self, claim: Claimed, delivery: Delivery) -> Ownership:
        """Refuse: this store keeps no bodies."""
        raise StoreError("the memory store keeps no bodies; use a SQLite store for dead letters")

    async def keep_in_flight(self, delivery: Delivery) -> None:
        """Refuse: this store keeps no bodies."""
        raise StoreError("the memory store keeps no bodies; use a SQLite store for dead letters")

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
        """Make the event a dead letter without a body; see ``Store.bury``."""
        attempt = self._owned(claim, finished)
        if attempt is None:
            return Ownership.LOST
        if delivery is None:
            endpoint, _, event_id = claim.key.partition(":")
            delivery = Delivery(endpoint, event_id, None, self._clock(), b"")
        del self._attempts[claim.key]
        attempt.note(finished, owed)
        attempt.fail(self._clock(), error)
        self._dead[claim.key] = DeadLetter(
            delivery=delivery._replace(body=b""),
            reason=reason,
            error=error,
            attempts=attempt.attempt,
            finished=attempt.finished,
            buried_at=self._clock(),
            history=attempt.history,
            owed=attempt.owed,
        )
        return Ownership.HELD

    async def dead_letters(
        self, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first."""
        letters = (
            letter
            for letter in self._dead.values()
            if event_type in {None, letter.delivery.event_type}
            and endpoint in {None, letter.delivery.endpoint}
        )
        return [letter for letter, _ in zip(letters, range(limit), strict=False)]

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter; its body is empty, since this store keeps none."""
        return self._dead.get(key)

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Refuse: without the body there is nothing to run; see ``Store.replay``."""
        if key not in self._dead:
            return None
        raise StoreError("the memory store keeps no bodies, so there is nothing to replay")

    async def discard(self, key: DeliveryKey) -> bool:
        """Forget a dead letter and remember the event as done; see ``Store.discard``."""
        if key not in self._dead:
            return False
        self._finish(key)
        return True

    async def prune(self) -> int:
        """Remove records whose retention is over, and return how many."""
        return self._prune(self._clock(), at_most=self._max_records)

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        """Return how much is in flight and dead, of one endpoint or of all."""
        now = self._clock()
        live = (key for key, attempt in self._attempts.items() if now < attempt.until)
        return StoreStats(
            in_flight=sum(1 for key in live if _belongs(key, endpoint)),
            dead=sum(1 for key in self._dead if _belongs(key, endpoint)),
        )

    @property
    def place(self) -> MemoryStore:
        """The store itself: no other object stands for it; see ``RegisteringStore.place``."""
        return self

    async def register(
        self, endpoint: str, application: Application | None
    ) -> tuple[Application, ...]:
        """Note an application of an endpoint; see ``RegisteringStore.register``."""
        seen = self._applications.setdefault(endpoint, {})
        if application is not None:
            seen.pop(application, None)
            seen[application] = self._clock()
            for oldest in list(seen)[:-MOST_REMEMBERED]:
                del seen[oldest]
        since = self._clock() - REMEMBERED_SECONDS
        return tuple(replace(one, seen_at=at) for one, at in seen.items() if at > since)

    def _owned(self, claim: Claimed, finished: frozenset[str]) -> _Attempt | None:
        """Return the attempt that is the caller's, or remember what has finished without it."""
        attempt = self._attempts.get(claim.key)
        if attempt is not None and attempt.token == claim.token:
            return attempt
        if attempt is not None and attempt.attempt:
            attempt.note(finished)
        letter = self._dead.get(claim.key)
        if letter is not None:
            self._dead[claim.key] = replace(
                letter, finished=letter.finished | finished, owed=letter.owed - finished
            )
        return None

    def _finish(self, key: DeliveryKey) -> None:
        self._attempts.pop(key, None)
        self._dead.pop(key, None)
        self._done.pop(key, None)
        self._done[key] = self._clock() + self.retention_seconds

    def _make_room(self, now: float) -> None:
        self._prune(now, at_most=2)  # two for each that is added: it keeps up without ever stalling
        if len(self._done) + len(self._attempts) + len(self._dead) < self._max_records:
            return
        if not self._done:
            raise StoreError("the memory store is full of events that are not done yet")
        self._done.popitem(last=False)
        self._forgotten += 1
        if self._forgotten & (self._forgotten - 1) == 0:  # at 1, 2, 4, 8 …: said, but no flood
            _log.warning(
                "the memory store is full (%d records) and has forgotten %d done events before"
                " their time; a late duplicate of one would be handled again",
                self._max_records,
                self._forgotten,
            )

    def _prune(self, now: float, at_most: int) -> int:
        removed = 0
        while removed < at_most and self._done and next(iter(self._done.values())) <= now:
            self._done.popitem(last=False)
            removed += 1
        while removed < at_most and self._attempts:
            oldest = next(iter(self._attempts.values()))
            if now < max(oldest.expires, oldest.until):
                break
            self._attempts.popitem(last=False)
            removed += 1
        return removed


def _belongs(key: DeliveryKey, endpoint: str | None) -> bool:
    return endpoint is None or key.startswith(f"{endpoint}:")
