"""``hookonce handlers``: list the handlers of a version, and compare them with a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from hookonce import Receiver
from hookonce.operations.deployment import Misfit, Problem, misfits
from hookonce.routing.handler import Handler
from hookonce.stores.protocols import InboxStore

from .loading import factory_option, load_receivers, stand_in_secrets
from .output import Output, json_option
from .statuses import Status
from .stores import chosen_url, store_file_option_for, with_store

_AGAINST = "--against"

_COLUMNS = {
    "endpoint": "endpoint",
    "name": "handler",
    "events": "events",
    "within": "ledger",
    "key": "key",
    "runs": "runs",
}

# Name at most this many events of a group.
_EXAMPLES = 3


@click.command()
@click.argument("target", metavar="MODULE:RECEIVER")
@click.option(
    _AGAINST,
    "store_url",
    metavar="STORE",
    help="The store that the deployed version uses: its URL, or MODULE:RECEIVER.",
)
@store_file_option_for(_AGAINST)
@factory_option
@json_option
def handlers(
    target: str, store_url: str | None, store_file: Path | None, *, factory: bool, as_json: bool
) -> None:
    """List the handlers of MODULE:RECEIVER, or compare them with the events in a store.

    With --against, run the command before you deploy a new version. It looks at the unfinished
    events of the receiver's endpoint: the inbox, dead letters, and kept deliveries. It names events
    that need a handler which this version lacks. It also names events with a finished handler that
    this version lacks, if other handlers would run for them: if such a handler was only renamed,
    its effect would happen a second time.

    The command changes nothing in the store, and needs no secrets.

    Exits 0 if this version fits all events; 1 if it does not; 2 if the version or the store cannot
    be read.

    For example: hookonce handlers app:receiver --against postgresql://db/hooks
    """
    output = Output(as_json=as_json)
    url = chosen_url(store_url, store_file, _AGAINST)
    with stand_in_secrets():
        receivers = load_receivers(target, factory=factory)
    if url is None:
        records = [_record(one, handler) for one in receivers for handler in one.handlers]
        output.table(records, _COLUMNS, "no handlers")
        return

    async def compare(store: InboxStore) -> list[Misfit]:
        return [misfit for receiver in receivers async for misfit in misfits(receiver, store)]

    found = with_store(url, compare)
    if not found:
        endpoints = ", ".join(receiver.endpoint for receiver in receivers)
        output.say(f"{target} has every handler that unfinished events need at {endpoints}")
        return
    for misfit in found:
        output.record(_misfit_record(misfit), None)
    for line in _lines(found):
        output.say(line, "bold red")
    output.say(_ADVICE)
    raise SystemExit(Status.FOUND)


_ADVICE = (
    "keep a handler's old name with name=… when you rename or move it; keep a handler until the"
    " deployed version has finished its events, or first replay or discard these events"
)


def _record(receiver: Receiver, handler: Handler) -> dict[str, Any]:
    patterns = (text for text in handler.written if text not in handler.types)
    unknown = ("unknown types",) if handler.for_unknown else ()
    serial = None if handler.keyed is None else "serial_by"
    return {
        "endpoint": receiver.endpoint,
        "name": handler.name,
        "events": ", ".join((*handler.types, *patterns, *unknown)),
        "within": None if handler.ledger is None else type(handler.ledger).__name__,
        "key": "latest_by" if handler.needs_time else serial,
        "runs": "async" if handler.is_async else "in a thread",
    }


def _misfit_record(misfit: Misfit) -> dict[str, Any]:
    return {
        "problem": str(misfit.problem),
        "endpoint": misfit.endpoint,
        "id": misfit.event_id,
        "type": misfit.event_type,
        "handlers": sorted(misfit.handlers),
        "would_run": sorted(misfit.would_run),
    }


def _lines(found: Sequence[Misfit]) -> Iterable[str]:
    """Return one line for all events with the same problem."""
    groups: dict[tuple[object, ...], list[Misfit]] = {}
    for one in found:
        same = (one.problem, one.endpoint, one.event_type, one.handlers, one.would_run)
        groups.setdefault(same, []).append(one)
    for group in groups.values():
        first, count = group[0], len(group)
        events = f"{count} {first.event_type or 'unreadable'} event{'s' if count > 1 else ''}"
        ids = ", ".join(one.event_id for one in group[:_EXAMPLES])
        more = ", …" if count > _EXAMPLES else ""
        yield f"{first.endpoint}: {events}: {_text(first)} ({ids}{more})"


def _text(misfit: Misfit) -> str:
    names = ", ".join(sorted(misfit.handlers))
    match misfit.problem:
        case Problem.LACKS:
            return f"this version lacks {names}, which must still run"
        case Problem.NO_HANDLER:
            return "this version has no handler for the type"
        case Problem.RENAMED:
            would_run = ", ".join(sorted(misfit.would_run))
            return (
                f"this version lacks {names}, which has finished, and would run {would_run}: the"
                " same handler under a new name?"
            )
