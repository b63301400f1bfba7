"""Plans the attempts of deliveries, and decides the next step after each answer.

Delivery is at least once: an attempt without an answer counts as failed, whatever the receiver has
done with the event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from ..clock import utc
from ..senders import Rules
from .chaos import UNDISTURBED, Chaos, Plan, RequestFaults, plan_for, plan_of
from .records import (
    DeliveryAttempt,
    DeliveryRow,
    DeliveryStatus,
    DisabledReason,
    EndpointRow,
    EndpointStatus,
    Notice,
    OutgoingEvent,
)
from .timeline import Timeline
from .wire import Wire

_GONE = 410

# The largest number of finished deliveries in the log. At a high speed, very many deliveries fall
# within the time that the log covers.
_LOGGED = 100_000


class Deliveries:
    """The deliveries of the workspace: their schedule and their log.

    Args:
        rules: the rules by which the sender delivers. A rule that is None is not applied;
            without a schedule it retries by the example of the specification.
        seed: determines every random draw.
        rotate: rotates an endpoint's secret; None forbids chaos to do so.

    Attributes:
        notices: the notices to the workspace's owner and admins.
    """

    def __init__(
        self,
        endpoints: Mapping[str, EndpointRow],
        *,
        rules: Rules,
        wire: Wire,
        timeline: Timeline,
        seed: int,
        chaos: Chaos | RequestFaults | None,
        rotate: Callable[[EndpointRow], None] | None,
    ) -> None:
        self._endpoints = endpoints
        self._rules = rules
        self._waits = rules.tried_retry_seconds
        self._wire = wire
        self._timeline = timeline
        self._seed = seed
        self._chaos = chaos
        self._rotate = rotate
        self._random = Random(f"{seed}:deliveries")  # noqa: S311 - not used for secrets
        self._rows: dict[str, DeliveryRow] = {}
        self._count = 0
        self.notices: list[Notice] = []

    def rows(self, endpoint_id: str | None = None) -> list[DeliveryRow]:
        """Return the delivery log, of one endpoint or of all, newest first."""
        self._drop_old()
        return [
            row
            for row in reversed(self._rows.values())
            if endpoint_id is None or row.endpoint_id == endpoint_id
        ]

    def begin(
        self, endpoint: EndpointRow, event: OutgoingEvent, *, is_test: bool = False
    ) -> DeliveryRow:
        """Create a delivery; its first attempt is due now, or later if chaos delays it."""
        self._drop_old()
        self._count += 1
        now = self._timeline.now
        row = DeliveryRow(
            id=f"dlv_{self._random.randbytes(12).hex()}",
            number=self._count,
            key=str(self._count) if isinstance(self._chaos, Chaos) else event.id,
            endpoint_id=endpoint.id,
            event=event,
            is_test=is_test,
            created_at=now,
        )
        self._rows[row.id] = row
        self._plan_attempt(row, now + self._timeline.span(self._plan_for(row, 1).delay_seconds))
        return row

    def disable(self, endpoint: EndpointRow, reason: DisabledReason) -> None:
        """Disable an endpoint, and give up its pending deliveries."""
        endpoint.disable(reason)
        pending = [
            row
            for row in self._rows.values()
            if row.endpoint_id == endpoint.id and row.status is DeliveryStatus.PENDING
        ]
        for row in pending:
            row.status, row.next_attempt_at = DeliveryStatus.FAILED, None
        self._timeline.forget({row.id for row in pending})
        if reason is not DisabledReason.MANUAL:
            self.notices.append(Notice(endpoint.id, reason, utc(self._timeline.now)))

    def replace_secret(self, endpoint: EndpointRow, secret: str) -> None:
        """Rotate an endpoint's secret; both secrets sign for the time that the rules set."""
        both_seconds = self._rules.two_signatures_seconds or 0.0
        endpoint.rotate(secret, self._timeline.now + self._timeline.span(both_seconds))

    def _drop_old(self) -> None:
        if self._rules.log_seconds is not None:
            kept_since = self._timeline.now - self._timeline.span(self._rules.log_seconds)
            while self._rows and (row := next(iter(self._rows.values()))).created_at < kept_since:
                if row.status is DeliveryStatus.PENDING:
                    break  # at a high --speed, a delivery of this age may still be pending
                del self._rows[row.id]
        # The search reads every row. To search seldom, wait until the log is a tenth too long.
        if len(self._rows) > 1.1 * _LOGGED:
            settled = [
                row.id for row in self._rows.values() if row.status is not DeliveryStatus.PENDING
            ]
            for delivery_id in settled[: max(0, len(self._rows) - _LOGGED)]:
                del self._rows[delivery_id]

    def _plan_attempt(self, row: DeliveryRow, moment: float) -> None:
        row.next_attempt_at = moment
        self._timeline.at(moment, row.id, partial(self._attempt, row))

    def _plan_for(self, row: DeliveryRow, attempt: int) -> Plan:
        if self._chaos is None or row.is_test:
            return UNDISTURBED
        if isinstance(self._chaos, Chaos):
            return plan_of(self._chaos, self._seed, row.number, attempt)
        return plan_for(self._chaos(row.event.id, attempt))

    async def _attempt(self, row: DeliveryRow) -> None:
        if row.status is not DeliveryStatus.PENDING:
            return  # the endpoint was disabled after this attempt had become due
        endpoint = self._endpoints[row.endpoint_id]
        row.attempts += 1
        row.next_attempt_at = None
        started_at = self._timeline.now
        plan = self._plan_for(row, row.attempts)
        if plan.rotates:
            if self._rotate is None:
                plan = UNDISTURBED  # nothing can rotate the secret
            else:
                self._rotate(endpoint)
        random = self._random_for(row, "beside")
        async with asyncio.TaskGroup() as requests:
            attempt = requests.create_task(self._wire.deliver(row, endpoint, plan))
            for _ in range(plan.copies):
                requests.create_task(self._wire.deliver_copy(row, endpoint, plan))
            for _ in range(plan.forgeries):
                requests.create_task(self._wire.forge(row, endpoint, random))
            if plan.replays:
                requests.create_task(self._wire.replay(random))
        self._settle(row, endpoint, attempt.result())
        if plan.copy_after_seconds is not None and attempt.result().failure is None:
            copy = partial(self._deliver_late_copy, row, endpoint, plan)
            copy_at = started_at + self._timeline.span(plan.copy_after_seconds)
            self._timeline.at(copy_at, f"{row.id} copy", copy)

    async def _deliver_late_copy(self, row: DeliveryRow, endpoint: EndpointRow, plan: Plan) -> None:
        if endpoint.status is EndpointStatus.ACTIVE:
            await self._wire.deliver_copy(row, endpoint, plan)

    def _settle(self, row: DeliveryRow, endpoint: EndpointRow, attempt: DeliveryAttempt) -> None:
        now = self._timeline.now
        row.response_status, row.error_message = attempt.status, attempt.failure
        row.duration_ms = round(attempt.milliseconds)
        if attempt.failure is None:
            row.status, row.delivered_at = DeliveryStatus.DELIVERED, now
            if not row.is_test:
                endpoint.count_success(now)
            return
        if not row.is_test:
            endpoint.count_failure(now)
        if endpoint.status is EndpointStatus.ACTIVE:
            # A 410 "on any attempt" (interface, States) disables the endpoint, also at a test
            # event; other failures of test events do not count.
            if attempt.status == _GONE:
                self.disable(endpoint, DisabledReason.GONE)
            elif not row.is_test and self._has_failed_too_long(endpoint, now):
                self.disable(endpoint, DisabledReason.FAILING)
        if row.status is DeliveryStatus.FAILED:
            return  # `disable` has given up the delivery
        # A test event is never retried (interface, Events: Delivery behaviour).
        if row.is_test or row.attempts > len(self._waits):
            row.status = DeliveryStatus.FAILED
            return
        most = self._rules.retry_jitter or 0.0
        jitter = self._random_for(row, "wait").uniform(-most, most)
        wait = self._waits[row.attempts - 1] * (1 + jitter)
        if self._rules.reads_retry_after and attempt.retry_after_seconds is not None:
            wait = attempt.retry_after_seconds
        self._plan_attempt(row, attempt.at_unix + self._timeline.span(wait))

    def _has_failed_too_long(self, endpoint: EndpointRow, now: float) -> bool:
        seconds, failures = self._rules.disabling_seconds, self._rules.disabling_failures
        if seconds is None:
            return False
        return endpoint.is_failing_too_long(now, self._timeline.span(seconds), failures or 1)

    def _random_for(self, row: DeliveryRow, what: str) -> Random:
        """Return a random generator that is seeded by the delivery and the attempt."""
        return Random(f"{self._seed}:{row.key}:{row.attempts}:{what}")  # noqa: S311 - not used for secrets
