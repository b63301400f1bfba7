"""Reports an attempt that has failed: to the observers, the log and the error hooks."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Reject, Retry
from ..logs import get_logger
from ..outcome import Outcome
from ..watching.absent_handlers import absence_text
from ..watching.log import log_failed_attempt
from ..watching.records import EventBuried, EventDeferred, EventRetried, EventSettled
from .handling import Handling
from .lease import Lease
from .verdict import AfterFailure, Bury, Defer, Release, Report

_log = get_logger("hookonce")


def notify_end(lease: Lease, outcome: Outcome, recorded: AfterFailure | None = None) -> None:
    """Notify the observers that an attempt has not succeeded.

    Args:
        lease: the lease of the attempt.
        outcome: the answer.
        recorded: the settlement that the store has recorded; None if nothing was recorded.
    """
    observers, delivery, number = lease.dependencies.observers, lease.delivery, lease.number
    match recorded:
        case Defer(error=error, after_seconds=seconds, counts=True):
            observers.notify(EventRetried(delivery, number, seconds, error))
        case Defer(after_seconds=seconds):
            observers.notify(EventDeferred(delivery, number, seconds))
        case Bury(error=error, reason=reason):
            observers.notify(EventBuried(delivery, number, reason, error))
        case Release() | None:
            observers.notify_of(EventSettled, delivery, number, outcome)


async def report_failures(handling: Handling, report: Report, *, is_final: bool, then: str) -> None:
    """Log the failures of an attempt, and call the error hooks with them.

    Args:
        handling: the handlers of the attempt.
        report: the failures.
        is_final: whether no other attempt follows; only then a `Retry` counts as a failure.
        then: what happens to the event now, for the log.
    """
    lease = handling.lease
    if report.absent:
        _log.error("%s %s", lease.key, absence_text(report.absent), extra=lease.log_fields())
        lease.dependencies.absent.note(str(lease.key), report.absent)
    failures = report.failures if is_final else report.failures_except_retries
    if not failures:
        return
    count = len(failures)
    group = ExceptionGroup(
        f"{count} handler{'s' if count > 1 else ''} of {handling.event.type} failed",
        [failure.error for failure in failures],
    )
    names = [failure.handler for failure in failures]
    is_wanted = all(isinstance(failure.error, Reject | Retry) for failure in failures)
    log_failed_attempt(
        lease.delivery, lease.number, names, report.describe(), then, None if is_wanted else group
    )
    await _call_hooks(handling, group, names)


async def _call_hooks(
    handling: Handling, group: ExceptionGroup[Exception], names: Sequence[str]
) -> None:
    """Call the error hooks with the failures of these handlers; log a hook that fails."""
    lease = handling.lease
    hooks = lease.dependencies.handler_table.error_hooks
    if not hooks:
        return
    context = handling.context(", ".join(names))
    for hook in hooks:
        arguments = (group, handling.event, context)[: hook.arguments]
        raised = await handling.calls.call("on_error", hook.function, hook.is_async, arguments)
        if raised is not None:
            _log.error("an on_error function failed", exc_info=raised, extra=lease.log_fields())
        del raised  # break a reference cycle: see calls.py
