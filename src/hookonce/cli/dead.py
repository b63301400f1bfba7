"""``hookonce dead``: list, show, replay or discard dead letters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

from hookonce import Receiver
from hookonce.errors import PayloadError, StoreError
from hookonce.outcome import SUCCEEDED
from hookonce.stores.filters import EventFilter
from hookonce.stores.protocols import InboxStore
from hookonce.stores.values import DeadLetter, DeliveryKey, delivery_key

from .ending import end_with_its_threads, terminated_as_interrupted
from .listing import (
    MANY,
    NOT_FOUND,
    EventList,
    change_selected,
    check_selection,
    filter_options,
    ids_of,
    keys_of,
    list_options,
    print_list,
    print_one,
    print_result,
    show_options,
)
from .loading import factory_option, load_receivers
from .output import Output, json_option
from .statuses import CannotBegin, Status
from .stores import STORE_HELP, endpoint_option, run, store_argument, use_existing, with_store
from .times import time_text

_NOTHING = "no dead letters"


def _record(dead: DeadLetter) -> dict[str, Any]:
    return {
        "buried_at": time_text(dead.buried_unix),
        "endpoint": dead.delivery.endpoint,
        "id": dead.delivery.event_id,
        "type": dead.delivery.event_type,
        "state": "kept" if dead.is_kept else "dead",
        "reason": str(dead.reason),
        "attempts": dead.attempts,
        "received_at": time_text(dead.delivery.received_unix),
        "error": dead.error,
    }


def _is_dead(dead: DeadLetter) -> bool:
    return not dead.is_kept


_DEAD_LETTERS: EventList[DeadLetter] = EventList(
    name="dead letter",
    nothing=_NOTHING,
    find=lambda store: store.dead_letters,
    load=lambda store: store.dead_letter,
    count=lambda stats: stats.dead + stats.kept,
    record=_record,
    columns={
        "buried_at": "buried",
        "endpoint": "endpoint",
        "id": "id",
        "type": "type",
        "state": "state",
        "reason": "reason",
        "attempts": "attempts",
        "error": "error",
    },
)


@click.group(epilog=STORE_HELP)
def dead() -> None:
    """List, show, replay or discard dead letters."""


@dead.command("list")
@list_options
@filter_options(with_reason=True)
def list_dead_letters(
    store_url: str,
    limit: int,
    endpoint: str | None,
    wanted: EventFilter,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """List dead letters, oldest first; --since compares when they were buried.

    An event in the state "kept" is not a dead letter yet: until the time in the first column the
    sender may deliver it again.
    """
    shown, wanted = None if every else limit, replace(wanted, endpoint=endpoint)
    print_list(_DEAD_LETTERS, store_url, shown, wanted=wanted, as_json=as_json)


@dead.command()
@show_options
def show(
    store_url: str, event_ids: tuple[str, ...], endpoint: str | None, *, raw: bool, as_json: bool
) -> None:
    """Show one dead letter with its attempts and its body.

    Bytes that are not text are shown as escapes; --raw writes them unchanged.
    """
    print_one(_DEAD_LETTERS, store_url, event_ids, endpoint, raw=raw, as_json=as_json)


@dead.command()
@store_argument("[ID]...")
@click.option("--all", "every", is_flag=True, help="Discard every dead letter of the endpoint.")
@filter_options(with_reason=True)
@click.option(
    "--endpoint",
    help="Only at this endpoint. By default ids are looked for at all endpoints, and --all and"
    " filters discard at the default endpoint.",
)
@click.option("--yes", is_flag=True, help="Do not ask before --all or a filter discards.")
@json_option
def discard(
    store_url: str,
    event_ids: tuple[str, ...],
    wanted: EventFilter,
    endpoint: str | None,
    *,
    every: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete dead letters for good; their events count as handled from now on.

    Name them by their ids, or select them with filters: an event must pass all of them. An event in
    the state "kept" is discarded only if its id is named. Exits 0 if every id was found.
    """
    check_selection(event_ids, wanted, every=every)
    if not event_ids:
        endpoint = endpoint or "default"
    wanted = replace(wanted, endpoint=endpoint)
    if not (event_ids or yes):
        _confirm(store_url, wanted)
    change_selected(
        _DEAD_LETTERS,
        store_url,
        _discarded,
        event_ids=event_ids,
        wanted=wanted,
        is_wanted=_is_dead,
        nothing=_NOTHING,
        as_json=as_json,
    )


async def _discarded(store: InboxStore, key: DeliveryKey) -> str:
    return "discarded" if await store.discard(key) else NOT_FOUND


