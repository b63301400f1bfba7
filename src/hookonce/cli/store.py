"""``hookonce store``: the store as a whole."""

from __future__ import annotations

import click

from hookonce.stores.sqlite import SQLiteStore

from .output import Output, json_option, size_text
from .statuses import CannotBegin
from .stores import STORE_HELP, named_store, run, store_argument


@click.group(epilog=STORE_HELP)
def store() -> None:
    """Look after a store as a whole."""


@store.command()
@store_argument("FILE")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it is there.")
@json_option
def backup(store_url: str, event_ids: tuple[str, ...], *, overwrite: bool, as_json: bool) -> None:
    """Copy a SQLite store into FILE, while every process goes on using the store.

    The copy has mode 0600, since it holds the bodies of events. It appears at its path complete
    and on the disk, or not at all.
    """
    if len(event_ids) != 1:
        raise click.UsageError("name the store, and one FILE for the copy")
    [file] = event_ids
    source = named_store(store_url)
    if not isinstance(source, SQLiteStore):
        raise CannotBegin("this copies SQLite stores; back up Redis as its manual says")
    size = run(source.backup(file, overwrite=overwrite))
    Output(as_json=as_json).record(
        {"file": file, "bytes": size}, f"copied the store to {file} ({size_text(size)})"
    )
