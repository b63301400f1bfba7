"""Stores that an operator names by their URL, for commands that need no code of the application."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

from hookonce.clock import system_clock
from hookonce.errors import StoreError
from hookonce.stores import open_store, sqlite_path
from hookonce.stores.contract import InboxStore, Store
from hookonce.stores.values import DeadLetter, DeliveryKey, delivery_key

from .output import Output

__all__ = [
    "NOT_FOUND",
    "PAGE",
    "STORE_VARIABLE",
    "Page",
    "check_selection",
    "check_store",
    "chosen_url",
    "conclude",
    "endpoint_option",
    "for_each",
    "named_store",
    "only",
    "pages_of_letters",
    "print_result",
    "run",
    "store_argument",
    "store_file_option",
    "with_store",
]

T = TypeVar("T")

PAGE = 500
"""How many dead letters are listed at a time, since a store may do nothing else meanwhile."""

NOT_FOUND = "not found"
"""What came of an event that is not where it was looked for."""

# So many calls at the same time share a commit, or a round trip.
_AT_ONCE = 256

STORE_VARIABLE = "HOOKONCE_STORE"

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
store_file_option = click.option(
    "--store-file",
    type=_file,
    help="Read the URL of --store from this file: every user of the machine sees arguments.",
)
endpoint_option = click.option(
    "--endpoint", default="default", show_default=True, help="The name of the endpoint."
)


def store_argument(ids: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take a store, as ``store_url``, and ids of events, as ``event_ids``.

    The store is the first argument, in the file of --store-file, or in the environment. With a file
    every argument is an id, and with the environment one that is no URL.

    Args:
        ids: how the help calls the ids; none are taken without it.

    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument("words", metavar=f"[STORE_URL] {ids}".rstrip(), nargs=-1)
        @click.option(
            "--store-file",
            type=_file,
            help=f"Read STORE_URL from this file; without either it is ${STORE_VARIABLE}. Every"
            " user of the machine sees arguments.",
        )
        @wraps(command)
        def named(words: tuple[str, ...], store_file: Path | None, **options: object) -> None:
            url, event_ids = _named(words, store_file)
            if ids:
                options["event_ids"] = event_ids
            elif event_ids:
                raise click.UsageError(f"{event_ids[0]!r} is an argument too many")
            command(store_url=url, **options)

        return named

    return decorated


def _named(words: tuple[str, ...], store_file: Path | None) -> tuple[str, tuple[str, ...]]:
    """Return the URL of a store, and the words that are something else."""
    in_environment = os.environ.get(STORE_VARIABLE)
    if store_file is not None:
        return _url_in(store_file), words
    if in_environment and not (words and "://" in words[0]):
        return in_environment, words
    if not words:
        raise click.UsageError(
            f"name the store: STORE_URL, --store-file, or ${STORE_VARIABLE} in the environment"
        )
    return words[0], words[1:]


def only(event_ids: tuple[str, ...]) -> str:
    """Return the one id that was given, or end with the usage."""
    if len(event_ids) != 1:
        raise click.UsageError(f"name one event by its id, not {len(event_ids)}")
    return event_ids[0]


def chosen_url(url: str | None, file: Path | None) -> str | None:
    """Return the URL that --store or --store-file gives, if one of them does.

    The environment has no say where a store is an option: one that is set for other commands must
    not lead a trial into the store they look after.
    """
    if url is not None and file is not None:
        raise click.UsageError("name the store by --store or by --store-file")
    return url if file is None else _url_in(file)


def _url_in(file: Path) -> str:
    """Return the URL of a store that a file holds, or end with what is wrong, unquoted."""
    try:
        words = file.read_text("utf-8").split()
    except OSError as error:
        raise click.ClickException(f"cannot read {str(file)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        words = []
    if len(words) != 1:
        raise click.ClickException(
            f"{str(file)!r} has to hold the URL of a store, and nothing else"
        )
    return words[0]


def _store(url: str) -> Store:
    try:
        return open_store(url, clock=system_clock)
    except (ValueError, ImportError) as error:
        raise click.ClickException(str(error)) from None


def check_store(url: str) -> None:
    """End with what is wrong with a store, if it cannot be opened."""
    store = _store(url)

    async def open_it() -> None:
        try:
            await store.open()
        finally:
            await store.aclose()

    run(open_it())


def named_store(url: str) -> InboxStore:
    """Return the store a URL names if other processes can see it, or end with what is wrong."""
    store = _store(url)
    if not isinstance(store, InboxStore):
        raise click.ClickException(
            "only its own process can see what is in memory://; name a store that is a file or a"
            " server"
        )
    return store


def with_store(url: str, use: Callable[[InboxStore], Awaitable[T]]) -> T:
    """Return what ``use`` returns for the store a URL names, or end with what is wrong."""
    store = named_store(url)
    # Not split before it was accepted: the error for what cannot be split may quote a password.
    if urlsplit(url).scheme == "sqlite":
        _check_is_there(Path(sqlite_path(url)))

    async def use_it() -> T:
        try:
            await store.open()
            return await use(store)
        finally:
            await store.aclose()

    return run(use_it())


def _check_is_there(file: Path) -> None:
    """End unless there is a file: opening it would create one, and hide a misspelt path."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise click.ClickException(f"there is no file {str(file)!r}") from None
    except OSError as error:
        raise click.ClickException(f"cannot look at {str(file)!r}: {error.strerror}") from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run what uses a store to its end, or end with what is wrong with the store."""
    try:
        return asyncio.run(work)
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def check_selection(event_ids: Sequence[str], event_type: str | None, *, every: bool) -> None:
    """End with the usage unless events are named in exactly one way."""
    if bool(event_ids) + bool(every) + bool(event_type) != 1:
        raise click.UsageError("name events by their ids, by --type, or --all")


class Page(NamedTuple):
    """Ids of dead letters, and whether none follow."""

    ids: tuple[str, ...]
    is_last: bool


async def pages_of_letters(
    listing: Callable[[int], Awaitable[Sequence[DeadLetter]]],
) -> AsyncIterator[Page]:
    """Yield dead letters of one endpoint, each once, though the list changes meanwhile.

    Args:
        listing: returns so many letters, oldest first.

    """
    seen: set[str] = set()
    limit, is_last = PAGE, False
    while not is_last:
        letters = await listing(limit)
        is_last = len(letters) < limit
        new = [e for e in (one.delivery.event_id for one in letters) if e not in seen]
        if new:
            yield Page(tuple(new), is_last)
        seen.update(new)
        if len(new) <= limit // 2:  # what was replayed in vain is listed again
            limit *= 2


async def for_each(
    event_ids: Sequence[str],
    endpoint: str,
    step: Callable[[DeliveryKey], Awaitable[str]],
    output: Output,
) -> set[str]:
    """Take a step for each event, many at the same time; print and return what came of them."""
    found = set()
    for start in range(0, len(event_ids), _AT_ONCE):
        some = event_ids[start : start + _AT_ONCE]
        results = await asyncio.gather(*(step(delivery_key(endpoint, e)) for e in some))
        for event_id, result in zip(some, results, strict=True):
            print_result(event_id, result, output)
        found.update(results)
    return found


def print_result(event_id: str, result: str, output: Output, style: str = "") -> None:
    """Print what came of one event."""
    output.record({"id": event_id, "result": result}, f"{event_id}: {result}", style)


def conclude(results: set[str], event_ids: Sequence[str], nothing: str, output: Output) -> None:
    """End with 1 if an event was not found that was named by its id.

    What a selection has found and somebody else has taken away meanwhile is no failure.
    """
    if not results:
        output.say(nothing)
    if event_ids and NOT_FOUND in results:
        raise SystemExit(1)
