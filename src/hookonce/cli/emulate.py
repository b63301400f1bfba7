"""``hookonce emulate``: the service itself, delivering to a receiver that runs."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

import click
import httpx2

from hookonce.emulator import FLOWS, Chaos, Disturbance, EmulatedService, WorkspaceData
from hookonce.emulator.rules import SUBSCRIBABLE

from .attempts import Tally, print_report
from .emulation import Emitter, Run, emit_all
from .loading import load_secrets, secrets_option
from .numbers import FiniteRange
from .output import Output, json_option, system_fault
from .statuses import CannotBegin, Status

# Beyond that, a few days of a run would lie behind the last year a date can have.
_HIGHEST_SPEED = 100_000


@click.command()
@click.option("--to", "url", metavar="URL", help="Where to deliver to.")
@click.option(
    "--events",
    default=20,
    show_default=True,
    type=click.IntRange(0),
    help="How many events to send; 0 for no end but Ctrl-C.",
)
@click.option(
    "--rate",
    default=5.0,
    show_default=True,
    type=FiniteRange(0, 10_000, min_open=True),
    help="How many events to send in a second.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    type=click.Choice(SUBSCRIBABLE),
    help="Send events of this type; may be repeated. By default all, as often as they would be.",
)
@click.option(
    "--flow",
    type=click.Choice(list(FLOWS)),
    help="Send what belongs together, again and again: the events of one post, for example.",
)
@click.option(
    "--speed",
    default=1.0,
    show_default=True,
    type=FiniteRange(0, _HIGHEST_SPEED, min_open=True),
    help="Let the schedule of retries run so many times as fast.",
)
@click.option(
    "--chaos",
    "chaos_rate",
    default=0.0,
    show_default=True,
    type=FiniteRange(0, 1),
    help="The probability that something goes wrong with an attempt.",
)
@click.option("--seed", type=int, help="What everything is drawn by; a new one by default.")
@click.option(
    "--rotate",
    is_flag=True,
    help="Let chaos rotate the secret too, and write each new one into --secrets-file, above the"
    " last one.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Serve the API too, on this loopback port (0 for a free one), until Ctrl-C.",
)
@click.option(
    "--data",
    "described",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Start from the workspace that this YAML or JSON file describes.",
)
@click.option(
    "--no-events",
    "is_quiet",
    is_flag=True,
    help="Make no events up: send what calls of the API lead to, and no more.",
)
@secrets_option
@json_option
def emulate(
    url: str | None,
    events: int,
    rate: float,
    types: tuple[str, ...],
    flow: str | None,
    speed: float,
    chaos_rate: float,
    seed: int | None,
    port: int | None,
    described: Path | None,
    secrets_file: Path | None,
    *,
    is_quiet: bool,
    rotate: bool,
    as_json: bool,
) -> None:
    """Play the service: deliver realistic events to a receiver, with retries, and report.

    Failed attempts are repeated by the documented schedule: nine attempts over about 23 hours. With
    --speed 1000 that takes 83 seconds; signatures bear the real time all the same, since receivers
    go by it. With --chaos answers are lost, connections break, copies, forgeries and replays
    arrive. The same seed draws the same events and the same chaos; only ids are always new, so that
    a receiver does not know them yet.

    With --port it is the whole service: channels, posts that go out, media, comments, webhooks. It
    prints a key, and three lines to try. --data starts from a workspace of your own.

    Unlike the real service, which delivers to public https addresses alone, it also delivers to
    http and loopback addresses, and with --port registers them.

    Ends when every delivery has succeeded or been given up and every scheduled post is out, or at
    Ctrl-C. Exits 0 only if all sent events were delivered, and nothing forged was accepted.

    For example: hookonce emulate --to http://127.0.0.1:8000/webhooks --chaos 0.3 --speed 1000
    """
    if types and flow:
        raise click.UsageError("--type chooses among single events; a --flow has its own")
    if url is None and port is None:
        raise click.UsageError("name a receiver with --to, or let one register with --port")
    if is_quiet and port is None:
        raise click.UsageError("--no-events leaves nothing to do but to serve the API; add --port")
    if rotate and not (secrets_file and chaos_rate and port is None):
        raise click.UsageError(
            "--rotate needs --chaos, and --secrets-file for the new secrets; it excludes --port"
        )
    output, tally = Output(as_json=as_json), Tally()
    kinds = frozenset(Disturbance) - (frozenset() if rotate else {Disturbance.ROTATION})
    chaos = Chaos(chaos_rate, kinds)
    run = Run(output, tally, secrets_file)
    data = None if described is None else _loaded(described)
    try:
        service = EmulatedService(
            url if url is None else _checked(url),
            # The newest, which the service signs with; an endpoint of the API gets one of its own.
            secret=None if url is None else load_secrets(secrets_file)[0],
            data=data,
            speed=speed,
            chaos=chaos,
            seed=seed,
            on_attempt=run.note,
            on_event=tally.count_event,
            on_rotation=run.put_secret if rotate else None,
        )
    except ValueError as error:
        raise CannotBegin(str(error)) from None
    count = 0 if is_quiet else events or sys.maxsize
    moments = chaos.moments(service.seed, count, rate)
    emitter = Emitter(service, moments, waits=port is not None)
    emitting = partial(emit_all, emitter, service.seed, flow=flow, types=types)
    many = f"{events} events" if events else "events without end"
    output.say(
        f"{'what the API leads to' if is_quiet else f'{many}, {rate:g} a second'}, to"
        f" {url or 'whoever registers'}; speed {speed:g}, chaos {chaos_rate:g}, seed {service.seed}"
    )
    key = data.keys[0].key.get_secret_value() if data and data.keys else None
    asyncio.run(run.go(service, emitting, port, key))
    waiting = len(service.deliveries(status="pending"))
    if not print_report(tally, waiting, service.endpoints, service.seed, output):
        raise SystemExit(Status.FOUND)


def _loaded(path: Path) -> WorkspaceData:
    """Return what a file describes, or end with what is wrong with it."""
    try:
        return WorkspaceData.load(path)
    except OSError as error:
        raise CannotBegin(system_fault(error)) from None
    except (ValueError, ImportError) as error:
        raise CannotBegin(f"{path} describes no workspace: {error}") from None


def _checked(url: str) -> str:
    """Return a URL, or end with what is wrong with it."""
    try:
        httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise CannotBegin(f"{url!r} is not a URL to deliver to: {error}") from None
    return url
