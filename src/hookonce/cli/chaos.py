"""``hookonce chaos``: runs a receiver's own handlers under random faults, in virtual time.

With ``--url`` it disturbs a receiver that runs elsewhere; see ``chaos_url``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import reduce
from importlib import import_module
from pathlib import Path
from secrets import randbelow
from typing import Any, NamedTuple, cast

import click
from click.core import ParameterSource
from pydantic import JsonValue, TypeAdapter, ValidationError

from hookonce import Receiver
from hookonce.errors import LedgerError, StoreError
from hookonce.simulation import (
    Breach,
    Check,
    Mode,
    SimulationReport,
    Source,
    reduced,
    timeline,
    written_test,
)
from hookonce.simulation.api_port import ApiPort
from hookonce.simulation.simulation import DEFAULT_CHAOS, DEFAULT_EVENTS, simulate_in
from hookonce.simulation.virtual_loop import virtual_runner

from .chaos_url import UrlOptions, disturb, url_options
from .durations import Duration
from .ending import terminated_as_interrupted
from .findings import print_findings
from .loading import (
    NotFound,
    factory_option,
    import_named,
    load_receivers,
    stand_in_secrets,
    start_fault,
)
from .numbers import FiniteRange
from .output import Output, json_option
from .statuses import CannotBegin, Status
from .stores import check_store, chosen_url, store_file_option

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
    Breach.WRONG_EFFECT: "wrong effects",
}

_OF_BOTH = {"receiver", "events", "rate", "seed", "given", "as_json"}
"""The parameters that have a use both for MODULE:RECEIVER and for --url."""

_DATA = TypeAdapter(dict[str, dict[str, JsonValue]])


def _read_data(
    _context: click.Context, _option: click.Parameter, path: Path | None
) -> dict[str, dict[str, JsonValue]]:
    if path is None:
        return {}
    try:
        return _DATA.validate_json(path.read_bytes())
    except ValidationError:
        raise click.BadParameter(
            f'{path} is not of the form {{"user.created": {{"userId": "u_1"}}}}'
        ) from None


@click.command()
@click.argument("receiver", metavar="[MODULE:RECEIVER]", required=False)
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
@click.option(
    "--data",
    "given",
    metavar="FILE",
    callback=_read_data,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A JSON file with the data of events, by event type: your own event classes have no"
    " sample.",
)
@click.option(
    "--check",
    "check_name",
    metavar="MODULE:FUNCTION",
    help="Call this function with the emitted events at the end. It raises AssertionError if the"
    " effects of your handlers are wrong.",
)
@click.option(
    "--reduce-for",
    "reduce_seconds",
    default="60s",
    show_default=True,
    type=Duration(0),
    help="How long to look for the fewest events and faults that still fail; 0s does not look.",
)
@click.option(
    "--write-test",
    "test_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a test for pytest that replays the failure, and passes once the bug is fixed.",
)
@factory_option
@json_option
@url_options
@click.pass_context
def chaos(
    context: click.Context,
    /,
    receiver: str | None,
    events: int,
    rate: float,
    seed: int | None,
    store_url: str | None,
    store_file: Path | None,
    given: Mapping[str, Mapping[str, JsonValue]],
    *,
    with_inbox: bool | None,
    check_name: str | None,
    reduce_seconds: float,
    test_file: Path | None,
    factory: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run the handlers of MODULE:RECEIVER under chaos, and report lost and repeated events.

    An emulated service sends events to a copy of the receiver, by the rules of its sender: twice,
    late, out of order, over connections that break, and with forgeries between them. Handlers fail,
    become slow or ask for a retry, and the receiver restarts. Time is virtual, so that a day takes
    seconds.

    The handlers really run: point them at test systems. Their output is not shown. The command does
    not use the receiver's own store and secrets. The emulated service also answers the calls of its
    API: HOOKONCE_API_URL and HOOKONCE_API_KEY lead there.

    The same --seed repeats the events and the faults. Virtual time stands still while a store, a
    database or a handler waits for an answer, so the speed of this machine does not matter.

    Exits 0 only if no event was lost, given up or handled twice, no handler with latest_by ran
    after a newer event, no handlers with serial_by ran at the same time, no comment was answered
    twice, no forgery was accepted, and every answer came in time. An event that a handler rejects
    is a dead letter, not a fault.

    If the run fails, the command reduces it to the fewest events and faults that still fail, and
    shows what happened as a timeline. --check lets your own function judge the effects. With
    --factory, each restart makes a new receiver, so that what the old receiver kept in memory is
    lost.

    With --url the receiver may be any program in any language: it runs in real time, and posts the
    webhook-id to HOOKONCE_EFFECTS_URL where its handler has its effect. See: hookonce guide chaos

    For example: hookonce chaos app.hooks:receiver --events 2000 --seed 7
    """
    of_url = UrlOptions(**options)
    _check_options(context, receiver, of_url)
    if receiver is None:
        disturb(
            of_url,
            events=events,
            rate=rate,
            seed=randbelow(2**31) if seed is None else seed,
            data=given,
            output=Output(as_json=as_json),
            as_json=as_json,
        )
        return
    store_url = chosen_url(store_url, store_file)
    if store_url is not None:
        check_store(store_url)  # check first: a simulation would fail only after a long wait
    output = Output(as_json=as_json)
    seed = randbelow(2**31) if seed is None else seed
    mode = {None: Mode.AS_IT_IS, True: Mode.INBOX, False: Mode.INLINE}[with_inbox]
    # Keep injected faults out of the log.
    logging.getLogger("hookonce").setLevel(logging.CRITICAL + 1)
    # Keep log lines of libraries out of the output.
    logging.getLogger().addHandler(logging.NullHandler())
    if test_file is not None and test_file.exists():
        raise CannotBegin(f"{test_file} exists already; choose another file for --write-test")
    passed = True
    # Open the port first, because the module may read the address of the API from the environment
    # when it is imported.
    with ApiPort() as port, virtual_runner() as runner, terminated_as_interrupted():
        with stand_in_secrets():
            targets = _targets(receiver, factory=factory)
            check = None if check_name is None else _check(check_name)
            if test_file is not None:
                _check_name(receiver, factory=factory)
        for target in targets:
            done = _Done(events)
            try:
                with output.progress("chaos") as done.move, _quiet():
                    report = simulate_in(
                        runner,
                        port,
                        target.source,
                        events=events,
                        chaos=rate,
                        seed=seed,
                        store=store_url,
                        mode=mode,
                        data=given,
                        check=check,
                        progress=done,
                    )
            except (ValueError, ImportError, StoreError, LedgerError) as error:
                raise CannotBegin(str(error)) from error
            except KeyboardInterrupt:
                _show_stopped(done, seed, output)
                raise
            if len(targets) > 1:
                output.say(f"endpoint {target.endpoint}", "bold")
            smallest = None
            if not report.passed and reduce_seconds:
                try:
                    smallest = _reduced(report, reduce_seconds, output)
                except KeyboardInterrupt:
                    _show(report, None, target.endpoint, output, as_json=as_json)
                    raise
            _show(report, smallest, target.endpoint, output, as_json=as_json)
            if test_file is not None and not report.passed:
                text = written_test(
                    report if smallest is None else smallest,
                    receiver,
                    check=check_name,
                    store=store_url,
                    mode=mode,
                    needs_secrets=True,
                )
                test_file.write_text(text, "utf-8")
                output.say(f"wrote {test_file}, which passes once the bug is fixed")
            passed = passed and report.passed
    if not passed:
        raise SystemExit(Status.FOUND)


