"""``hookonce store``: back up a store, restore it, raise its format, and print its tables."""

from __future__ import annotations

from importlib import import_module

import click

from hookonce.stores.formats import UpgradableStore, Upgrade
from hookonce.stores.protocols import InboxStore
from hookonce.stores.sqlite import SQLiteStore

from .output import Output, json_option, size_text
from .statuses import CannotBegin
from .stores import STORE_HELP, named_store, run, store_argument, with_store


@click.group(epilog=STORE_HELP)
def store() -> None:
    """Back up a store, restore it, and raise its format after an upgrade of hookonce."""


@store.command()
@store_argument("FILE")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@json_option
def backup(store_url: str, event_ids: tuple[str, ...], *, overwrite: bool, as_json: bool) -> None:
    """Copy a SQLite store into FILE while other processes use the store.

    Only the file's owner can read the copy (mode 0600), because it holds the bodies of events. The
    copy appears at its path complete and on the disk, or not at all.
    """
    source, file = _sqlite_store(store_url), _one_file(event_ids)
    size = run(source.backup(file, overwrite=overwrite))
    Output(as_json=as_json).record(
        {"file": file, "bytes": size}, f"copied the store to {file} ({size_text(size)})"
    )


@store.command()
@store_argument("FILE")
@click.option("--overwrite", is_flag=True, help="Move an existing store aside.")
@json_option
def restore(store_url: str, event_ids: tuple[str, ...], *, overwrite: bool, as_json: bool) -> None:
    """Make a SQLite store from FILE, a backup.

    First stop the processes that use the store. The store has mode 0600; if root restores it, it
    belongs to the owner of the old file, or of the folder. FILE is not changed.

    Events that were handled after the backup are handled again if they are delivered again; find
    missed events with hookonce reconcile.
    """
    target, file = _sqlite_store(store_url), _one_file(event_ids)
    size, aside = run(target.restore(file, overwrite=overwrite))
    line = f"restored {target.path} from {file} ({size_text(size)})"
    if aside is not None:
        line += f"; the old store is {aside}"
    record = {"file": str(target.path), "bytes": size, "old": aside and str(aside)}
    Output(as_json=as_json).record(record, line)


@store.command()
@store_argument()
@json_option
def upgrade(store_url: str, *, as_json: bool) -> None:
    """Raise the format of a store to the newest that this version of hookonce knows.

    A new version writes the format that it finds, so that processes of the previous version can use
    the store too, and you can go back to that version. Run this command when every process runs the
    new version. Afterwards, processes of the previous version answer 503.

    The command refuses to run while a process of the previous version uses the store. You can
    repeat it at any time.
    """

    async def raise_format(store: InboxStore) -> Upgrade:
        if not isinstance(store, UpgradableStore):
            raise CannotBegin("this store is none of hookonce's own; upgrade it as its author says")
        return await store.upgrade()

    done = with_store(store_url, raise_format)
    line = f"the store has the newest format, {done.after}"
    if done.before != done.after:
        line = f"raised the store from format {done.before} to {done.after}"
    Output(as_json=as_json).record({"before": done.before, "after": done.after}, line)


@store.command()
@click.option(
    "--schema", default="hookonce", show_default=True, help="The schema of the store's URL."
)
def sql(schema: str) -> None:
    """Print the SQL that creates the tables of a PostgreSQL store.

    A role that may create a schema needs no SQL: the store creates its tables. Otherwise the owner
    runs this SQL, and grants the receiver's role USAGE on the schema, and SELECT, INSERT, UPDATE,
    DELETE and TRUNCATE on all its tables.
    """
    try:
        postgres = import_module("hookonce.stores.postgres")
        text: str = postgres.schema_sql(schema)
    except (ValueError, ImportError) as error:
        raise CannotBegin(str(error)) from None
    click.echo(text.strip())


def _sqlite_store(url: str) -> SQLiteStore:
    store = named_store(url)
    if not isinstance(store, SQLiteStore):
        raise CannotBegin(
            "this command copies SQLite stores; back up PostgreSQL or Redis as its manual says, for"
            " example with pg_dump"
        )
    return store


def _one_file(words: tuple[str, ...]) -> str:
    if len(words) != 1:
        raise click.UsageError("name the store, and one FILE")
    return words[0]
