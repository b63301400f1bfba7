"""``hookonce chaos --url``: disturbs a running receiver in any language, and judges its effects."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from random import Random
from secrets import token_hex
from urllib.parse import urlsplit

import click
from pydantic import JsonValue

from hookonce.clock import system_clock
from hookonce.emulator import Chaos, DeliveryAttempt, Disturbance, EmulatedService
from hookonce.routing.table import HandlerTable
from hookonce.samples.events import make_event
from hookonce.senders import Sender
from hookonce.simulation import Breach, Scenario, Violation
from hookonce.simulation.drawing import paced_scenario, types_of
from hookonce.simulation.effects_port import EFFECT, EffectsPort
from hookonce.simulation.report import Emitted, violations

from .durations import Duration
from .ending import terminated_as_interrupted
from .findings import print_findings
from .loading import load_signing_secret, secrets_option
from .numbers import FiniteRange
from .output import Output, together
from .receiver_process import ReceiverProcess, port_becomes
from .senders import sender_option
from .serve import serving
from .statuses import CannotBegin, Status

_EFFECTS_PORT = 8900

_PER_SECOND = 20.0
_QUIET_SECONDS = 1.0

_WAIT_SECONDS = 10.0

_EVENTS_PER_KILL, _MOST_KILLS = 100, 3

# The endpoint's secret stays the same, because a receiver cannot learn a new one from outside.
_KINDS = frozenset(Disturbance) - {Disturbance.ROTATION}

_ROWS = {
    Breach.LOST: "lost",
    Breach.TWICE: "done twice",
    Breach.LATE: "answered late",
    Breach.FORGED: "wrongly accepted",
    Breach.PUNISHED: "answers that can disable the endpoint",
}

url_options = together(
    click.option(
        "--url",
        help="Disturb the receiver that runs at this URL, in any language, instead of"
        " MODULE:RECEIVER. The options below are for it.",
    ),
    click.option(
        "--run",
        "command",
        metavar="COMMAND",
        help="Start the receiver with this shell command, and kill and restart it while it handles"
        " events.",
    ),
    click.option(
        "--effects-port",
        type=click.IntRange(1, 65535),
        help=f"Count effects on this loopback port; by default {_EFFECTS_PORT}, or a free port with"
        " --run.",
    ),
    click.option(
        "--type",
        "types",
        multiple=True,
        metavar="TYPE",
        help="Send events of this type; may be repeated. By default all types of the sender.",
    ),
    click.option(
        "--speed",
        default=1000.0,
        show_default=True,
        type=FiniteRange(0, 100_000, min_open=True),
        help="Shorten the waits of the sender this many times, such as those for retries.",
    ),
    click.option(
        "--settle",
        "settle_seconds",
        default="20s",
        show_default=True,
        type=Duration(0),
        help="How long to wait for missing effects at the end, for receivers with a queue.",
    ),
    click.option(
        "--time-limit",
        "limit_seconds",
        default="5m",
        show_default=True,
        type=Duration(1),
        help="Stop after this time, and count the unfinished events.",
    ),
    click.option(
        "--i-own-this-receiver",
        "is_owned",
        is_flag=True,
        help="Allow a URL on another machine.",
    ),
    sender_option,
    secrets_option,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlOptions:
    """The options for a receiver at a URL."""

    url: str | None
    command: str | None
    effects_port: int | None
    types: tuple[str, ...]
    speed: float
    settle_seconds: float
    limit_seconds: float
    is_owned: bool
    sender: Sender
    secrets_file: Path | None


def disturb(
    options: UrlOptions,
    *,
    events: int,
    rate: float,
    seed: int,
    data: Mapping[str, Mapping[str, JsonValue]],
    output: Output,
    as_json: bool,
) -> None:
    """Disturb the receiver at the URL and print the report; exit with 1 if it broke a rule."""
    url = _checked(options.url or "", is_owned=options.is_owned)
    chaos = Chaos(rate, _KINDS)
    known = types_of(options.sender, HandlerTable(sender=options.sender), data)
    if options.sender.event_classes and (unknown := [*{*options.types} - {*known}]):
        raise click.UsageError(
            f"{unknown[0]!r} is no event type of the sender {options.sender.name!r}; there are"
            f" {', '.join(known)}"
        )
    types = options.types or known
    if not types:
        raise click.UsageError(
            f"the sender {options.sender.name!r} names no event types; add --type, and --data if"
            " your receiver reads the data"
        )
    scenario = paced_scenario(
        events,
        chaos,
        seed,
        per_second=_PER_SECOND,
        types=types,
        data=data,
        clock=system_clock,
    )
    for event in {event.type: event for event in scenario.events}.values():
        try:
            make_event(event.type, data=event.data, sender=options.sender)
        except (TypeError, ValueError) as error:
            raise CannotBegin(f"no {event.type} can be made, see --data: {error}") from None
    # Receivers remember ids, so another run with this seed needs other ids.
    run, width = token_hex(3), len(str(events))
    scenario = scenario.renamed(lambda number: f"{run}_{number:0{width}}")
    started = time.monotonic()
    trial = _Trial(options, url, scenario, chaos, load_signing_secret(options.secrets_file))
    with output.progress("chaos") as move, terminated_as_interrupted():
        try:
            asyncio.run(trial.run(move))
        except KeyboardInterrupt:
            output.record(
                {"stopped": True, "seed": seed, "events": events},
                "stopped before the receiver could be judged; the same faults again:"
                f" --seed {seed}",
                "yellow",
            )
            raise
    _show(trial, seed, time.monotonic() - started, output, as_json=as_json)


class _Trial:
    """A run of the emulated service against one receiver.

    Attributes:
        attempts: every request.
        unfinished: the ids of events that the time limit left without a result.
    """

    def __init__(
        self, options: UrlOptions, url: str, scenario: Scenario, chaos: Chaos, secret: str
    ) -> None:
        self._options = options
        self._url = url
        self._scenario = scenario
        self._process = ReceiverProcess(options.command, url) if options.command else None
        self._limit: asyncio.Timeout | None = None
        self._fault: CannotBegin | None = None
        self._accepted: set[str] = set()
        self._move: Callable[[int, int | None], None] | None = None
        self._service = EmulatedService(
            url,
            secret=secret,
            sender=options.sender,
            speed=options.speed,
            chaos=chaos,
            seed=scenario.seed,
            on_attempt=self._note,
        )
        numbers = {event.id: number for number, event in enumerate(scenario.events, 1)}
        kills = min(_MOST_KILLS, -(-len(numbers) // _EVENTS_PER_KILL)) if chaos.rate else 0
        random = Random(f"{scenario.seed}:kills")  # noqa: S311 - no security depends on this choice
        self.effects = EffectsPort(
            seed=scenario.seed,
            rate=chaos.rate,
            patience_seconds=options.sender.rules.patience_seconds,
            numbers=numbers,
            restart=self._restart if self._process else None,
            kills=random.sample(range(1, len(numbers) + 1), kills) if self._process else (),
        )
        self.attempts: list[DeliveryAttempt] = []
        self.unfinished: set[str] = set()

    @property
    def emitted(self) -> list[Emitted]:
        """The emitted events, each with the effect that the receiver must produce."""
        return [Emitted(event.id, event.type, (EFFECT,)) for event in self._scenario.events]

    def findings(self) -> Sequence[Violation]:
        """Return the rules that the receiver broke."""
        return violations(
            self.emitted,
            self.attempts,
            self.effects.log,
            {},
            self.unfinished,
            sender=self._options.sender,
        )

    async def run(self, move: Callable[[int, int | None], None] | None) -> None:
        """Emit every event, and wait for the end of all deliveries and effects."""
        self._move = move
        async with AsyncExitStack() as stack:
            port = self._options.effects_port or (0 if self._process else _EFFECTS_PORT)
            effects_url = await stack.enter_async_context(serving(self.effects, port))
            if self._process is not None:
                await stack.enter_async_context(self._process.running(effects_url))
            elif not await port_becomes(self._url, is_open=True, seconds=_WAIT_SECONDS):
                raise CannotBegin(
                    f"no server answers at {self._url}; start the receiver, or --run it"
                )
            await stack.enter_async_context(self._service)
            try:
                async with asyncio.timeout(self._options.limit_seconds) as self._limit:
                    await self._emit()
                    await self._service.settle()
                    await self._effects_settled()
            except TimeoutError:
                if self._fault is not None:
                    raise self._fault from None
                pending = {one.event_id for one in self._service.deliveries(status="pending")}
                begun = {one.event_id for one in self.attempts}
                ids = {event.id for event in self._scenario.events}
                self.unfinished = pending | (ids - begun)

    async def _emit(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for event in self._scenario.events:
            await asyncio.sleep(started + event.at - loop.time())
            await self._service.emit(event.type, data=event.data, event_id=event.id)

    async def _effects_settled(self) -> None:
        """Wait until no effect runs; before the time limit, also until no effect is missing."""
        log, loop = self.effects.log, asyncio.get_running_loop()
        until = loop.time() + self._options.settle_seconds
        while True:
            calls = len(log.calls)
            await asyncio.sleep(_QUIET_SECONDS)
            is_quiet = not log.in_progress and calls == len(log.calls)
            done = {event_id for event_id, _ in log.successes()}
            is_missing = any(event.id not in done for event in self._scenario.events)
            if is_quiet and (not is_missing or loop.time() >= until):
                return

    async def _restart(self) -> None:
        """Kill the receiver and start it again; end the run if it does not start."""
        if self._process is None or self._limit is None:
            return
        try:
            await self._process.kill()
            await self._process.start()
        except CannotBegin as error:
            self._fault = error
            self._limit.reschedule(asyncio.get_running_loop().time())

    def _note(self, attempt: DeliveryAttempt) -> None:
        self.attempts.append(attempt)
        if attempt.failure is None and not attempt.is_extra:
            self._accepted.add(attempt.event_id)
        if self._move is not None:
            self._move(len(self._accepted), len(self._scenario.events))


def _checked(url: str, *, is_owned: bool) -> str:
    """Return the URL, or exit with an error if the command must not disturb its server."""
    if "@" in url:  # no password, because messages show the URL
        raise CannotBegin(
            "the URL of a receiver has no user and no password; leave out what precedes @"
        )
    try:
        parts = urlsplit(url)
        found = {info[4][0] for info in socket.getaddrinfo(parts.hostname, parts.port)}
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except (OSError, ValueError):
        is_url, found = False, set()
    if not is_url:
        raise CannotBegin(
            f"{url!r} names no host to disturb; write it like http://127.0.0.1:8000/webhooks"
        )
    if not is_owned and not all(ip_address(address).is_loopback for address in found):
        raise CannotBegin(
            f"{url!r} is not on this machine; the command sends forgeries and floods, so add"
            " --i-own-this-receiver if you may do that"
        )
    return url


def _show(trial: _Trial, seed: int, seconds: float, output: Output, *, as_json: bool) -> None:
    """Print the findings and the table; exit with 1 if there is a finding."""
    findings = trial.findings()
    print_findings(findings, output, as_json=as_json, with_stories=True)
    counts = Counter(finding.breach for finding in findings)
    calls = trial.effects.log.calls
    events, restarts = len(trial.emitted), trial.effects.restarts
    disturbed = sum(one.disturbance is not None for one in trial.attempts)
    injected = sum(call.fault is not None for call in calls)
    passed = not (findings or trial.unfinished)
    rows = {
        **{_ROWS[breach]: counts[breach] for breach in _ROWS},
        "unfinished": len(trial.unfinished),
    }
    output.record(
        {
            "seed": seed,
            "events": events,
            "requests": len(trial.attempts),
            "disturbed": disturbed,
            "effect_calls": len(calls),
            "injected_faults": injected,
            "restarts": restarts,
            "seconds": round(seconds, 1),
            **{str(breach): counts[breach] for breach in _ROWS},
            "unfinished": len(trial.unfinished),
            "passed": passed,
        },
        "\n".join(f"{name:38}{count:6}" for name, count in rows.items())
        + f"\n\n{events} events, {len(trial.attempts)} requests, {disturbed} of them disturbed;"
        f" {len(calls)} calls of the effect, {injected} of them with an injected fault; {restarts}"
        f" kill{'' if restarts == 1 else 's'}; {seconds:.1f} s; the same faults again:"
        f" --seed {seed}",
        "bold green" if passed else "bold red",
    )
    if not passed:
        raise SystemExit(Status.FOUND)
