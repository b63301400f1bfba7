"""``hookonce emulate``: plays the service, and delivers to a running receiver."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from pathlib import Path

import click
import httpx2

from hookonce.emulator import FLOWS, Chaos, Disturbance, EmulatedService, WorkspaceData
from hookonce.emulator.chaos import moments_of
from hookonce.emulator.rules import SUBSCRIBABLE
from hookonce.verification.providers import SECRETS_VARIABLE

from .attempts import EmulationCounts, print_report
from .emulation import Emulation, PacedEmitter, emit_all
from .loading import load_signing_secret, secrets_option
from .numbers import FiniteRange
from .output import Output, json_option, system_fault
from .statuses import CannotBegin, Status

# At a higher speed, the delivery log would keep its entries for less than twelve seconds.
_HIGHEST_SPEED = 100_000


@click.command()
@click.option("--to", "url", metavar="URL", help="The URL to deliver to.")
@click.option(
    "--events",
    default=20,
    show_default=True,
    type=click.IntRange(0),
    help="The number of events; 0 sends events until Ctrl-C.",
)
@click.option(
    "--rate",
    default=5.0,
    show_default=True,
    type=FiniteRange(0, 10_000, min_open=True),
    help="The number of events per second.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    type=click.Choice(SUBSCRIBABLE),
    help="Send events of this type; may be repeated. By default all types, at realistic rates.",
)
@click.option(
    "--flow",
    type=click.Choice(list(FLOWS)),
    help="Repeat a sequence of related events, such as those of one post.",
)
@click.option(
    "--speed",
    default=1.0,
    show_default=True,
    type=FiniteRange(0, _HIGHEST_SPEED, min_open=True),
    help="Shorten every wait of the service this many times, such as those for retries.",
)
@click.option(
    "--chaos",
    "chaos_rate",
    default=0.0,
    show_default=True,
    type=FiniteRange(0, 1),
    help="The probability of a fault at an attempt.",
)
@click.option(
    "--seed",
    type=int,
    help="Repeat the events and faults of the run with this seed. By default a new seed.",
)
@click.option(
    "--rotate",
    is_flag=True,
    help="Let chaos rotate the secret too, and write each new secret into --secrets-file, above the"
    " old one.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Also serve the API on this loopback port until Ctrl-C; 0 picks a free port.",
)
@click.option(
    "--data",
    "described",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Start with the workspace that this YAML or JSON file describes.",
)
@click.option(
    "--no-events",
    "is_quiet",
    is_flag=True,
    help="Generate no events: send only those that calls of the API cause.",
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
    """Play the service: deliver realistic events to a receiver, retry, and report.

    Failed attempts follow the documented schedule: nine attempts over about 23 hours. With --speed
    1000 this takes 83 seconds, and all times are still real, because receivers check them. With
    --chaos, answers get lost, connections break, and duplicates, forgeries and replays arrive. The
    same seed gives the same events and the same chaos; only ids are always new to the receiver.

    With --port the command emulates the whole service: channels, posts, media, comments, webhooks.
    It prints an API key, the id and URL of each webhook, three commands to try, and the settings
    for hookonce endpoints and reconcile. --data starts with your own workspace.

    The real service delivers only to public https addresses; this command also accepts http and
    loopback addresses.

    The command ends at Ctrl-C, or when every delivery has succeeded or failed for good and every
    scheduled post is published. It exits 0 only if all events were delivered and no forgery was
    accepted.

    For example: hookonce emulate --to http://127.0.0.1:8000/webhooks --chaos 0.3 --speed 1000
    """
    if types and flow:
        raise click.UsageError("leave out --type or --flow: a flow has its own types")
    if url is None and port is None:
        raise click.UsageError("name a receiver with --to, or let receivers register with --port")
    if is_quiet and port is None:
        raise click.UsageError("--no-events only serves the API; add --port")
    if rotate and not (secrets_file and chaos_rate and port is None):
        raise click.UsageError(
            "--rotate needs --chaos, and --secrets-file for the new secrets; leave out --port"
        )
    output, tally = Output(as_json=as_json), EmulationCounts()
    kinds = frozenset(Disturbance) - (frozenset() if rotate else {Disturbance.ROTATION})
    chaos = Chaos(chaos_rate, kinds)
    emulation = Emulation(output, tally, secrets_file)
    data = None if described is None else _loaded(described)
    try:
        service = EmulatedService(
            url if url is None else _checked(url),
            secret=_signing_secret(url, data, secrets_file),
            data=data,
            speed=speed,
            chaos=chaos,
            seed=seed,
            on_attempt=emulation.note,
            on_event=tally.count_event,
            on_rotation=emulation.write_secret if rotate else None,
        )
    except ValueError as error:
        raise CannotBegin(str(error)) from None
    count = 0 if is_quiet else events or sys.maxsize
    moments = moments_of(chaos, service.seed, count, rate)
    emitter = PacedEmitter(service, moments, waits=port is not None)
    emitting = partial(emit_all, emitter, service.seed, flow=flow, types=types)
    many = f"{events} events" if events else "events without end"
    output.say(
        f"{'the events that the API causes' if is_quiet else f'{many}, {rate:g} a second'}, to"
        f" {url or 'registered receivers'}; speed {speed:g}, chaos {chaos_rate:g},"
        f" seed {service.seed}"
    )
    key = data.keys[0].key.get_secret_value() if data and data.keys else None
    asyncio.run(emulation.run(service, emitting, port, key))
    waiting = len(service.deliveries(status="pending"))
    if not print_report(tally, waiting, service.endpoints, service.seed, output):
        raise SystemExit(Status.FOUND)


def _signing_secret(
    url: str | None, data: WorkspaceData | None, secrets_file: Path | None
) -> str | None:
    """Return the newest configured secret, if --to or a described webhook needs a secret.

    Described webhooks get a new secret if none is configured. Endpoints registered through the API
    always get new secrets.
    """
    if url is None:
        if data is None or all(webhook.secret for webhook in data.webhooks):
            if secrets_file is not None:
                raise click.UsageError(
                    "--secrets-file has no use here: add --to, or describe a webhook without a"
                    " secret in --data"
                )
            return None
        if secrets_file is None and not os.environ.get(SECRETS_VARIABLE):
            return None
    return load_signing_secret(secrets_file)


def _loaded(path: Path) -> WorkspaceData:
    """Return the workspace that a file describes, or exit with an error."""
    try:
        return WorkspaceData.load(path)
    except OSError as error:
        raise CannotBegin(system_fault(error)) from None
    except (ValueError, ImportError) as error:
        raise CannotBegin(f"{path} does not describe a workspace: {error}") from None


def _checked(url: str) -> str:
    """Return a URL, or exit with an error."""
    try:
        httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise CannotBegin(f"{url!r} is not a URL to deliver to: {error}") from None
    return url
