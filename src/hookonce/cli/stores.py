"""Stores that an operator names by their URL, for commands that need no code of the application."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from hookonce.clock import system_clock
from hookonce.errors import StoreError
from hookonce.stores import open_store, sqlite_path
from hookonce.stores.applications import RegisteringStore
from hookonce.stores.contract import InboxStore, Store

from .loading import load_receivers, stand_in_secrets
from .statuses import CannotBegin

T = TypeVar("T")

STORE_VARIABLE = "HOOKONCE_STORE"

STORE_HELP = f"""STORE_URL is what the receiver has as its store, for example
sqlite:///hookonce.db or redis://localhost:6379/0. Where it has a password in it, put it into the
environment variable {STORE_VARIABLE}, or into a file named by --store-file, and leave it out: every
user of the machine sees arguments."""
"""What the groups of commands that take a store say below their own help."""

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
store_file_option = click.option(
    "--store-file",
    type=_file,
    help="Read the URL of --store from this file: every user of the machine sees arguments.",
)
endpoint_option = click.option(
    "--endpoint", help="Only at this endpoint; by default at all that the store has."
)


def store_argument(ids: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take a store, as ``store_url``, and ids of events, as ``event_ids``.

    It is named by its URL, or by the receivers that have it, MODULE:NAME. It is the first argument,
    in the file of --store-file, or in the environment. With a file
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
    """End with what is wrong with a store, if it cannot be opened."""
    store = _store(url)

    async def open_it() -> None:
        try:
            await store.open()
        finally:
            await store.aclose()

    run(open_it())


# A receiver's name, as against a URL.
_TARGET = re.compile(r"[\w.]+:[\w.]+")


def is_target(word: str) -> bool:
    """Return whether a word names receivers, MODULE:NAME, and no store."""
    return _TARGET.fullmatch(word) is not None


def named_store(url: str) -> InboxStore:
    """Return the store a URL names if other processes can see it, or end with what is wrong.

    MODULE:NAME stands for the store of the receivers it names.
    """
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
        raise CannotBegin(
            "only its own process can see what is in memory://; name a store that is a file or a"
            " server"
        )
    return store


def with_store(url: str, use: Callable[[InboxStore], Awaitable[T]]) -> T:
    """Return what ``use`` returns for the store a URL names, or end with what is wrong."""
    store = named_store(url)
    # Not split before it was accepted: the error for what cannot be split may quote a password.
    if not is_target(url) and urlsplit(url).scheme == "sqlite":
        _check_is_there(Path(sqlite_path(url)))

    async def use_it() -> T:
        try:
            await store.open()
            return await use(store)
        finally:
            await store.aclose()

    return run(use_it())


def _check_is_there(file: Path) -> None:
    """End unless there is a store: opening the file would make one, and hide a misspelt path.

    Who owns the folder could also have put a link there to an empty file of another user.
    """
    try:
        is_empty = not file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise CannotBegin(f"there is no file {str(file)!r}") from None
    except OSError as error:
        raise CannotBegin(f"cannot look at {str(file)!r}: {error.strerror}") from None
    if is_empty:
        raise CannotBegin(f"the file {str(file)!r} is empty, and so no store yet")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run what uses a store to its end, or end with what is wrong with the store."""
    try:
        return asyncio.run(work)
    except StoreError as error:
        raise CannotBegin(str(error)) from error
