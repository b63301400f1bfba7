"""``hookonce handled``: list, show and replay handled events whose deliveries are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

import click

from hookonce import Receiver
from hookonce.errors import LedgerError, ReplayError, StoreError
from hookonce.receiver import HandledEvents, Replayed
from hookonce.receiver.ledgers import check_ledgers
from hookonce.stores.filters import EventFilter
from hookonce.stores.handled import HandledEvent, HandledStore
from hookonce.stores.protocols import InboxStore
from hookonce.stores.replays import ReplayBatch
from hookonce.stores.values import delivery_key

from .ending import end_with_its_threads, terminated_as_interrupted
from .listing import (
    MANY,
    EventList,
    check_selection,
    filter_options,
    list_options,
    print_list,
    print_one,
    print_result,
    show_options,
    since_option,
    type_option,
    where_option,
)
from .loading import factory_option, load_receivers
from .numbers import Rate
from .output import Output, json_option, one_line
from .statuses import CannotBegin, Status
from .stores import STORE_HELP, run, use_existing
from .times import read_since, time_text


class _Plan(TypedDict):
    """The options of the command that become arguments of ``HandledEvents.open_batch``."""

    handler: str
    event_type: str | None
    since: datetime | timedelta | None
    where: tuple[str, ...]
    late: bool
    new_key: bool
    new: bool


def _keeping(store: InboxStore) -> HandledStore:
    if not isinstance(store, HandledStore):
        raise CannotBegin(f"{store} keeps no handled events: it is no HandledStore")
    return store


def _record(event: HandledEvent) -> dict[str, Any]:
    return {
        "handled_at": time_text(event.handled_unix),
        "endpoint": event.delivery.endpoint,
        "id": event.delivery.event_id,
        "type": event.delivery.event_type,
        "handlers": ", ".join(sorted(event.finished)),
        "received_at": time_text(event.delivery.received_unix),
        "expires_at": time_text(event.expires_unix),
    }


_HANDLED: EventList[HandledEvent] = EventList(
    name="kept handled event",
    nothing="no handled events are kept",
    find=lambda store: _keeping(store).handled_events,
    load=lambda store: _keeping(store).handled_event,
    count=None,
    record=_record,
    columns={
        "handled_at": "handled",
        "endpoint": "endpoint",
        "id": "id",
        "type": "type",
        "handlers": "handlers",
        "expires_at": "kept until",
    },
)


@click.group(epilog=STORE_HELP)
def handled() -> None:
    """List, show and replay handled events that a receiver with keep_handled keeps."""


@handled.command("list")
@list_options
@filter_options(handler="has finished")
def list_handled(
    store_url: str,
    limit: int,
    endpoint: str | None,
    wanted: EventFilter,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """List handled events, oldest success first; --since compares when they were handled.

    A receiver with keep_handled keeps the events that it has handled.
    """
    wanted = replace(wanted, endpoint=endpoint)
    print_list(_HANDLED, store_url, None if every else limit, wanted=wanted, as_json=as_json)


@handled.command()
@show_options
def show(
    store_url: str, event_ids: tuple[str, ...], endpoint: str | None, *, raw: bool, as_json: bool
) -> None:
    """Show one handled event with its handlers and its body.

    Bytes that are not text are shown as escapes; --raw writes them unchanged.
    """
    print_one(_HANDLED, store_url, event_ids, endpoint, raw=raw, as_json=as_json)


@handled.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
@click.argument("event_ids", metavar="[ID]...", nargs=-1)
@click.option("--handler", required=True, help="The handler that runs again.")
@click.option(
    "--all", "every", is_flag=True, help="Replay every event that the handler has finished."
)
@type_option
@since_option("since", read_since)
@where_option
@click.option(
    "--late",
    is_flag=True,
    help="With latest_by, also replay events for which a newer event with the same key has"
    " succeeded: one after the other, in the order of their creation.",
)
@click.option(
    "--new-key",
    is_flag=True,
    help="Change context.idempotency_key, so that services that the handler calls repeat their"
    " effects, too: a payment is made again.",
)
@click.option(
    "--new",
    is_flag=True,
    help="Begin another batch: after a finished batch with the same options, or in place of an open"
    " batch with other options.",
)
@click.option("--rate", type=Rate(), help="Begin no more attempts than this: 10/s, 100/m, 5000/h.")
@click.option("--dry-run", is_flag=True, help="Only print which events would be replayed.")
@click.option("--endpoint", help="Only at this endpoint, if MODULE:RECEIVER has several.")
@factory_option
@json_option
def replay(
    receiver: str,
    event_ids: tuple[str, ...],
    endpoint: str | None,
    rate: float | None,
    *,
    every: bool,
    dry_run: bool,
    factory: bool,
    as_json: bool,
    **plan: Unpack[_Plan],
) -> None:
    """Run one handler of MODULE:RECEIVER again for handled events.

    Name events by their ids, or select them with --all or with filters: an event must pass all of
    them. --since compares when they were handled; a span counts from the start of the batch.

    The command begins a batch, which the store keeps: the selected events that the handler has
    finished before now. While the batch is open, the same command joins it, on any machine. So
    several commands at once replay each event once, and after Ctrl-C or a crash the same command
    continues. If the handler fails three times for an event, the replay becomes a dead letter with
    the id ID.GENERATION.HANDLER.

    Exits 0 if every event is handled now.
    """
    is_filtered = bool(plan["event_type"] or plan["since"] or plan["where"])
    check_selection(event_ids, EventFilter(), every=every or is_filtered)
    chosen = _with_handler(receiver, endpoint, plan["handler"], factory=factory)
    try:
        replaying = _Replaying(chosen.handled, Output(as_json=as_json))
    except AttributeError as error:  # the receiver keeps no handled events
        raise CannotBegin(str(error)) from None
    use_existing(chosen.store)

    async def replay_them() -> None:
        async with chosen.opened():  # `async with chosen` would start the inbox workers too
            # Check the ledgers, as a service does at its start: with an unusable ledger, every
            # event would become a dead letter.
            await check_ledgers(
                [own for own in chosen.handlers if own.name == plan["handler"]],
                getattr(chosen.store, "retention_seconds", None),
                getattr(chosen.store, "path", None),
            )
            await replaying.replay(event_ids, plan, rate, dry_run=dry_run)

    with terminated_as_interrupted():
        try:
            run(replay_them())
        except LedgerError as error:
            raise CannotBegin(one_line(error)) from None
        finally:
            end_with_its_threads("the same command replays their events")
    if replaying.failed:
        raise SystemExit(Status.FOUND)


def _with_handler(name: str, endpoint: str | None, handler: str, *, factory: bool) -> Receiver:
    """Return the receiver of ``MODULE:NAME`` with this handler; exit unless exactly one has it."""
    receivers = load_receivers(name, factory=factory)
    at = [one for one in receivers if endpoint in {None, one.endpoint}]
    if not at:
        known = ", ".join(one.endpoint for one in receivers)
        raise CannotBegin(f"{name} has no endpoint {endpoint!r}; it has {known}")
    found = [one for one in at if handler in {own.name for own in one.handlers}]
    if not found:
        known = ", ".join(dict.fromkeys(own.name for one in at for own in one.handlers)) or "none"
        raise CannotBegin(f"{name} has no handler {handler!r}; it has {known}")
    if len(found) > 1:
        places = ", ".join(one.endpoint for one in found)
        raise CannotBegin(f"{handler} is at the endpoints {places}; name one with --endpoint")
    return found[0]


class _Replaying:
    """Replays a batch, and counts the results."""

    def __init__(self, handled: HandledEvents, output: Output) -> None:
        self._handled = handled
        self._output = output
        self.succeeded = 0
        self.failed = 0

    async def replay(
        self, event_ids: Sequence[str], plan: _Plan, rate: float | None, *, dry_run: bool
    ) -> None:
        """Open the batch and replay it, or print which events it would replay."""
        try:
            batch = await self._handled.open_batch(**plan, event_ids=event_ids, dry_run=dry_run)
        except (LookupError, ReplayError, ValueError) as error:
            raise CannotBegin(str(error)) from None
        what = f"generation {batch.generation} of {batch.handler}"
        if batch.finished_unix is not None:
            at = time_text(batch.finished_unix)
            click.echo(f"{what} was finished at {at}; --new begins another", err=True)
        elif dry_run:
            remaining = await self._handled.remaining(batch)
            for event_id in remaining:
                self._print(event_id, "would be replayed")
            click.echo(f"{what} would replay {len(remaining)} events", err=True)
        else:
            click.echo(what, err=True)
            await self._replay_all(batch, rate)

    async def _replay_all(self, batch: ReplayBatch, rate: float | None) -> None:
        move: Callable[[int, int | None], None] | None = None
        try:
            with ExitStack() as stack:
                async with aclosing(self._handled.replay_all(batch, rate=rate)) as replays:
                    async for one in replays:
                        if not self._count and one.left >= MANY:
                            move = stack.enter_context(self._output.progress("replaying"))
                        self._note(one, quietly=move is not None)
                        if move is not None:
                            move(self._count, self._count + one.left)
        except (asyncio.CancelledError, StoreError):
            click.echo(f"stopped: {self._summary()}; the same command continues", err=True)
            raise
        except ReplayError as error:
            click.echo(f"stopped: {self._summary()}; {error}", err=True)
            raise SystemExit(Status.FOUND) from None
        if move is not None:
            self._output.say(self._summary())
        elif not self._count:
            self._output.say("no events to replay")

    def _note(self, one: Replayed, *, quietly: bool) -> None:
        self.succeeded += one.has_succeeded
        self.failed += not one.has_succeeded
        if not (one.has_succeeded and quietly):
            self._print(one.event_id, one.reason, "green" if one.has_succeeded else "red")

    def _print(self, event_id: str, result: str, style: str = "") -> None:
        key = delivery_key(self._handled.endpoint, event_id)
        print_result(key, result, self._output, style)

    @property
    def _count(self) -> int:
        return self.succeeded + self.failed

    def _summary(self) -> str:
        return f"{self.succeeded} handled, {self.failed} failed"