def _check_options(context: click.Context, receiver: str | None, of_url: UrlOptions) -> None:
    """Exit with a usage error if an option does not apply to the target: a receiver or --url."""
    if (receiver is None) == (of_url.url is None):
        raise click.UsageError("name either MODULE:RECEIVER or --url")
    names = {field.name for field in fields(UrlOptions)}
    for option in context.command.params:
        name = option.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in _OF_BOTH and (name in names) is (receiver is not None):
            needed = "--url" if name in names else "MODULE:RECEIVER"
            raise click.UsageError(f"{option.opts[0]} has no use here: it is for {needed}")


class _Target(NamedTuple):
    """A simulated receiver, or a function that makes it, and the receiver's endpoint."""

    source: Source
    endpoint: str


def _targets(name: str, *, factory: bool) -> list[_Target]:
    """Return the receivers to simulate; with --factory, functions that make new receivers."""
    receivers = load_receivers(name, factory=factory)
    if not factory:
        return [_Target(one, one.endpoint) for one in receivers]

    def maker(number: int) -> Callable[[], Receiver]:
        def make() -> Receiver:
            with stand_in_secrets():
                return load_receivers(name, factory=True)[number]

        return make

    return [_Target(maker(number), one.endpoint) for number, one in enumerate(receivers)]


