"""The lines of the demo: one for each delivery, and one for each run of a handler."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import TypeAlias

from hookonce import Refusal
from hookonce.emulator import Attempt

from ..output import Output, cut

Answer: TypeAlias = tuple[int, str]
"""Status and reason."""

_ID_WIDTH = 14

HEADING = (
    f"{'time':12}  {'type':22}  {'id':{_ID_WIDTH}}  {'try':3}  {'verdict':8}  {'outcome':22}"
    f"  {'status':6}  {'ms':>6}"
)


class Log:
    """Prints a line for each thing that happened, and counts those that were not right.

    Args:
        output: where to.

    Attributes:
        wrong: how many were not right.

    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self.wrong = 0

    def say(self, line: str) -> None:
        """Print what the next lines are about."""
        self._output.say(line, "dim")

    def delivery(self, attempt: Attempt, expected: Answer | None) -> None:
        """Print a delivery with its answer, and whether that is the expected one."""
        verdict = "refused" if attempt.reason in set(Refusal) else "genuine"
        status, reason = attempt.status, attempt.reason or (attempt.failure or "")
        wanted = "nothing" if expected is None else f"{int(expected[0])} {expected[1]}"
        is_bad = status is None or status >= HTTPStatus.BAD_REQUEST
        self._print(
            {
                "type": attempt.event_type,
                "id": attempt.event_id,
                "attempt": attempt.number,
                "verdict": verdict,
            },
            {"outcome": reason, "status": status},
            attempt.milliseconds,
            style="yellow" if is_bad else "green",
            expected="" if (status, reason) == expected else wanted,
        )

    def run(
        self,
        event_type: str,
        event_id: str,
        attempt: int,
        *,
        outcome: str,
        expected: str,
        milliseconds: float,
    ) -> None:
        """Print a run of a handler with what became of it."""
        self._print(
            {"type": event_type, "id": event_id, "attempt": attempt, "verdict": "handler"},
            {"outcome": outcome, "status": None},
            milliseconds,
            style="cyan" if outcome == "succeeded" else "yellow",
            expected="" if outcome == expected else expected or "no such run",
        )

    def fault(self, line: str) -> None:
        """Print what else is not right."""
        self.wrong += 1
        self._output.record({"fault": line, "right": False}, f"WRONG: {line}", "bold red")

    def _print(
        self,
        what: dict[str, str | int],
        result: dict[str, str | int | None],
        milliseconds: float,
        *,
        style: str,
        expected: str,
    ) -> None:
        now, right = datetime.now(UTC), not expected
        record = {
            "time": now.isoformat(timespec="milliseconds"),
            **what,
            **result,
            "milliseconds": round(milliseconds, 1),
            "right": right,
        }
        status = "" if result["status"] is None else result["status"]
        event_id = cut(str(what["id"]), _ID_WIDTH)
        line = (
            f"{now:%H:%M:%S}.{now.microsecond // 1000:03}  {what['type']:22}"
            f"  {event_id:{_ID_WIDTH}}  {what['attempt']:3}  {what['verdict']:8}"
            f"  {result['outcome']:22}  {status:>6}  {milliseconds:6.1f}"
        )
        if not right:
            self.wrong += 1
            line += f"  WRONG: expected {expected}"
        self._output.record(record, line, style if right else "bold red")
