"""``hookonce dead``: dead letters, for a person to look at, run again, or discard."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Unpack

import click

from hookonce import Receiver
from hookonce.errors import PayloadError, StoreError
from hookonce.outcome import SUCCEEDED
from hookonce.stores.contract import InboxStore
from hookonce.stores.values import DeadLetter, DeadReason, DeliveryKey, Wanted, delivery_key

from .ending import end_with_its_threads, terminated_as_interrupted
from .loading import factory_option, load_receivers
from .output import Output, json_option
from .records import list_options, print_list, print_one, show_options, time_text
from .selecting import (
    NOT_FOUND,
    PAGE,
    Kind,
    Page,
    change_selected,
    check_selection,
    pages_of,
    print_result,
)
from .statuses import CannotBegin, Status
from .stores import STORE_HELP, endpoint_option, run, store_argument, with_store

_NOTHING = "no dead letters"

# A replay of more has a bar on a terminal, and no line for each success.
_MANY = 20


def _record(letter: DeadLetter) -> dict[str, Any]:
    return {
        "buried_at": time_text(letter.buried_at),
        "endpoint": letter.delivery.endpoint,
        "id": letter.delivery.event_id,
        "type": letter.delivery.event_type,
        "state": "kept" if letter.is_kept else "dead",
        "reason": str(letter.reason),
        "attempts": letter.attempts,
        "received_at": time_text(letter.delivery.received_at),
        "error": letter.error,
    }


def _is_dead(letter: DeadLetter) -> bool:
    return not letter.is_kept


_LETTERS: Kind[DeadLetter] = Kind(
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
    """Look at dead letters, run them again, or discard them."""


@dead.command("list")
@list_options
@click.option(
    "--reason",
    type=click.Choice([str(reason) for reason in DeadReason]),
    callback=lambda _, __, name: name and DeadReason(name),
    help="Only those given up for this reason.",
)
def list_letters(
    store_url: str,
    limit: int,
    reason: DeadReason | None,
    *,
    every: bool,
    as_json: bool,
    **wanted: Unpack[Wanted],
) -> None:
    """List dead letters, oldest first; --since goes by when they were given up.

    An event in the state "kept" is no dead letter yet: the sender may bring it again, until the
    time in the first column.
    """
    shown = None if every else limit
    print_list(_LETTERS, store_url, shown, as_json=as_json, reason=reason, **wanted)


@dead.command()
@show_options
def show(
    store_url: str, event_ids: tuple[str, ...], endpoint: str | None, *, raw: bool, as_json: bool
) -> None:
    """Show one dead letter with its attempts and its body.

    Bytes that are no text are shown as escapes; --raw gives them as they came.
    """
    print_one(_LETTERS, store_url, event_ids, endpoint, raw=raw, as_json=as_json)


@dead.command()
@store_argument("[ID]...")
@click.option("--all", "every", is_flag=True, help="Discard every dead letter of the endpoint.")
@click.option("--type", "event_type", help="Discard those of this event type.")
@click.option(
    "--endpoint",
    help="Only at this endpoint. Ids are looked for at all without it; --all and --type, which are"
    " for good, go for the default endpoint.",
)
@click.option("--yes", is_flag=True, help="Do not ask before --all or --type.")
@json_option
def discard(
    store_url: str,
    event_ids: tuple[str, ...],
    event_type: str | None,
    endpoint: str | None,
    *,
    every: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget dead letters; their events count as handled from now on.

    What is only kept is discarded where it is named by its id. Exits 0 if every one that was named
    by its id was there.
    """
    check_selection(event_ids, event_type, every=every)
    if not event_ids:
        endpoint = endpoint or "default"
    if not (event_ids or yes):
        _confirm(store_url, endpoint, event_type)
    change_selected(
        _LETTERS,
        store_url,
        _discarded,
        event_ids=event_ids,
        event_type=event_type,
        endpoint=endpoint,
        wanted=_is_dead,
        nothing=_NOTHING,
        as_json=as_json,
    )


async def _discarded(store: InboxStore, key: DeliveryKey) -> str:
    return "discarded" if await store.discard(key) else NOT_FOUND


