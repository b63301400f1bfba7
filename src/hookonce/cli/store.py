"""``hookonce store``: back up a store."""

from __future__ import annotations

import click

from hookonce.stores.sqlite import SQLiteStore

from .output import Output, json_option, size_text
from .statuses import CannotBegin
from .stores import STORE_HELP, named_store, run, store_argument


@click.group(epilog=STORE_HELP)
def store() -> None:
    """Back up a store."""


@store.command()
@store_argument("FILE")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@json_option
def backup(store_url: str, event_ids: tuple[str, ...], *, overwrite: bool, as_json: bool) -> None:
    """Copy a SQLite store into FILE while other processes use the store.

    Only the file's owner can read the copy (mode 0600), because it holds the bodies of events. The
    copy appears at its path complete and on the disk, or not at all.
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