def _check(name: str) -> Check:
    """Return the function that checks the effects, or exit with an error."""
    try:
        check = import_named(name, factory=False)
    except NotFound as error:
        raise CannotBegin(str(error)) from None
    except Exception as error:
        raise CannotBegin(f"{name} cannot be imported: {start_fault(error)}") from error
    if not callable(check):
        raise CannotBegin(f"{name} is not a function, so it cannot check the effects")
    return cast("Check", check)


def _check_name(name: str, *, factory: bool) -> None:
    """Exit with an error unless a test can import the receiver by its name."""
    module, _, path = name.partition(":")
    try:
        named = reduce(getattr, path.split("."), import_module(module))
    except AttributeError:
        named = None
    made = named() if factory and callable(named) else named
    if not isinstance(made, Receiver):
        raise CannotBegin(
            f"--write-test needs one receiver that a test can import, and {name} is none; name it"
            " as MODULE:RECEIVER"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the output of handlers during the block."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _reduced(report: SimulationReport, seconds: float, output: Output) -> SimulationReport | None:
    """Return the report of the smallest run that still fails; None if no smaller run fails."""
    began = time.monotonic()
    with output.progress("reducing, seconds") as move, _quiet():

        def moved(*_: int) -> None:
            if move is not None:
                move(round(time.monotonic() - began), round(seconds))

        smallest = reduced(report, seconds=seconds, progress=moved)
    if smallest is report:
        output.say(
            "no other run failed in the same way, so nothing could be left out; handlers may keep"
            " state between the runs (see --factory), or --reduce-for is too short",
            "yellow",
        )
        return None
    if time.monotonic() - began >= seconds:
        output.say("a longer --reduce-for may leave out more", "yellow")
    return smallest


class _Done:
    """Counts the finished events of a simulation, and moves its progress bar."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.count = 0
        self.move: Callable[[int, int | None], None] | None = None

    def __call__(self, count: int, events: int) -> None:
        self.count = count
        if self.move is not None:
            self.move(count, events)


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


def _size_text(report: SimulationReport) -> str:
    """Return the number of events and faults of a scenario."""
    events, faults = len(report.scenario.events), len(report.scenario.faults)
    return (
        f"{events} event{'' if events == 1 else 's'} and {faults} fault{'' if faults == 1 else 's'}"
    )


def _show(
    report: SimulationReport,
    smallest: SimulationReport | None,
    endpoint: str,
    output: Output,
    *,
    as_json: bool,
) -> None:
    print_findings(report.findings, output, as_json=as_json, with_stories=smallest is None)
    if smallest is not None:
        output.say(f"\nthe smallest run that still fails: {_size_text(smallest)}\n", "bold")
        output.say(f"{timeline(smallest)}\n")
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
            **({} if smallest is None else {"smallest": _record(smallest)}),
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
        + ", ".join(
            f"{count} {_COUNTED[breach]}"
            for breach, count in breaches.items()
            if count or breach is not Breach.WRONG_EFFECT
        )
        + f"; the same faults again: --seed {report.seed}",
        "bold green" if report.passed else "bold red",
    )


def _record(smallest: SimulationReport) -> dict[str, object]:
    """Return a record for ``--json`` of the smallest run that still fails."""
    return {
        "events": len(smallest.scenario.events),
        "faults": len(smallest.scenario.faults),
        "timeline": timeline(smallest).splitlines(),
    }
