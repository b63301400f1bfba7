"""Records an effect in the user's own transaction, with the ledger module of its driver."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..clock import system_clock
from ..errors import AlreadyDone
from .ledger import Effect

_MODULES = {
    "aiosqlite": "aiosqlite",
    "asyncpg": "asyncpg",
    "django": "django",
    "psycopg": "psycopg",
    "sqlalchemy": "sqlalchemy",
    "sqlite3": "sqlite",
}


async def record_in(connection: object, effect: Effect, table: str) -> None:
    """Record an effect; see ``Context.record_in``."""
    record = _function("record_in", connection, "it is one for threads; call record_in_sync")
    if not await record(connection, table, effect, system_clock()):
        raise _done(effect)


def record_in_sync(connection: object, effect: Effect, table: str) -> None:
    """Record an effect; see ``Context.record_in_sync``."""
    record = _function("record_in_sync", connection, "it is async; await record_in")
    if not record(connection, table, effect, system_clock()):
        raise _done(effect)


def _function(name: str, connection: object, otherwise: str) -> Any:
    for cls in type(connection).__mro__:
        module = _MODULES.get(cls.__module__.partition(".")[0])
        if module is not None:
            function = getattr(import_module(f".{module}", __package__), name, None)
            if function is None:
                raise TypeError(
                    f"{name} cannot record in a {type(connection).__name__}: {otherwise}"
                )
            return function
    raise TypeError(
        f"{name} takes a session or connection of SQLAlchemy, psycopg 3, asyncpg, Django, sqlite3"
        f" or aiosqlite, not {type(connection).__name__}"
    )


def _done(effect: Effect) -> AlreadyDone:
    return AlreadyDone(f"{effect.handler} is already done for {effect.event_id}")