def _confirm(store_url: str, endpoint: str | None, event_type: str | None) -> None:
    """Ask a person whether the bytes of so many events may be lost for good."""
    if not sys.stdin.isatty():
        raise click.UsageError("this discards for good, and nobody can be asked here: add --yes")

    async def count_dead(store: InboxStore) -> int:
        listing = _LETTERS.pages(store, endpoint=endpoint, event_type=event_type)
        found = 0
        async for page in pages_of(listing, wanted=_is_dead):
            found += len(page.events)
            if found >= PAGE:
                break
        return found

    dead = with_store(store_url, count_dead)
    if dead:
        count = f"{PAGE} or more" if dead >= PAGE else str(dead)
        kind = f" of the type {event_type!r}" if event_type else ""
        click.confirm(
            f"Discard {count} dead letters{kind} at {endpoint!r} for good?", abort=True, err=True
        )


@dead.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
@click.argument("event_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Replay every dead letter of the receivers.")
@click.option("--type", "event_type", help="Replay those of this event type.")
@endpoint_option
@factory_option
@json_option
def replay(
    receiver: str,
    event_ids: tuple[str, ...],
    event_type: str | None,
    endpoint: str | None,
    *,
    every: bool,
    factory: bool,
    as_json: bool,
) -> None:
    """Run the handlers of MODULE:RECEIVER on dead letters again.

    Where several receivers are named, by MODULE:APP or MODULE:RECEIVERS, each replays its own.
    Handlers that have succeeded before are left out. What is only kept is replayed where it is
    named by its id. Exits 0 if every event is handled now.
    Ctrl-C loses nothing: what is not handled stays a dead letter.
    """
    check_selection(event_ids, event_type, every=every)
    targets = load_receivers(receiver, factory=factory)
    chosen = [one for one in targets if endpoint in {None, one.endpoint}]
    if not chosen:
        known = ", ".join(one.endpoint for one in targets)
        raise CannotBegin(f"{receiver} has no endpoint {endpoint!r}; it has {known}")
    output = Output(as_json=as_json)
    replaying = _Replaying(output)
    with terminated_as_interrupted():
        try:
            run(replaying.replay(chosen, event_ids, event_type))
        finally:
            end_with_its_threads("their events stay dead letters")
    if replaying.failed:
        raise SystemExit(Status.FOUND)


class _Replaying:
    """Replays one letter after the other, and counts what became of them."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.handled = 0
        self.failed = 0

    async def replay(
        self, receivers: Sequence[Receiver], event_ids: Sequence[str], event_type: str | None
    ) -> None:
        """Replay what was chosen; where that is broken off, say how far it came."""
        left = list(event_ids)
        try:
            for receiver in receivers:
                # Not `async with receiver`, which would also work on its inbox.
                async with receiver.opened():
                    if event_ids:
                        left = await self._replay_named(receiver, left, receivers[-1])
                    else:
                        await self._replay_pages(
                            receiver,
                            pages_of(partial(_listed, receiver, event_type), wanted=_is_dead),
                        )
        except (asyncio.CancelledError, StoreError):
            click.echo(f"stopped: {self._summary()}; the rest stays as it was", err=True)
            raise
        if self._done == 0:
            self._output.say(_NOTHING)

    async def _replay_named(
        self, receiver: Receiver, event_ids: Sequence[str], last: Receiver
    ) -> list[str]:
        """Replay those of these events that are dead letters here; return the others."""
        elsewhere = []
        for event_id in event_ids:
            if receiver is last or await receiver.dead.show(event_id) is not None:
                await self._replay_one(receiver, event_id, quietly=False)
            else:
                elsewhere.append(event_id)
        return elsewhere

    async def _replay_pages(
        self, receiver: Receiver, pages: AsyncIterator[Page[DeadLetter]]
    ) -> None:
        with ExitStack() as stack:
            move, before = None, self._done
            async for page in pages:
                total = self._done - before + len(page.ids) if page.is_last else None
                if self._done == before and len(page.ids) > _MANY:
                    move = stack.enter_context(self._output.progress("replaying"))
                for event_id in page.ids:
                    await self._replay_one(receiver, event_id, quietly=move is not None)
                    if move is not None:
                        move(self._done - before, total)
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

    @property
    def _done(self) -> int:
        return self.handled + self.failed

    def _summary(self) -> str:
        return f"{self.handled} handled, {self.failed} failed"


async def _listed(
    receiver: Receiver, event_type: str | None, after: str | None, limit: int
) -> Sequence[DeadLetter]:
    return await receiver.dead.list(event_type=event_type, after=after, limit=limit)
