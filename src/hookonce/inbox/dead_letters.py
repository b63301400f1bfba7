"""Dead letters: events that were given up, for an operator to list, replay or discard."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus

from ..delivery.attempt import Attempt
from ..delivery.attempts import Attempts
from ..delivery.dependencies import Dependencies
from ..delivery.instant import Instant
from ..delivery.origin import Replay
from ..errors import StoreError
from ..outcome import DUPLICATE, Outcome, Reason, later
from ..stores.filters import select
from ..stores.protocols import DeadLetterQueue
from ..stores.values import Claimed, DeadLetter, DeadReason, InFlight, delivery_key, new_token
from .replay_id import ReplayId
from .waiting import filter_of


class DeadLetters:
    """The dead letters of one endpoint.

    Get it from ``Receiver.dead``.

    Args:
        dependencies: the dependencies of the receiver.
        store: holds the dead letters.
        attempts: the attempts in flight.
    """

    def __init__(
        self, dependencies: Dependencies, *, store: DeadLetterQueue, attempts: Attempts
    ) -> None:
        self._dependencies = dependencies
        self._store = store
        self._endpoint = dependencies.endpoint
        self._attempts = attempts

    async def list(
        self,
        *,
        reason: DeadReason | None = None,
        event_type: str | None = None,
        handler: str | None = None,
        since: float | datetime | None = None,
        where: str | Sequence[str] = (),
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[DeadLetter]:
        """Return dead letters and kept deliveries, oldest first, without their bodies.

        A kept delivery (``is_kept``) is not a dead letter yet: the sender may send its event again
        until ``buried_at``.

        Args:
            reason: only dead letters with this reason.
            event_type: only events of this type.
            handler: only events for which this handler has failed or has not run.
            since: only events that became dead letters at this time or later: an aware
                ``datetime`` or Unix seconds.
            where: only events whose body meets all these conditions, such as
                ``data.platform=instagram``: the path of a field in the body as it arrived, and its
                value. This filter reads bodies, a few at a time; the store applies the others.
            after: the ``place`` of a listed dead letter; the listing goes on after that dead
                letter.
            limit: the largest number of dead letters.

        Raises:
            StoreError: the store cannot be read.
            ValueError: ``after`` is not a place in this store's listings, or a condition cannot be
                read.
        """
        wanted = filter_of(
            self._endpoint, event_type, handler, since=since, where=where, reason=reason
        )
        find, load = self._store.dead_letters, self._store.dead_letter
        return await select(find, load, wanted, after=after, limit=limit)

    async def show(self, event_id: str) -> DeadLetter | None:
        """Return the dead letter of an event with its body, or None; raises StoreError."""
        return await self._store.dead_letter(delivery_key(self._endpoint, event_id))

    async def replay(self, event_id: str) -> Outcome:
        """Run the handlers that have not succeeded yet, and return the outcome.

        The event keeps its id, and handlers see ``context.is_replay``. If the dead letter is the
        failed replay of a handled event, only that replay's handler runs, in the same generation.
        The event stays a dead letter until all its handlers have succeeded, even if this process
        crashes. An event with ``is_kept`` stays kept until then.

        Raises:
            LookupError: there is no such dead letter.
            PayloadError: the body still cannot be read as an event.
            StoreError: the store failed, or keeps no bodies.
        """
        key = delivery_key(self._endpoint, event_id)
        letter = await self._store.dead_letter(key)
        if letter is None:
            raise LookupError(f"there is no dead letter {event_id!r} at {self._endpoint!r}")
        if not self._dependencies.store.keeps_bodies:
            raise StoreError("the store keeps no bodies, so there is nothing to replay")
        table, lease = self._dependencies.handler_table, self._dependencies.limits.lease_seconds
        again = ReplayId.parse(event_id)
        event = table.parser.parse(letter.delivery.body, ReplayId.event_of(event_id))
        handlers = table.find(event)
        if again is not None:  # the dead letter is a replay, which runs one handler
            handlers = tuple(handler for handler in handlers if handler.name == again.handler)
        if not handlers:
            return Outcome(HTTPStatus.OK, Reason.NO_HANDLER)
        asked_at = Instant.now(asyncio.get_running_loop())
        claim = await self._store.replay(key, new_token(), lease)
        if isinstance(claim, InFlight):
            return later(Reason.IN_FLIGHT)
        if not isinstance(claim, Claimed):  # another replay has just succeeded
            return DUPLICATE
        if self._attempts.adopt(claim) is not None:
            return later(Reason.IN_FLIGHT)
        # Use the type that was just parsed: if the body was unreadable before, the record has no
        # type.
        delivery = letter.delivery._replace(event_type=event.type)
        dependencies = self._dependencies
        attempt = Attempt(
            dependencies if again is None else dependencies.without_keeper(),
            delivery,
            again.origin(is_last=True) if again else Replay(is_last=not letter.is_kept),
            event,
            handlers,
        )
        attempt.begin_with(claim, asked_at)
        return await self._attempts.wait_for(self._attempts.begin(attempt))

    async def discard(self, event_id: str) -> bool:
        """Discard a dead letter; its event counts as handled from now on.

        Returns False if there is no such dead letter.

        Raises:
            StoreError: the store failed.
        """
        return await self._store.discard(delivery_key(self._endpoint, event_id))