def _confirm(store_url: str, wanted: EventFilter) -> None:
    """Ask the user whether to delete this number of dead letters for good."""
    if not sys.stdin.isatty():
        raise click.UsageError("this discards for good, and nobody can be asked here: add --yes")

    async def count_dead(store: InboxStore) -> int:
        read = _DEAD_LETTERS.pages(store, wanted)
        return len(await keys_of(read, is_wanted=_is_dead))

    count = with_store(store_url, count_dead)
    if count:
        which = "" if wanted.is_empty else " that pass the filters"
        click.confirm(
            f"Discard {count} dead letters{which} at {wanted.endpoint!r} for good?",
            abort=True,
            err=True,
        )


@dead.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
@click.argument("event_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Replay every dead letter of the receivers.")
@filter_options(with_reason=True)
@endpoint_option
@factory_option
@json_option
def replay(
    receiver: str,
    event_ids: tuple[str, ...],
    wanted: EventFilter,
    endpoint: str | None,
    *,
    every: bool,
    factory: bool,
    as_json: bool,
) -> None:
    """Run the handlers of MODULE:RECEIVER on dead letters again.

    MODULE:APP and MODULE:RECEIVERS name several receivers; each replays its own dead letters.
    Name dead letters by their ids, or select them with filters: an event must pass all of them.
    Handlers that have succeeded before do not run again. An event in the state "kept" is replayed
    only if its id is named. Exits 0 if every event is handled now.

    After you have corrected what could not be read, `--reason unreadable --all` parses the bodies
    again.

    Ctrl-C loses nothing: an event that is not handled stays a dead letter.
    """
    check_selection(event_ids, wanted, every=every)
    targets = load_receivers(receiver, factory=factory)
    chosen = [one for one in targets if endpoint in {None, one.endpoint}]
    if not chosen:
        known = ", ".join(one.endpoint for one in targets)
        raise CannotBegin(f"{receiver} has no endpoint {endpoint!r}; it has {known}")
    for one in chosen:
        use_existing(one.store)
    output = Output(as_json=as_json)
    replaying = _Replaying(output)
    with terminated_as_interrupted():
        try:
            run(replaying.replay(chosen, event_ids, wanted))
        finally:
            end_with_its_threads("their events stay dead letters")
    if replaying.failed:
        raise SystemExit(Status.FOUND)


class _Replaying:
    """Replays dead letters one after the other, and counts the results."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.handled = 0
        self.failed = 0

    async def replay(
        self, receivers: Sequence[Receiver], event_ids: Sequence[str], wanted: EventFilter
    ) -> None:
        """Replay events by id, or all that pass a filter; if interrupted, print the counts."""
        left = list(event_ids)
        try:
            for receiver in receivers:
                # `async with receiver` would start the inbox workers too.
                async with receiver.opened():
                    if event_ids:
                        left = await self._replay_named(receiver, left, receivers[-1])
                    else:
                        await self._replay_all(receiver, wanted)
        except (asyncio.CancelledError, StoreError):
            click.echo(f"stopped: {self._summary()}; the rest stays as it was", err=True)
            raise
        if self.handled + self.failed == 0:
            self._output.say(_NOTHING)

    async def _replay_named(
        self, receiver: Receiver, event_ids: Sequence[str], last: Receiver
    ) -> list[str]:
        """Replay the events that are dead letters of this receiver; return the other ids.

        The last receiver tries all ids, so that unknown ids are reported.
        """
        elsewhere = []
        for event_id in event_ids:
            if receiver is last or await receiver.dead.show(event_id) is not None:
                await self._replay_one(receiver, event_id, quietly=False)
            else:
                elsewhere.append(event_id)
        return elsewhere

    async def _replay_all(self, receiver: Receiver, wanted: EventFilter) -> None:
        keys = await keys_of(
            lambda after, limit: receiver.dead.list(
                reason=wanted.reason,
                event_type=wanted.event_type,
                handler=wanted.handler,
                since=wanted.since_unix,
                where=wanted.where,
                after=after,
                limit=limit,
            ),
            is_wanted=_is_dead,
        )
        with ExitStack() as stack:
            move = None
            if len(keys) > MANY:
                move = stack.enter_context(self._output.progress("replaying"))
            for done, key in enumerate(keys, start=1):
                await self._replay_one(receiver, ids_of(key)[1], quietly=move is not None)
                if move is not None:
                    move(done, len(keys))
        if move is not None:
            self._output.say(self._summary())

    async def _replay_one(self, receiver: Receiver, event_id: str, *, quietly: bool) -> None:
        try:
            result: str = (await receiver.dead.replay(event_id)).reason
        except (LookupError, PayloadError) as error:
            result = str(error)
        succeeded = result in SUCCEEDED
        self.handled += succeeded
        self.failed += not succeeded
        if not (succeeded and quietly):
            key = delivery_key(receiver.endpoint, event_id)
            print_result(key, result, self._output, "green" if succeeded else "red")

    def _summary(self) -> str:
        return f"{self.handled} handled, {self.failed} failed"
