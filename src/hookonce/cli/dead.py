"""``hookonce dead``: dead letters, for a person to look at, run again, or discard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from hookonce import Receiver
from hookonce.errors import PayloadError, StoreError
from hookonce.outcome import Reason
from hookonce.stores import open_store, sqlite_path
from hookonce.stores.base import DeadLetter, Store, delivery_key
from hookonce.types import system_clock

from .loading import load_receiver
from .output import Output, json_option, one_line

__all__ = ["dead"]

T = TypeVar("T")

_COLUMNS = {
    "buried_at": "buried",
    "endpoint": "endpoint",
    "id": "id",
    "type": "type",
    "reason": "reason",
    "attempts": "attempts",
    "error": "error",
}

_store_argument = click.argument("store_url", metavar="STORE_URL")
_endpoint_option = click.option(
    "--endpoint", default="default", show_default=True, help="The name of the endpoint."
)


@click.group()
def dead() -> None:
    """Look at dead letters, run them again, or discard them.

    STORE_URL is what the receiver has as its store, for example sqlite:///hookonce.db.
    """


@dead.command("list")
@_store_argument
@click.option("--endpoint", help="Only those of this endpoint.")
@click.option("--type", "event_type", help="Only those of this event type.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1))
@json_option
def list_letters(
    store_url: str, endpoint: str | None, event_type: str | None, limit: int, *, as_json: bool
) -> None:
    """List dead letters, oldest first."""
    letters = _with_store(
        store_url,
        lambda store: store.dead_letters(endpoint=endpoint, event_type=event_type, limit=limit),
    )
    output = Output(as_json=as_json)
    if letters:
        output.table([_record(letter) for letter in letters], _COLUMNS)
    else:
        output.say("no dead letters")


@dead.command()
@_store_argument
@click.argument("event_id", metavar="ID")
@_endpoint_option
@click.option("--raw", is_flag=True, help="Write the body alone, byte for byte.")
@json_option
def show(store_url: str, event_id: str, endpoint: str, *, raw: bool, as_json: bool) -> None:
    """Show one dead letter with its body.

    Bytes that are no text are shown as escapes; --raw gives them as they came.
    """
    key = delivery_key(endpoint, event_id)
    letter = _with_store(store_url, lambda store: store.dead_letter(key))
    if letter is None:
        raise click.ClickException(f"there is no dead letter {event_id!r} at {endpoint!r}")
    if raw:
        click.echo(letter.delivery.body, nl=False)
        return
    body = letter.delivery.body.decode("utf-8", "backslashreplace")
    record = _record(letter) | {"finished": sorted(letter.finished), "body": body}
    lines = (f"{name}: {one_line(value)}" for name, value in record.items() if name != "body")
    Output(as_json=as_json).record(record, "\n".join([*lines, "", body]))


@dead.command()
@_store_argument
@click.argument("event_ids", metavar="ID...", nargs=-1, required=True)
@_endpoint_option
@json_option
def discard(store_url: str, event_ids: tuple[str, ...], endpoint: str, *, as_json: bool) -> None:
    """Forget dead letters; their events count as handled from now on."""

    async def discard_all(store: Store) -> list[bool]:
        return [await store.discard(delivery_key(endpoint, event_id)) for event_id in event_ids]

    output = Output(as_json=as_json)
    found = _with_store(store_url, discard_all)
    for event_id, was_there in zip(event_ids, found, strict=True):
        result = "discarded" if was_there else "not found"
        output.record({"id": event_id, "result": result}, f"{event_id}: {result}")
    if not all(found):
        raise SystemExit(1)


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
    """
    if bool(event_ids) + bool(every) + bool(event_type) != 1:
        raise click.UsageError("name events by their ids, by --type, or --all")
    target = load_receiver(receiver)
    output = Output(as_json=as_json)
    handled = _run(_replay_all(target, event_ids, event_type, output))
    if not handled:
        raise SystemExit(1)


async def _replay_all(
    receiver: Receiver, event_ids: tuple[str, ...], event_type: str | None, output: Output
) -> bool:
    handled = True
    async with receiver:
        if not event_ids:
            letters = await receiver.dead.list(event_type=event_type, limit=_MANY)
            event_ids = tuple(letter.delivery.event_id for letter in letters)
        for event_id in event_ids:
            try:
                result: str = (await receiver.dead.replay(event_id)).reason
            except (LookupError, PayloadError) as error:
                result = str(error)
            succeeded = result in {Reason.HANDLED, Reason.DUPLICATE}
            handled = handled and succeeded
            output.record(
                {"id": event_id, "result": result},
                f"{event_id}: {result}",
                "green" if succeeded else "red",
            )
    if not event_ids:
        output.say("no dead letters")
    return handled


_MANY = 1_000_000


def _with_store(url: str, use: Callable[[Store], Awaitable[T]]) -> T:
    try:
        store = open_store(url, clock=system_clock)
        path = sqlite_path(url) if urlsplit(url).scheme == "sqlite" else None
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if path is not None and not Path(path).exists():
        # Opening it would create an empty one, and hide a misspelt path.
        raise click.ClickException(f"there is no file {path!r}")
    if not store.keeps_bodies:
        raise click.ClickException(
            "only its own process can see what is in memory://; name a store that is a file"
        )

    async def run() -> T:
        async with _opened(store):
            return await use(store)

    return _run(run())


@asynccontextmanager
async def _opened(store: Store) -> AsyncIterator[None]:
    await store.open()
    try:
        yield
    finally:
        await store.aclose()


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def _record(letter: DeadLetter) -> dict[str, Any]:
    return {
        "buried_at": _time(letter.buried_at),
        "endpoint": letter.delivery.endpoint,
        "id": letter.delivery.event_id,
        "type": letter.delivery.event_type,
        "reason": str(letter.reason),
        "attempts": letter.attempts,
        "received_at": _time(letter.delivery.received_at),
        "error": letter.error,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
