"""The lines of the demo: one for each delivery, and one for each run of a handler."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus

from ..output import Output

__all__ = ["HEADING", "Log"]

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

    def delivery(
        self,
        event_type: str,
        event_id: str,
        attempt: int,
        *,
        is_genuine: bool,
        answer: tuple[int, str],
        expected: tuple[int, str],
        milliseconds: float,
    ) -> None:
        """Print a delivery with its answer: status and reason."""
        status, reason = answer
        verdict = "genuine" if is_genuine else "refused"
        self._print(
            {"type": event_type, "id": event_id, "attempt": attempt, "verdict": verdict},
            {"outcome": reason, "status": status},
            milliseconds,
            style="green" if status < HTTPStatus.BAD_REQUEST else "yellow",
            expected="" if answer == expected else f"{int(expected[0])} {expected[1]}",
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
        line = (
            f"{now:%H:%M:%S}.{now.microsecond // 1000:03}  {what['type']:22}"
            f"  {_short(str(what['id'])):{_ID_WIDTH}}  {what['attempt']:3}  {what['verdict']:8}"
            f"  {result['outcome']:22}  {status:>6}  {milliseconds:6.1f}"
        )
        if not right:
            self.wrong += 1
            line += f"  WRONG: expected {expected}"
        self._output.record(record, line, style if right else "bold red")


def _short(event_id: str) -> str:
    return event_id if len(event_id) <= _ID_WIDTH else f"{event_id[: _ID_WIDTH - 1]}…"
