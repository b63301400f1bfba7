"""One line in the log for each delivery, and for each attempt of a worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ..clock import Clock, utc_text
from ..logs import event_fields, get_logger, printable
from ..stores.values import Delivery, DeliveryKey
from .records import (
    DeliveryAnswered,
    EventBuried,
    EventDeferred,
    EventFetched,
    EventRetried,
    EventSettled,
    Observer,
)

_log = get_logger("hookonce")


def delivery_fields(
    delivery: Delivery, attempt: int | None = None, handler: str | None = None
) -> dict[str, object]:
    """Return the fields (``extra``) of a record about a delivery; see ``event_fields``."""
    return event_fields(
        delivery.endpoint,
        delivery.event_id,
        delivery.event_type,
        attempt=attempt,
        handler=handler,
    )


def record_fields(record: object) -> dict[str, object]:
    """Return the log fields of an observer's record; empty if the record is not about an event."""
    if isinstance(record, DeliveryAnswered):
        attempt = None if record.hints is None else record.hints.attempt
        return event_fields(record.endpoint, record.event_id, record.event_type, attempt=attempt)
    delivery = getattr(record, "delivery", None)
    if not isinstance(delivery, Delivery):
        return {}
    attempt, handler = getattr(record, "attempt", None), getattr(record, "handler", None)
    return delivery_fields(delivery, attempt, handler)


def log_answer(record: DeliveryAnswered) -> None:
    """Log one line for a request, with its fields as ``extra``.

    A refused delivery is logged as a warning, any other as information. The fields are
    ``endpoint``, ``event_id``, ``type``, ``attempt`` (the sender's count), ``status``, ``reason``
    and ``milliseconds``, and ``field`` if a field made the body unreadable. A body, a signature or
    a secret is never logged.
    """
    if not _log.isEnabledFor(logging.INFO if record.refusal is None else logging.WARNING):
        return
    outcome = record.outcome
    extra = {
        **record_fields(record),
        "status": int(outcome.status),
        "reason": str(outcome.reason),
        "milliseconds": round(record.seconds * 1000, 1),
    }
    if record.unreadable is not None and record.unreadable.field is not None:
        extra["field"] = printable(record.unreadable.field)
    if record.refusal is not None:
        headers = record.headers
        # `repr` escapes control characters: the id of a refused delivery may be a forger's text.
        named = "no readable id" if headers is None else f"id {headers.message_id!r}"
        _log.warning(
            "refused a delivery at %s with %s: %s",
            record.endpoint,
            named,
            record.refusal,
            extra=extra,
        )
    else:
        _log.info(
            "%s %s at %s: %d %s (%.1f ms)",
            record.event_type or _hinted(record),
            record.event_id or "without a readable id",
            record.endpoint,
            outcome.status,
            outcome.reason,
            extra["milliseconds"],
            extra=extra,
        )


def log_failed_attempt(
    delivery: Delivery,
    attempt: int,
    handlers: Sequence[str],
    failures: str,
    then: str,
    error: BaseException | None,
) -> None:
    """Log one line about an attempt with failed handlers: the failures, and what happens next.

    Args:
        delivery: what was delivered.
        attempt: the number of the attempt at this event.
        handlers: the names of the handlers that failed.
        failures: one line for each handler, with its error.
        then: what happens to the event now.
        error: the error to log with its traceback; None if the handlers failed on purpose.
    """
    if len(handlers) == 1:
        extra = delivery_fields(delivery, attempt, handlers[0])
    else:
        extra = {**delivery_fields(delivery, attempt), "handlers": [*map(printable, handlers)]}
    _log.log(
        logging.WARNING if error is None else logging.ERROR,
        "%s %s at %s: attempt %d failed: %s; %s",
        delivery.event_type or "?",
        delivery.event_id,
        delivery.endpoint,
        attempt,
        "; ".join(failures.splitlines()),
        then,
        exc_info=error,
        extra=extra,
    )


class AttemptLog(Observer):
    """Logs one line for each attempt of a worker: handled, retried, deferred or buried.

    The ``extra`` fields are ``endpoint``, ``event_id``, ``type``, ``attempt`` (the worker's
    own count), ``reason`` and ``milliseconds``. If the attempt failed, the line before it shows the
    traceback.

    Args:
        clock: Unix time in seconds, for when the next attempt is due.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: dict[DeliveryKey, float] = {}

    def event_fetched(self, record: EventFetched) -> None:
        """Remember when the attempt began."""
        self._taken[record.delivery.key] = time.perf_counter()

    def event_settled(self, record: EventSettled) -> None:
        """Log that the event is handled, or free for another worker."""
        self._write(logging.INFO, record.delivery, record.attempt, str(record.outcome.reason))

    def event_retried(self, record: EventRetried) -> None:
        """Log when the next attempt is due."""
        after = record.after_seconds
        due = utc_text(self._clock() + after, "%Y-%m-%dT%H:%M:%SZ")
        text = f"failed; next attempt in {after:.0f} s, at {due}"
        self._write(logging.WARNING, record.delivery, record.attempt, "retried", text)

    def event_deferred(self, record: EventDeferred) -> None:
        """Log that the event waits for its key lock."""
        text = "not begun; waits for its key lock"
        self._write(logging.INFO, record.delivery, record.attempt, "parked", text)

    def event_buried(self, record: EventBuried) -> None:
        """Log that the event is a dead letter."""
        text = f"buried as {record.reason}"
        self._write(logging.ERROR, record.delivery, record.attempt, str(record.reason), text)

    def _write(
        self, level: int, delivery: Delivery, attempt: int, reason: str, text: str | None = None
    ) -> None:
        began = self._taken.pop(delivery.key, None)
        if began is None or not _log.isEnabledFor(level):
            return  # only the attempts of workers get a line here
        milliseconds = round((time.perf_counter() - began) * 1000, 1)
        _log.log(
            level,
            "%s %s at %s: attempt %d %s (%.1f ms)",
            delivery.event_type or "?",
            delivery.event_id,
            delivery.endpoint,
            attempt,
            text or reason,
            milliseconds,
            extra={
                **delivery_fields(delivery, attempt),
                "reason": reason,
                "milliseconds": milliseconds,
            },
        )


def _hinted(record: DeliveryAnswered) -> str:
    hinted = None if record.hints is None else record.hints.event_type
    return "a delivery" if hinted is None else f"an event said to be {hinted!r}"
