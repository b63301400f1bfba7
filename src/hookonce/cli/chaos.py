"""``hookonce chaos``: runs a receiver's own handlers under random faults, in virtual time."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from secrets import randbelow

import click

from hookonce.errors import LedgerError, StoreError
from hookonce.simulation import Breach, Mode, SimulationReport
from hookonce.simulation.api_port import ApiPort
from hookonce.simulation.simulation import DEFAULT_CHAOS, DEFAULT_EVENTS, simulate_in
from hookonce.simulation.virtual_loop import virtual_runner

from .ending import terminated_as_interrupted
from .loading import factory_option, load_receivers, stand_in_secrets
from .numbers import FiniteRange
from .output import Output, json_option
from .statuses import CannotBegin, Status
from .stores import check_store, chosen_url, store_file_option

# How many findings are printed with their history, and how many are printed at all. JSON contains
# all findings.
_WITH_STORY, _LISTED = 3, 20

_COUNTED = {
    Breach.LOST: "lost",
    Breach.GIVEN_UP: "given up",
    Breach.TWICE: "handled twice",
    Breach.STALE: "handled after a newer event",
    Breach.OVERLAP: "handled at the same time as another event of their key",
    Breach.LATE: "answered late",
    Breach.FORGED: "forgeries accepted",
    Breach.REPLIED_TWICE: "comments answered twice",
    Breach.PUNISHED: "answers that can disable the endpoint",
}


@click.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
@click.option(
    "--events",
    default=DEFAULT_EVENTS,
    show_default=True,
    type=click.IntRange(1),
    help="The number of events.",
)
@click.option(
    "--chaos",
    "rate",
    default=DEFAULT_CHAOS,
    show_default=True,
    type=FiniteRange(0, 1),
    help="The probability of a fault, at each request and at each call of a handler.",
)
@click.option("--seed", type=int, help="Repeat the faults of the run with this seed.")
@click.option(
    "--store",
    "store_url",
    metavar="STORE_URL",
    help="Use a new endpoint in this store. By default the command uses SQLite in a temporary"
    " folder.",
)
@store_file_option
@click.option(
    "--inbox/--inline",
    "with_inbox",
    default=None,
    help="Handle events from an inbox, or inside the request. By default as the receiver does.",
)
@factory_option
@json_option
def chaos(
    receiver: str,
    events: int,
    rate: float,
    seed: int | None,
    store_url: str | None,
    store_file: Path | None,
    *,
    with_inbox: bool | None,
    factory: bool,
    as_json: bool,
) -> None:
    """Run the handlers of MODULE:RECEIVER under chaos, and report lost and repeated events.

    An emulated service sends events to a copy of the receiver: twice, late, out of order, over
    connections that break, and with forgeries between them. Handlers fail, become slow or ask for a
    retry, and the receiver restarts. Time is virtual, so that a day takes seconds.

    The handlers really run: point them at test systems. Their output is not shown. The command does
    not use the receiver's own store and secrets. The emulated service also answers the calls of its
    API: HOOKONCE_API_URL and HOOKONCE_API_KEY lead there.

    The same --seed repeats the events and the faults. Virtual time stands still while a store, a
    database or a handler waits for an answer, so the speed of this machine does not matter.

    Exits 0 only if no event was lost, given up or handled twice, no handler with latest_by ran
    after a newer event, no handlers with serial_by ran at the same time, no comment was answered
    twice, no forgery was accepted, and every answer came in time. An event that a handler rejects
    is a dead letter, not a fault.

    For example: hookonce chaos app.hooks:receiver --events 2000 --seed 7
    """
    store_url = chosen_url(store_url, store_file)
    if store_url is not None:
        check_store(store_url)  # a simulation would wait far longer for an unreachable store
    output = Output(as_json=as_json)
    seed = randbelow(2**31) if seed is None else seed
    mode = {None: Mode.AS_IT_IS, True: Mode.INBOX, False: Mode.INLINE}[with_inbox]
    # Keep injected faults out of the log.
    logging.getLogger("hookonce").setLevel(logging.CRITICAL + 1)
    # Keep log lines of libraries out of the output.
    logging.getLogger().addHandler(logging.NullHandler())
    passed = True
    # Open the port first, because the module may read the address of the API from the environment
    # when it is imported.
    with (
        ApiPort() as port,
        virtual_runner() as runner,
        terminated_as_interrupted(),
        output.progress("chaos") as moved,
    ):
        with stand_in_secrets():
            targets = load_receivers(receiver, factory=factory)
        for target in targets:
            done = _Done(events, moved)
            try:
                with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                    report = simulate_in(
                        runner,
                        port,
                        target,
                        events=events,
                        chaos=rate,
                        seed=seed,
                        store=store_url,
                        mode=mode,
                        progress=done,
                    )
            except (ValueError, ImportError, StoreError, LedgerError) as error:
                raise CannotBegin(str(error)) from error
            except KeyboardInterrupt:
                _show_stopped(done, seed, output)
                raise
            if len(targets) > 1:
                output.say(f"endpoint {target.endpoint}", "bold")
            _show(report, target.endpoint, output, as_json=as_json)
            passed = passed and report.passed
    if not passed:
        raise SystemExit(Status.FOUND)


class _Done:
    """Counts the finished events of a simulation, and moves its progress bar."""

    def __init__(self, events: int, move: Callable[[int, int | None], None] | None) -> None:
        self.events = events
        self.count = 0
        self._move = move

    def __call__(self, count: int, events: int) -> None:
        self.count = count
        if self._move is not None:
            self._move(count, events)


def _show_stopped(done: _Done, seed: int, output: Output) -> None:
    """Report the progress and the seed of an interrupted run."""
    output.record(
        {"stopped": True, "seed": seed, "events": done.count, "of_events": done.events},
        f"stopped after {done.count} of {done.events} events, before they could be judged; the same"
        f" faults again: --seed {seed}",
        "yellow",
    )


def _api_text(report: SimulationReport) -> str:
    if not report.api_requests:
        return ""
    return f" {report.api_requests} requests to the API, {report.replies} replies to comments;"


def _show(report: SimulationReport, endpoint: str, output: Output, *, as_json: bool) -> None:
    for number, finding in enumerate(report.findings):
        record = {
            "breach": finding.breach,
            "id": finding.event_id,
            "type": finding.event_type,
            "handler": finding.handler,
            "story": finding.story,
        }
        by = f" by {finding.handler}" if finding.handler else ""
        line = f"{finding.breach}: {finding.event_type} {finding.event_id}{by}"
        if number < _WITH_STORY:
            line = "\n  ".join((line, *finding.story))
        if as_json or number < _LISTED:
            output.record(record, line, "red")
    if len(report.findings) > _LISTED:
        output.say(f"and {len(report.findings) - _LISTED} more", "red")
    dead_letters = sum(report.dead_letters.values())
    why = ", ".join(f"{count} {reason}" for reason, count in report.dead_letters.items())
    breaches = {breach: report.count(breach) for breach in Breach}
    output.record(
        {
            "endpoint": endpoint,
            "seed": report.seed,
            "events": report.events,
            "handled": report.handled,
            "stale": report.stale,
            "ignored": report.ignored,
            "dead_letters": report.dead_letters,
            "waiting": report.waiting,
            "requests": report.requests,
            "disturbed": report.disturbed,
            "handler_calls": report.calls,
            "injected_faults": report.injected,
            "api_requests": report.api_requests,
            "replies": report.replies,
            "restarts": report.restarts,
            "virtual_hours": round(report.hours, 1),
            **{str(breach): count for breach, count in breaches.items()},
            "passed": report.passed,
        },
        f"{report.events} events: {report.handled} handled,"
        f"{f' {report.stale} skipped for a newer event,' if report.stale else ''}"
        f" {report.ignored} without a handler,"
        f" {dead_letters} dead letters{f' ({why})' if why else ''}"
        f"{f', {report.waiting} still waiting in the inbox' if report.waiting else ''}\n"
        f"{report.requests} requests, {report.disturbed} of them disturbed; {report.calls} calls"
        f" of handlers, {report.injected} of them with an injected fault;"
        f"{_api_text(report)} {report.restarts}"
        f" restart{'' if report.restarts == 1 else 's'} in"
        f" {report.hours:.1f} virtual hours\n"
        + ", ".join(f"{count} {_COUNTED[breach]}" for breach, count in breaches.items())
        + f"; the same faults again: --seed {report.seed}",
        "bold green" if report.passed else "bold red",
    )
