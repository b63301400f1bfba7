"""Stores that an operator names by their URL, for commands that need no code of the application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

from hookonce.clock import system_clock
from hookonce.errors import StoreError
from hookonce.stores import open_store, sqlite_path
from hookonce.stores.contract import InboxStore
from hookonce.stores.values import DeadLetter, DeliveryKey, delivery_key

__all__ = [
    "PAGE",
    "Page",
    "check_selection",
    "endpoint_option",
    "for_each",
    "named_store",
    "pages_of_letters",
    "run",
    "store_argument",
    "with_store",
]

T = TypeVar("T")

PAGE = 500
"""How many dead letters are listed at a time, since a store may do nothing else meanwhile."""

# So many calls at the same time share a commit, or a round trip.
_AT_ONCE = 256

store_argument = click.argument("store_url", metavar="STORE_URL")
endpoint_option = click.option(
    "--endpoint", default="default", show_default=True, help="The name of the endpoint."
)


def named_store(url: str) -> InboxStore:
    """Return the store a URL names if other processes can see it, or end with what is wrong."""
    try:
        store = open_store(url, clock=system_clock)
    except (ValueError, ImportError) as error:
        raise click.ClickException(str(error)) from None
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
    if urlsplit(url).scheme == "sqlite" and not Path(path := sqlite_path(url)).exists():
        # Opening it would create an empty one, and hide a misspelt path.
        raise click.ClickException(f"there is no file {path!r}")

    async def use_it() -> T:
        try:
            await store.open()
            return await use(store)
        finally:
            await store.aclose()

    return run(use_it())


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
    event_ids: Sequence[str], endpoint: str, step: Callable[[DeliveryKey], Awaitable[T]]
) -> AsyncIterator[tuple[str, T]]:
    """Take a step for each event, many at the same time, and yield its id with what came of it."""
    for start in range(0, len(event_ids), _AT_ONCE):
        some = event_ids[start : start + _AT_ONCE]
        results = await asyncio.gather(*(step(delivery_key(endpoint, e)) for e in some))
        for event_id, result in zip(some, results, strict=True):
            yield event_id, result
