"""One line in the log for each delivery."""

from __future__ import annotations

import logging

from ..verification.loggers import get_logger, printable
from .records import DeliveryAnswered, Observer

__all__ = ["DeliveryLog"]

_log = get_logger("hookonce")


class DeliveryLog(Observer):
    """Writes a line for each request, with the parts beside it as ``extra``.

    A refused delivery is a warning, every other one information. The parts are ``endpoint``,
    ``event_id``, ``event_type``, ``delivery_attempt``, ``status``, ``reason`` and ``milliseconds``;
    there is never a body, a signature or a secret among them.
    """

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Write the line."""
        level = logging.INFO if record.refusal is None else logging.WARNING
        if not _log.isEnabledFor(level):
            return
        outcome = record.outcome
        extra = {
            "endpoint": record.endpoint,
            "event_id": record.event_id and printable(record.event_id),
            "event_type": record.event_type and printable(record.event_type),
            "delivery_attempt": record.hints and record.hints.attempt,
            "status": int(outcome.status),
            "reason": str(outcome.reason),
            "milliseconds": round(record.seconds * 1000, 1),
        }
        if record.refusal is not None:
            # Quoted, since anybody wrote it.
            named = (
                "nothing readable" if record.headers is None else repr(record.headers.message_id)
            )
            _log.warning(
                "refused a delivery that calls itself %s: %s", named, record.refusal, extra=extra
            )
        else:
            _log.info(
                "%s %s at %s: %d %s",
                record.event_type or _hinted(record),
                record.event_id or "that was not read",
                record.endpoint,
                outcome.status,
                outcome.reason,
                extra=extra,
            )


def _hinted(record: DeliveryAnswered) -> str:
    return (
        "a delivery" if record.hints is None else f"an event said to be {record.hints.event_type!r}"
    )
