"""Checks of the handlers' ledgers before the first event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..effects.ledger import AnyLedger, InFiles, InUse, finishes_events
from ..effects.probe import check, shares_database
from ..errors import LedgerError, StoreError
from ..logs import get_logger
from ..routing.handler import Handler
from ..stores.finishes import FinishingStore
from ..stores.paths import file_of_database, is_same_file
from ..stores.protocols import Claims
from ..stores.time_limit import OutOfTimeError, limited
from ..stores.values import Claimed, delivery_key, new_token

_log = get_logger("hookonce.effects")

# Limit the check's duration: a driver's pool may wait half a minute or longer for a connection.
_CHECK_SECONDS = 10.0
_CHECK_ENDPOINT = "hookonce.check"

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
    """Return an error text if the ledger uses the store's file, else None; opens no file."""
    if store_file is None or not isinstance(ledger, InFiles):
        return None
    files = [file for name in ledger.databases if (file := file_of_database(name)) is not None]
    if not any(is_same_file(file, store_file) for file in files):
        return None
    return (
        f"{type(ledger).__name__} is in the store's own file {store_file}, and two SQLite"
        " libraries in one process would damage the file"
    )


async def ledgers_that_share(
    handlers: Iterable[Handler], store: Claims
) -> dict[int, AnyLedger[Any]]:
    """Return the ledgers whose commits can finish events of the store; the key is ``id(ledger)``.

    The store grants a claim for this check, and releases it afterwards. A ledger that finds the
    claim is in the store's database.
    """
    ledgers = [ledger for ledger in ledgers_of(handlers) if finishes_events(ledger)]
    if not ledgers or not isinstance(store, FinishingStore):
        return {}
    token = new_token()
    key = delivery_key(_CHECK_ENDPOINT, token)
    sharing: dict[int, AnyLedger[Any]] = {}
    try:
        claim = await store.claim(key, token, lease=_CHECK_SECONDS * len(ledgers))
        if not isinstance(claim, Claimed):
            return {}
        finish = store.finish(claim, "check", frozenset())
        for ledger in ledgers:
            async with ledger.in_use() if isinstance(ledger, InUse) else nullcontext():
                if await limited(_CHECK_SECONDS, shares_database(ledger, finish)):
                    sharing[id(ledger)] = ledger
        await store.release(claim, frozenset(), began=False)
    except (StoreError, OutOfTimeError) as error:
        _log.warning("could not find out which ledgers share the store's database: %s", error)
    return sharing


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
