"""The report of ``hookonce emulate``: a line for each attempt, and the counts at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

from hookonce import Event
from hookonce.emulator import DeliveryAttempt
from hookonce.outcome import Reason
from hookonce.resources import WebhookEndpoint
from hookonce.senders import publishing

from .output import Output, cut, one_line

_ID_WIDTH = 14
_OUTCOME_WIDTH = 24

HEADING = (
    f"{'time':12}  {'type':22}  {'id':{_ID_WIDTH}}  {'try':3}  {'outcome':{_OUTCOME_WIDTH}}"
    f"  {'status':6}  {'ms':>7}  chaos"
)

_SHOWN = {"id", "url", "status", "disabled_reason", "consecutive_failures"}

# The 2xx answers that mean: this event is now a dead letter.
_GIVEN_UP = {Reason.QUARANTINED, Reason.REJECTED, Reason.EXHAUSTED}


@dataclass(slots=True)
class EmulationCounts:
    """The counts of a run of ``hookonce emulate``.

    Attributes:
        deliveries: the number of deliveries; an event has one delivery for each subscribed
            endpoint.
        delivered: deliveries with an attempt that was answered 2xx.
        dead_letters: deliveries that the receiver answered 2xx and keeps as dead letters.
        duplicates: genuine copies beyond the schedule.
        retried: attempts beyond the first of a delivery.
        forged: requests with a wrong signature or a changed body.
        refused: forged requests that were answered 4xx.
        accepted: forged requests that were answered 2xx, which a receiver must never do.
    """

    sent: int = 0
    deliveries: int = 0
    delivered: int = 0
    dead_letters: int = 0
    duplicates: int = 0
    retried: int = 0
    forged: int = 0
    refused: int = 0
    accepted: int = 0

    def count_event(self, _: Event[Any], endpoints: int) -> None:
        self.sent += 1
        self.deliveries += endpoints

    def count(self, attempt: DeliveryAttempt) -> None:
        """Count an attempt; ignore the attempts of test events."""
        if attempt.event_type == publishing.rules.test_type:
            return
        if not attempt.is_genuine:
            self.forged += 1
            self.accepted += attempt.failure is None
            self.refused += attempt.status is not None and 400 <= attempt.status < 500
        elif attempt.is_extra:
            self.duplicates += 1
        if not attempt.is_extra:
            self.retried += attempt.number > 1
            self.delivered += attempt.failure is None
            self.dead_letters += attempt.failure is None and attempt.reason in _GIVEN_UP


def print_attempt(attempt: DeliveryAttempt, output: Output) -> None:
    at = attempt.at
    record = {
        "time": at.isoformat(timespec="milliseconds"),
        "endpoint": attempt.endpoint_id,
        "delivery": attempt.delivery_id,
        "type": attempt.event_type,
        "id": attempt.event_id,
        "attempt": attempt.number,
        "status": attempt.status,
        "reason": attempt.reason,
        "failure": attempt.failure,
        "milliseconds": round(attempt.milliseconds, 1),
        "chaos": attempt.disturbance,
        "genuine": attempt.is_genuine,
        "extra": attempt.is_extra,
    }
    outcome = one_line(attempt.reason or attempt.failure)
    line = (
        f"{at:%H:%M:%S}.{at.microsecond // 1000:03}  {one_line(attempt.event_type):22}"
        f"  {cut(one_line(attempt.event_id), _ID_WIDTH):{_ID_WIDTH}}  {attempt.number:3}"
        f"  {cut(outcome, _OUTCOME_WIDTH):{_OUTCOME_WIDTH}}  {attempt.status or '-':>6}"
        f"  {attempt.milliseconds:7.1f}  {(attempt.disturbance or '').replace('_', ' ')}"
    )
    output.record(record, line.rstrip(), _style(attempt))


def _style(attempt: DeliveryAttempt) -> str:
    if not attempt.is_genuine:
        return "bold red" if attempt.failure is None else "dim"
    if attempt.failure is None:
        return "green"
    server_error = attempt.status is None or attempt.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return "yellow" if server_error else "red"


def print_report(
    tally: EmulationCounts,
    waiting: int,
    endpoints: Sequence[WebhookEndpoint],
    seed: int,
    output: Output,
) -> bool:
    """Print the counts; return whether every event was delivered and every forgery refused.

    Args:
        waiting: the number of deliveries whose next attempt was still due.
        endpoints: their state at the end.
    """
    given_up = tally.deliveries - tally.delivered - waiting
    right = not (given_up or waiting or tally.accepted)
    dead = f", of which {tally.dead_letters} are dead letters" if tally.dead_letters else ""
    lines = [
        f"sent        {tally.sent} events",
        f"delivered   {tally.delivered}{dead}",
        f"duplicates  {tally.duplicates} extra copies",
        f"retried     {tally.retried} attempts beyond the first",
        f"given up    {given_up}",
        *([f"waiting     {waiting} for a later attempt"] if waiting else []),
        f"forged      {tally.forged}: {tally.refused} refused, {tally.accepted} accepted",
        *(f"endpoint    {_state(endpoint)}" for endpoint in endpoints),
        f"seed        {seed}",
    ]
    output.say()
    output.record(
        {
            **asdict(tally),
            "given_up": given_up,
            "waiting": waiting,
            "endpoints": [
                one.model_dump(mode="json", by_alias=False, include=_SHOWN) for one in endpoints
            ],
            "seed": seed,
            "right": right,
        },
        "\n".join(lines),
        "bold green" if right else "bold red",
    )
    return right


def _state(endpoint: WebhookEndpoint) -> str:
    reason = f" ({endpoint.disabled_reason})" if endpoint.disabled_reason else ""
    failures = f"{endpoint.consecutive_failures} consecutive failures"
    return f"{endpoint.id} {endpoint.status}{reason}, {failures}, {one_line(endpoint.url)}"
