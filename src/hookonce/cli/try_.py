"""``hookonce try``: run a changed handler on real events before it is deployed."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import click

from hookonce import Receiver
from hookonce.errors import LedgerError
from hookonce.receiver.trials import Kept, Trial
from hookonce.simulation.calls import own_frames
from hookonce.stores.filters import EventFilter

from .ending import end_with_its_threads, terminated_as_interrupted
from .listing import filter_options
from .loading import factory_option, load_receivers, stand_in_secrets
from .output import Output, json_option, one_line
from .statuses import CannotBegin, Status
from .stores import run, use_existing

# Name at most this many events that have failed in the same way.
_EXAMPLES = 5


@click.command("try")
@click.argument("target", metavar="MODULE:RECEIVER")
@click.option("--handler", "name", required=True, metavar="NAME", help="The handler to run.")
@filter_options(handler=None)
@click.option(
    "--kept",
    type=click.Choice([str(kept) for kept in Kept]),
    callback=lambda _, __, kept: kept and Kept(kept),
    help="Only handled events, or only dead letters; by default both.",
)
@click.option("--limit", type=click.IntRange(1), help="At most this many events, oldest first.")
@click.option("--endpoint", help="Only events of this endpoint; by default of all its receivers.")
@click.option(
    "--for-real",
    is_flag=True,
    help="Run a handler that has no ledger. Nothing is rolled back: its effects happen.",
)
@factory_option
@json_option
def try_(
    target: str,
    name: str,
    wanted: EventFilter,
    kept: Kept | None,
    limit: int | None,
    endpoint: str | None,
    *,
    for_real: bool,
    factory: bool,
    as_json: bool,
) -> None:
    """Run a handler of MODULE:RECEIVER on real events, and roll each transaction back.

    Use it before you deploy a changed handler. It runs the handler on the dead letters and on the
    handled events that the store keeps (keep_handled), one after the other, within the handler's
    ledger. It prints what the handler raised, how many rows it would have changed, and how long it
    took. --since compares when an event was handled or became a dead letter.

    Only the ledger's transaction is rolled back: what the handler sends to other services is sent.
    A handler without a ledger needs --for-real.

    No event, no watermark and no record of the ledger changes.

    Exits 0 if the handler raised nothing; 1 if it did, or if it has committed; 2 if it cannot run.

    For example: hookonce try app:receiver --handler book --since 7d
    """
    with stand_in_secrets():
        targets = load_receivers(target, factory=factory)
    chosen = _chosen(targets, name, endpoint, for_real=for_real)
    for one in chosen:
        use_existing(one.store)
    output = Output(as_json=as_json)
    report = _Report(name, output, is_rolled_back=not for_real)

    async def try_all() -> None:
        with output.progress(f"trying {name}") as move:
            for receiver in chosen:
                async with (
                    receiver.opened(),
                    aclosing(
                        receiver.try_out(
                            name,
                            event_type=wanted.event_type,
                            since=wanted.since_unix,
                            where=wanted.where,
                            kept=kept,
                            for_real=for_real,
                        )
                    ) as trials,
                ):
                    async for trial in trials:
                        report.add(receiver.endpoint, trial)
                        if move is not None:
                            move(report.count, limit)
                        if trial.is_last or report.count == limit:
                            return

    with terminated_as_interrupted():
        try:
            run(try_all())
        except LedgerError as error:
            raise CannotBegin(one_line(error)) from None
        except (KeyboardInterrupt, CannotBegin):
            if report.count:
                report.show("stopped: ")
            raise
        finally:
            end_with_its_threads(
                "nothing is rolled back" if for_real else "their transactions are rolled back"
            )
    report.show()
    if report.has_faults:
        raise SystemExit(Status.FOUND)


def _chosen(
    targets: Sequence[Receiver], name: str, endpoint: str | None, *, for_real: bool
) -> list[Receiver]:
    """Return the receivers that have the handler, or exit with an error."""
    at_endpoint = [one for one in targets if endpoint in {None, one.endpoint}]
    if not at_endpoint:
        known = ", ".join(one.endpoint for one in targets)
        raise CannotBegin(f"there is no endpoint {endpoint!r}; there is {known}")
    found = [
        (receiver, handler)
        for receiver in at_endpoint
        for handler in receiver.handlers
        if handler.name == name
    ]
    if not found:
        names = sorted({handler.name for one in at_endpoint for handler in one.handlers})
        raise CannotBegin(f"there is no handler {name!r}; there is {', '.join(names) or 'none'}")
    if not for_real and any(handler.ledger is None for _, handler in found):
        raise CannotBegin(
            f"{name} runs without a ledger, so nothing can roll its effects back; register it with"
            " within=…, or let them happen with --for-real"
        )
    if for_real and any(handler.ledger is not None for _, handler in found):
        raise CannotBegin(
            f"{name} runs within a ledger, which rolls its trials back; leave out --for-real"
        )
    return [receiver for receiver, _ in found]


@dataclass(slots=True)
class _Fault:
    """Events for which a handler has failed in the same way.

    Attributes:
        text: the first error, in one line.
        lines: the lines of the user's own code in its traceback.
        event_ids: the events.
    """

    text: str
    lines: Sequence[str]
    event_ids: list[str] = field(default_factory=list)


class _Report:
    """Collects trials, and prints their results.

    It keeps no error: the traceback of an error holds the body of its event.
    """

    def __init__(self, handler: str, output: Output, *, is_rolled_back: bool) -> None:
        self._handler = handler
        self._output = output
        self._is_rolled_back = is_rolled_back
        self._faults: dict[object, _Fault] = {}
        self._committed: list[str] = []
        self._is_stopped = False
        self._rows: Counter[str] = Counter()
        self._is_counted = False
        self._seconds = 0.0
        self._slowest = (0.0, "")
        self._raised = 0
        self.count = 0

    @property
    def has_faults(self) -> bool:
        """Whether the handler has raised, or has committed a transaction itself."""
        return bool(self._raised or self._committed)

    def add(self, endpoint: str, trial: Trial) -> None:
        """Add a trial to the counts; with --json, print the trial."""
        self.count += 1
        self._seconds += trial.seconds
        self._slowest = max(self._slowest, (trial.seconds, trial.event_id))
        self._is_stopped |= trial.is_last
        if trial.has_committed:
            self._committed.append(trial.event_id)
        if trial.rows is not None:
            self._is_counted = True
            self._rows.update(trial.rows)
        text, lines = None, []
        if trial.error is not None:
            self._raised += 1
            text, lines = _error_line(trial.error), _own_lines(trial.error)
            # Compare errors without their messages, which may contain a value of the event.
            same = (type(trial.error), *lines) if lines else text
            fault = self._faults.setdefault(same, _Fault(text, lines))
            fault.event_ids.append(trial.event_id)
        record = {
            "id": trial.event_id,
            "endpoint": endpoint,
            "type": trial.event_type,
            "kept": str(trial.kept),
            "error": text,
            "lines": lines,
            "seconds": round(trial.seconds, 6),
            "rows": trial.rows,
            "has_committed": trial.has_committed,
        }
        self._output.record(record, None)

    def show(self, before: str = "") -> None:
        """Print the faults, and a summary that begins with ``before``."""
        say = self._output.say
        for fault in self._faults.values():
            events = _events(fault.event_ids)
            say(f"{self._handler} raised {fault.text} for {events}", "bold red")
            for line in fault.lines:
                say(f"  {line}")
        if self._committed:
            say(
                f"{self._handler} committed its transaction itself for {_events(self._committed)}:"
                " these changes are in the database; remove commit() from the handler",
                "bold red",
            )
        summary = {
            "tried": self.count,
            "raised": self._raised,
            "committed": len(self._committed),
            "seconds": round(self._seconds, 6),
            "rows": dict(self._rows) if self._is_counted else None,
        }
        if not self.count:
            line = f"{before}the store keeps no event for {self._handler}"
        else:
            line = (
                f"{before}{self._handler}: {self.count} tried, {self._raised} raised;"
                f" {_time(self._seconds)} in all, at most {_time(self._slowest[0])}"
                f" ({self._slowest[1]}); {self._effect}"
            )
        self._output.record(summary, line, "red" if self.has_faults else "green")

    @property
    def _effect(self) -> str:
        if self._is_stopped:
            return "stopped: its handler ends the transaction itself, so it cannot be rolled back"
        if not self._is_rolled_back:
            return "nothing was rolled back"
        if not self._is_counted:
            return "rolled back; the database does not count changed rows"
        if not self._rows:
            return "rolled back; no rows would have changed"
        rows = ", ".join(f"{table} {count}" for table, count in sorted(self._rows.items()))
        return f"rolled back; rows that would have changed: {rows}"


def _events(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _EXAMPLES} more" if len(ids) > _EXAMPLES else ""
    return ", ".join(ids[:_EXAMPLES]) + more


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _error_line(error: Exception) -> str:
    # Show only the first line: later lines may contain the parameters of a SQL statement.
    return one_line("".join(traceback.format_exception_only(error)).splitlines()[0])


def _own_lines(error: Exception) -> list[str]:
    return [
        f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in own_frames(error)
    ]
