"""Checks of the handlers' ledgers before the first event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..effects.ledger import AnyLedger, InFiles, InUse
from ..effects.probe import check
from ..errors import LedgerError
from ..routing.handler import Handler
from ..stores.paths import file_of_database, is_same_file
from ..stores.time_limit import OutOfTimeError, limited

# A driver's pool may wait half a minute or longer for a connection.
_CHECK_SECONDS = 10.0

OWN_FILE = "give the ledger another file than the store's"
"""The advice for a ledger in the store's file."""


def ledgers_of(handlers: Iterable[Handler]) -> list[AnyLedger[Any]]:
    """Return the ledgers of these handlers, each once."""
    ledgers = {id(handler.ledger): handler.ledger for handler in handlers}
    return [ledger for ledger in ledgers.values() if ledger is not None]


@asynccontextmanager
async def ledgers_in_use(handlers: Iterable[Handler]) -> AsyncIterator[None]:
    """Keep the connections of the handlers' ledgers open during the block."""
    async with AsyncExitStack() as stack:
        for ledger in ledgers_of(handlers):
            if isinstance(ledger, InUse):
                await stack.enter_async_context(ledger.in_use())
        yield


async def check_ledgers(
    handlers: Iterable[Handler], store_retention: float | None, store_file: Path | None = None
) -> None:
    """Check that every ledger of these handlers can record effects.

    Args:
        handlers: all handlers of a receiver.
        store_retention: how long the store remembers a handled event, in seconds, if known.
        store_file: the store's file, if the store is a file.

    Raises:
        LedgerError: a ledger cannot record effects, or forgets them earlier than the store; the
            message says what to do.
    """
    for ledger in ledgers_of(handlers):
        if (shared := shared_file_fault(ledger, store_file)) is not None:
            raise LedgerError(f"{shared}; {OWN_FILE}")
        await check_ledger(ledger, store_retention)


def shared_file_fault(ledger: AnyLedger[Any], store_file: Path | None) -> str | None:
    """Return a message if a ledger is in the store's file, else None, without opening the file."""
    if store_file is None or not isinstance(ledger, InFiles):
        return None
    files = [file for name in ledger.databases if (file := file_of_database(name)) is not None]
    if not any(is_same_file(file, store_file) for file in files):
        return None
    return (
        f"{type(ledger).__name__} is in the store's own file {store_file}, and two SQLite"
        " libraries in one process would damage the file"
    )


async def check_ledger(ledger: AnyLedger[Any], store_retention: float | None) -> None:
    """Check one ledger; see ``check_ledgers``."""
    name = type(ledger).__name__
    if store_retention is not None and ledger.retention_seconds < store_retention:
        kept, known = (
            f"{timedelta(seconds=seconds) / timedelta(days=1):g} days"
            for seconds in (ledger.retention_seconds, store_retention)
        )
        raise LedgerError(
            f"{name} keeps its rows for {kept}, and the store remembers handled events for {known};"
            " give the ledger a retention no shorter than the store's"
        )
    try:
        async with ledger.in_use() if isinstance(ledger, InUse) else nullcontext():
            await limited(_CHECK_SECONDS, check(ledger))
    except OutOfTimeError:
        raise LedgerError(
            f"{name} did not answer within {_CHECK_SECONDS:g} s; does its database run, and at the"
            " address that the application has?"
        ) from None
