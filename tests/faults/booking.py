"""One handler within each ledger on PostgreSQL; some attempts break their transactions.

A ledger is a table in the user's database. The transaction of a handler's effect also writes a row
into the ledger. The row says that the handler has handled the event.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from effects.benches import ON_POSTGRES
from effects.breaking import BROKEN_IN_POSTGRES, Way, handler_of

from hookonce import Receiver
from hookonce.events import CommentReceived

from .journal import Writer

__all__ = ["LEDGERS", "booking"]

LEDGERS = list(ON_POSTGRES)
"""The names of the ledgers, which are also those of the handlers."""

_BROKEN = 0.1
"""The probability that an attempt breaks its transaction."""

_MOST_BROKEN = 2
"""Only the first attempts may break, up to this number: more failures make a dead letter."""


@asynccontextmanager
async def booking(receiver: Receiver, database: str, journal: Writer) -> AsyncIterator[None]:
    """Register a handler within each ledger; each handler writes one row for each event.

    Args:
        receiver: the receiver, before it is opened.
        database: the URL of a PostgreSQL with the ledger's tables and a table ``done``.
        journal: notes each broken attempt.

    """
    register: Callable[..., Any] = receiver.on
    async with AsyncExitStack() as opened:
        for name in LEDGERS:
            parts = await opened.enter_async_context(ON_POSTGRES[name](database, time.time))
            on = register(CommentReceived, name=name, within=parts["ledger"])
            on(handler_of(parts, _chooser(name, journal), partial(_key_of, name)))
        yield


def _key_of(name: str, event: CommentReceived) -> str:
    return f"{event.id} {name}"


def _chooser(name: str, journal: Writer) -> Callable[[CommentReceived], Way | None]:
    """Return a function that decides whether to break an attempt of a handler, and in which way."""
    attempts: Counter[str] = Counter()

    def choose(event: CommentReceived) -> Way | None:
        attempts[event.id] += 1
        number = attempts[event.id]
        if number > _MOST_BROKEN or random.random() >= _BROKEN:
            return None
        journal.write("begin", event.id, name, number)
        journal.write("fail", event.id, name, number)
        return random.choice(BROKEN_IN_POSTGRES)

    return choose
