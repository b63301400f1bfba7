"""Options that name a store: by its URL, or by a receiver that uses it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from hookonce.clock import system_clock
from hookonce.errors import StoreError
from hookonce.stores import open_store
from hookonce.stores.applications import RegisteringStore
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import InboxStore, Store

from .loading import load_receivers, stand_in_secrets
from .output import Option
from .statuses import CannotBegin

T = TypeVar("T")

STORE_VARIABLE = "HOOKONCE_STORE"

STORE_HELP = f"""STORE_URL is the URL of the receiver's store, for example sqlite:///hookonce.db,
postgresql://localhost/hooks or redis://localhost:6379/0. MODULE:RECEIVER in its place names a
receiver that uses the store. Every user of the machine can see arguments: put a URL with a password
into the environment variable {STORE_VARIABLE}, or into a file named by --store-file."""
"""The help text about stores, for every group of commands that takes a store."""

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


def store_file_option_for(option: str) -> Option:
    """Return the option ``--store-file``: a file that contains the URL, in place of ``option``."""
    return click.option(
        "--store-file",
        type=_file,
        help=f"A file with the URL of {option}. Every user of the machine can see arguments.",
    )


store_file_option: Option = store_file_option_for("--store")
endpoint_option: Option = click.option(
    "--endpoint", help="Only at this endpoint; by default at all endpoints in the store."
)


def store_argument(ids: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the parameters ``store_url`` and ``event_ids`` to a command.

    The store is a URL or MODULE:NAME, a receiver that uses it. It is the first argument, in the
    file of --store-file, or in the environment. With a file, every argument is an id. With the
    environment, every argument that is not a URL is an id.

    Args:
        ids: the name of the ids in the help; without it the command takes no ids.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument("words", metavar=f"[STORE_URL] {ids}".rstrip(), nargs=-1)
        @click.option(
            "--store-file",
            type=_file,
            help=f"A file with STORE_URL; without both, STORE_URL is ${STORE_VARIABLE}. Every user"
            " of the machine can see arguments.",
        )
        @wraps(command)
        def named(words: tuple[str, ...], store_file: Path | None, **options: object) -> None:
            url, event_ids = _named(words, store_file)
            if ids:
                options["event_ids"] = event_ids
            elif event_ids:
                raise click.UsageError(f"{event_ids[0]!r} is one argument too many")
            command(store_url=url, **options)

        return named

    return decorated


def _named(words: tuple[str, ...], store_file: Path | None) -> tuple[str, tuple[str, ...]]:
    """Return the URL or receiver that names the store, and the remaining arguments."""
    in_environment = os.environ.get(STORE_VARIABLE)
    if store_file is not None:
        return _url_in(store_file), words
    if in_environment and not (words and "://" in words[0]):
        return in_environment, words
    if not words:
        raise click.UsageError(
            f"name the store: STORE_URL, MODULE:RECEIVER, --store-file, or ${STORE_VARIABLE} in the"
            " environment"
        )
    return words[0], words[1:]


def chosen_url(url: str | None, file: Path | None, option: str = "--store") -> str | None:
    """Return the URL of an option or of --store-file; None if neither is given.

    A command with these options ignores the environment variable: a trial must not write into the
    store that the variable names for other commands.
    """
    if url is not None and file is not None:
        raise click.UsageError(f"name the store by {option} or by --store-file")
    return url if file is None else _url_in(file)


def _url_in(file: Path) -> str:
    """Return the URL in a file, or exit with an error that does not quote the file."""
    try:
        words = file.read_text("utf-8").split()
    except OSError as error:
        raise CannotBegin(f"cannot read {str(file)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        words = []
    if len(words) != 1:
        raise CannotBegin(f"{str(file)!r} has to hold the URL of a store, and nothing else")
    return words[0]


def _store(url: str) -> Store:
    try:
        return open_store(url, clock=system_clock)
    except (ValueError, ImportError) as error:
        raise CannotBegin(str(error)) from None


def check_store(url: str) -> None:
    """Open and close the store; exit with an error if that fails."""
    store = _store(url)

    async def open_it() -> None:
        try:
            await store.open()
        finally:
            await store.aclose()

    run(open_it())


_IN_MEMORY = (
    "only its own process can see what is in memory://; name a store in a file or on a server"
)

# The form of MODULE:NAME. No store's URL has this form.
_TARGET = re.compile(r"[\w.]+:[\w.]+")


def is_target(word: str) -> bool:
    """Return whether a word has the form MODULE:NAME, which no store's URL has."""
    return _TARGET.fullmatch(word) is not None


def named_store(url: str) -> InboxStore:
    """Return the store that a URL or MODULE:NAME names; exit if the store is in memory."""
    if is_target(url):
        with stand_in_secrets():
            stores = [receiver.store for receiver in load_receivers(url)]
        places = {s.place if isinstance(s, RegisteringStore) else s for s in stores}
        if len(places) > 1:
            raise CannotBegin(f"the receivers of {url} have {len(places)} stores; name one of them")
        store = stores[0]
    else:
        store = _store(url)
    if not isinstance(store, InboxStore):
        raise CannotBegin(_IN_MEMORY)
    return store


def with_store(url: str, use: Callable[[InboxStore], Awaitable[T]]) -> T:
    """Return the result of ``use`` for the store; exit with an error if the store fails."""
    store = named_store(url)
    use_existing(store)

    async def use_it() -> T:
        try:
            await store.open()
            return await use(store)
        finally:
            await store.aclose()

    return run(use_it())


def use_existing(store: object) -> None:
    """Print the name of the store; exit if opening the store would create its file.

    A new store would hide a wrong path, or a variable that is set for the service but not here. An
    empty file is refused too: the folder's owner could link to an empty file of another user.
    """
    click.echo(f"store: {store}", err=True)
    if isinstance(store, MemoryStore):
        raise CannotBegin(_IN_MEMORY)
    file = store.place if isinstance(store, RegisteringStore) else None
    if not isinstance(file, Path):
        return
    try:
        is_empty = not file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise CannotBegin(
            f"there is no file {str(file)!r}; name the service's store, or run this command with"
            " the service's settings and in its folder"
        ) from None
    except OSError as error:
        raise CannotBegin(f"cannot look at {str(file)!r}: {error.strerror}") from None
    if is_empty:
        raise CannotBegin(f"the file {str(file)!r} is empty, so it is not a store yet")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine; exit with an error if the store fails."""
    try:
        return asyncio.run(work)
    except StoreError as error:
        raise CannotBegin(str(error)) from error
