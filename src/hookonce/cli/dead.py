"""``hookonce dead``: dead letters, for a person to look at, run again, or discard."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any

import click

from hookonce import Receiver
from hookonce.delivery.outcome import Reason
from hookonce.errors import PayloadError, StoreError
from hookonce.stores.contract import InboxStore
from hookonce.stores.values import DeadLetter, DeliveryKey, delivery_key

from .ending import end_with_its_threads, terminated_as_interrupted
from .loading import load_receiver
from .output import Output, json_option
from .records import list_options, print_event, show_options, time_text
from .stores import (
    NOT_FOUND,
    PAGE,
    Page,
    check_selection,
    conclude,
    endpoint_option,
    for_each,
    only,
    pages_of_letters,
    print_result,
    run,
    store_argument,
    with_store,
)

__all__ = ["dead"]

_COLUMNS = {
    "buried_at": "buried",
    "endpoint": "endpoint",
    "id": "id",
    "type": "type",
    "reason": "reason",
    "attempts": "attempts",
    "error": "error",
}

_NOTHING = "no dead letters"

# A replay of more has a bar on a terminal, and no line for each success.
_MANY = 20


@click.group()
def dead() -> None:
    """Look at dead letters, run them again, or discard them.

    STORE_URL is what the receiver has as its store, for example sqlite:///hookonce.db or
    redis://localhost:6379/0. Where it has a password in it, put it into the environment variable
    HOOKONCE_STORE, or into a file named by --store-file, and leave it out: every user of the
    machine sees arguments.
    """


@dead.command("list")
@list_options
def list_letters(
    store_url: str, endpoint: str | None, event_type: str | None, limit: int, *, as_json: bool
) -> None:
    """List dead letters, oldest first."""
    letters = with_store(
        store_url,
        lambda store: store.dead_letters(endpoint=endpoint, event_type=event_type, limit=limit),
    )
    Output(as_json=as_json).table([_record(one) for one in letters], _COLUMNS, _NOTHING)


@dead.command()
@show_options
def show(
    store_url: str, event_ids: tuple[str, ...], endpoint: str, *, raw: bool, as_json: bool
) -> None:
    """Show one dead letter with its attempts and its body.

    Bytes that are no text are shown as escapes; --raw gives them as they came.
    """
    event_id = only(event_ids)
    key = delivery_key(endpoint, event_id)
    letter = with_store(store_url, lambda store: store.dead_letter(key))
    if letter is None:
        raise click.ClickException(f"there is no dead letter {event_id!r} at {endpoint!r}")
    print_event(letter, _record(letter), raw=raw, as_json=as_json)


@dead.command()
@store_argument("[ID]...")
@click.option("--all", "every", is_flag=True, help="Discard every dead letter of the endpoint.")
@click.option("--type", "event_type", help="Discard those of this event type.")
@endpoint_option
@click.option("--yes", is_flag=True, help="Do not ask before --all or --type.")
@json_option
def discard(
    store_url: str,
    event_ids: tuple[str, ...],
    event_type: str | None,
    endpoint: str,
    *,
    every: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget dead letters; their events count as handled from now on.

    Exits 0 if every one that was named by its id was there.
    """
    check_selection(event_ids, event_type, every=every)
    if not (event_ids or yes):
        _confirm(store_url, endpoint, event_type)
    output = Output(as_json=as_json)

    async def discard_all(store: InboxStore) -> set[str]:
        async def discarded(key: DeliveryKey) -> str:
            return "discarded" if await store.discard(key) else NOT_FOUND

        results = set()
        async for page in _pages(
            event_ids,
            lambda n: store.dead_letters(endpoint=endpoint, event_type=event_type, limit=n),
        ):
            results |= await for_each(page.ids, endpoint, discarded, output)
        return results

    conclude(with_store(store_url, discard_all), event_ids, _NOTHING, output)


def _pages(
    event_ids: tuple[str, ...], listing: Callable[[int], Awaitable[Sequence[DeadLetter]]]
) -> AsyncIterator[Page]:
    return _one_page(event_ids) if event_ids else pages_of_letters(listing)


