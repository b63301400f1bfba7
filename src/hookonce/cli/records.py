"""What listings show of times and of attempts that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookonce.clock import utc_text
from hookonce.stores.values import Delivery, FailedAttempt

from .output import Output, one_line

__all__ = ["print_event", "time_text"]


def time_text(seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    return utc_text(seconds, "%Y-%m-%dT%H:%M:%SZ")


def print_event(
    record: Mapping[str, Any],
    delivery: Delivery,
    finished: frozenset[str],
    history: Sequence[FailedAttempt],
    output: Output,
) -> None:
    """Print one event with a line for each attempt that failed, and its body.

    Args:
        record: what a listing shows of it.
        delivery: what was delivered.
        finished: the handlers that have succeeded.
        history: the attempts that failed.
        output: where to.

    """
    body = delivery.body.decode("utf-8", "backslashreplace")
    shown = {**record, "finished": sorted(finished)}
    failed = [
        {"number": one.number, "ended_at": time_text(one.ended_at), "error": one.error}
        for one in history
    ]
    lines = [
        *(f"{name}: {one_line(value)}" for name, value in shown.items()),
        *(f"attempt {a['number']}: {a['ended_at']} {one_line(a['error'])}" for a in failed),
    ]
    output.record({**shown, "history": failed, "body": body}, "\n".join([*lines, "", body]))
