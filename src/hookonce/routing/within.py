"""Runs a handler inside a transaction of a ledger (``within=``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar, cast

from ..effects.ledger import (
    AnyLedger,
    Latest,
    Ledger,
    SyncLedger,
    is_async_ledger,
    keeps_watermarks,
)
from ..effects.once import Once, Performed
from ..effects.table import HANDLER_CHARACTERS
from ..effects.threads import InThread, run_to_end
from ..effects.trial import RolledBack, roll_back
from ..errors import AlreadyDone
from ..events import Event
from ..logs import event_fields
from ..stores.finishes import Finish
from .context import Context
from .handler import described, is_async, is_context, takes_context
from .keyed import Keyed, TooLateError, watermark_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Within:
    """A user's function that runs in the transactions of a ledger.

    Both functions are async if the user's function is.

    Attributes:
        run: takes (event, context) and commits the transaction. Third, it takes the ``finish`` of
            ``Once.perform`` if the store is in the ledger's database.
        roll_back: takes (event, context, found) and rolls the transaction back; ``found`` is a
            ``RolledBack``. A handler with ``latest_by`` runs for every event, and the watermark is
            left as it is.
    """

    run: Callable[..., Any]
    roll_back: Callable[[Event[Any], Context, RolledBack], Any]


def within_ledger(
    ledger: AnyLedger[Any], function: Callable[..., Any], name: str, keyed: Keyed | None = None
) -> Within:
    """Return a handler that runs the function in the ledger's transactions.

    Args:
        ledger: records the effect.
        function: the user's function.
        name: the handler's name.
        keyed: the ``latest_by`` key function; with it ``Within.run`` raises TooLateError for an
            event that comes too late.

    Raises:
        TypeError: the ledger is not a ledger, has no watermarks, or does not fit the function.
        ValueError: the name is too long for the ledger's table.
    """
    if isinstance(ledger, type) or not (
        callable(getattr(ledger, "transaction", None)) and callable(getattr(ledger, "insert", None))
    ):
        raise TypeError(f"within= takes a ledger, such as SQLiteLedger('app.db'), not {ledger!r}")
    if len(name) > HANDLER_CHARACTERS:
        raise ValueError(
            f"the handler's name is longer than the {HANDLER_CHARACTERS} characters that a ledger"
            " records; register it with a shorter name=…"
        )
    if keyed is not None and not keeps_watermarks(ledger):
        raise TypeError(
            f"{type(ledger).__name__} keeps no watermarks, which latest_by needs; give it an"
            " advance() method, as in hookonce.effects.WatermarkLedger, or register the handler"
            " without latest_by"
        )
    with_context = takes_context(function, "event", "transaction")
    if any(map(is_context, list(inspect.signature(function).parameters.values())[1:2])):
        raise TypeError(
            f"{described(function)} takes a context as its second argument, but within a ledger it"
            " is called with (event, transaction, context)"
        )
    if is_async_ledger(ledger):
        if not is_async(function):
            raise TypeError(
                f"{described(function)} runs in a thread, but {type(ledger).__name__} is for async"
                " handlers; make the handler async, or use a ledger for threads"
            )
        return _steps(ledger, function, keyed, takes_context=with_context)
    if is_async(function):
        raise TypeError(
            f"{described(function)} is async, but {type(ledger).__name__} is for handlers that run"
            " in threads; make the handler a plain function, or use an async ledger"
        )
    threaded: InThread[Any] = InThread(cast("SyncLedger[Any]", ledger))
    steps = _steps(threaded, function, keyed, takes_context=with_context, awaits=False)

    @wraps(function)
    def run(
        event: Event[Any], context: Context, finish: Callable[[], Finish] | None = None
    ) -> None:
        run_to_end(steps.run(event, context, finish))

    def roll_back_run(event: Event[Any], context: Context, found: RolledBack) -> None:
        run_to_end(steps.roll_back(event, context, found))

    return Within(run, roll_back_run)


def _steps(
    ledger: Ledger[T],
    function: Callable[..., Any],
    keyed: Keyed | None,
    *,
    takes_context: bool,
    awaits: bool = True,
) -> Within:
    once = Once(ledger)

    def prepare(
        event: Event[Any], context: Context
    ) -> tuple[Callable[[T], Coroutine[Any, Any, None]], Latest | None]:
        """Return the function to run in a transaction, and the ``latest_by`` condition if any."""

        async def work(transaction: T) -> None:
            more = (replace(context, _is_within=True),) if takes_context else ()
            result = function(event, transaction, *more)
            # Await nested awaitables too: the work must end before the commit.
            while awaits and inspect.isawaitable(result):
                result = await result
            _check_has_run(result)

        latest = None
        if keyed is not None and (
            key_lock := keyed.key_lock(event, context.endpoint, context.handler)
        ):
            latest = Latest(key_lock, watermark_of(event), keyed.drop_ties, context.late)
        return work, latest

    @wraps(function)
    async def run(
        event: Event[Any], context: Context, finish: Callable[[], Finish] | None = None
    ) -> None:
        work, latest = prepare(event, context)
        fields = event_fields(
            context.endpoint,
            context.event_id,
            context.event_type,
            attempt=context.attempt,
            handler=context.handler,
        )
        performed = await once.perform(
            context.effect, work, latest, log_fields=fields, finish=finish
        )
        if performed is Performed.STALE:
            raise TooLateError
        if performed is Performed.BEFORE and context.generation:
            raise AlreadyDone(f"{context.handler} is already done for {context.event_id}")

    async def roll_back_run(event: Event[Any], context: Context, found: RolledBack) -> None:
        work, _ = prepare(event, context)
        await roll_back(ledger, context.handler, work, found)

    return Within(run, roll_back_run)


def _check_has_run(result: object) -> None:
    """Raise TypeError if the function returned work that has not run, and would miss the commit."""
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(
            f"the handler returned a {type(result).__name__}, so its work has not been done"
        )