async def _one_page(event_ids: tuple[str, ...]) -> AsyncIterator[Page]:
    yield Page(event_ids, is_last=True)


def _confirm(store_url: str, endpoint: str, event_type: str | None) -> None:
    """Ask a person whether the bytes of so many events may be lost for good."""
    if not sys.stdin.isatty():
        raise click.UsageError("this discards for good, and nobody can be asked here: add --yes")
    letters = with_store(
        store_url,
        lambda store: store.dead_letters(endpoint=endpoint, event_type=event_type, limit=PAGE),
    )
    if letters:
        count = f"{PAGE} or more" if len(letters) == PAGE else str(len(letters))
        kind = f" of the type {event_type!r}" if event_type else ""
        click.confirm(
            f"Discard {count} dead letters{kind} at {endpoint!r} for good?", abort=True, err=True
        )


@dead.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
@click.argument("event_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Replay every dead letter of the receiver.")
@click.option("--type", "event_type", help="Replay those of this event type.")
@json_option
def replay(
    receiver: str,
    event_ids: tuple[str, ...],
    event_type: str | None,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Run the handlers of MODULE:RECEIVER on dead letters again.

    Handlers that have succeeded before are left out. Exits 0 if every event is handled now.
    Ctrl-C loses nothing: what is not handled stays a dead letter.
    """
    check_selection(event_ids, event_type, every=every)
    target = load_receiver(receiver)
    pages = _pages(event_ids, lambda n: target.dead.list(event_type=event_type, limit=n))
    replaying = _Replaying(target, Output(as_json=as_json))
    with terminated_as_interrupted():
        try:
            run(replaying.replay(pages))
        finally:
            end_with_its_threads("their events stay dead letters")
    if replaying.failed:
        raise SystemExit(1)


class _Replaying:
    """Replays one letter after the other, and counts what became of them."""

    def __init__(self, receiver: Receiver, output: Output) -> None:
        self._receiver = receiver
        self._output = output
        self.handled = 0
        self.failed = 0

    async def replay(self, pages: AsyncIterator[Page]) -> None:
        """Replay all pages; where that is broken off, say how far it came."""
        try:
            # Not `async with receiver`, which would also work on its inbox.
            async with self._receiver.opened():
                await self._replay_pages(pages)
        except (asyncio.CancelledError, StoreError):
            click.echo(f"stopped: {self._summary()}; the rest stays as it was", err=True)
            raise
        if self._done == 0:
            self._output.say(_NOTHING)

    async def _replay_pages(self, pages: AsyncIterator[Page]) -> None:
        with ExitStack() as stack:
            move = None
            async for page in pages:
                total = self._done + len(page.ids) if page.is_last else None
                if self._done == 0 and len(page.ids) > _MANY:
                    move = stack.enter_context(self._output.progress("replaying"))
                for event_id in page.ids:
                    await self._replay_one(event_id, quietly=move is not None)
                    if move is not None:
                        move(self._done, total)
        if move is not None:
            self._output.say(self._summary())

    async def _replay_one(self, event_id: str, *, quietly: bool) -> None:
        try:
            result: str = (await self._receiver.dead.replay(event_id)).reason
        except (LookupError, PayloadError) as error:
            result = str(error)
        succeeded = result in {Reason.HANDLED, Reason.DUPLICATE}
        self.handled += succeeded
        self.failed += not succeeded
        if not (succeeded and quietly):
            print_result(event_id, result, self._output, "green" if succeeded else "red")

    @property
    def _done(self) -> int:
        return self.handled + self.failed

    def _summary(self) -> str:
        return f"{self.handled} handled, {self.failed} failed"


def _record(letter: DeadLetter) -> dict[str, Any]:
    return {
        "buried_at": time_text(letter.buried_at),
        "endpoint": letter.delivery.endpoint,
        "id": letter.delivery.event_id,
        "type": letter.delivery.event_type,
        "reason": str(letter.reason),
        "attempts": letter.attempts,
        "received_at": time_text(letter.delivery.received_at),
        "error": letter.error,
    }
