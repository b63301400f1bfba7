"""The context that a handler receives: which event, which attempt, and the raw body."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ..clock import utc
from ..effects.ledger import Effect
from ..effects.recording import record_in, record_in_sync
from ..effects.table import TABLE
from ..errors import LedgerError
from ..stores.values import DeliveryKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Details of one attempt, passed to a handler.

    Attributes:
        key: what is handled once: ``endpoint:webhook-id``.
        endpoint: the name of the receiving endpoint.
        event_id: the webhook-id.
        event_type: the type named in the signed body.
        handler: the name under which this handler's success is remembered.
        attempt: our own count of runs of this event, from 1.
        delivery_attempt: the sender's count, from 1, or None, as always for an event of the inbox;
            unsigned, so only a hint.
        last_chance: whether a failure now makes the event a dead letter, by a count and by what the
            sender has signed.
        is_replay: whether an operator replays a dead letter.
        received_unix: when the delivery arrived, in Unix seconds.
        body: the raw bytes that were signed.

    """

    key: DeliveryKey
    endpoint: str
    event_id: str
    event_type: str
    handler: str
    attempt: int
    delivery_attempt: int | None
    last_chance: bool
    is_replay: bool
    received_unix: float
    body: bytes = field(repr=False)
    _is_within: bool = field(default=False, repr=False)  # a ledger, which records the effect

    @property
    def received_at(self) -> datetime:
        """When the delivery arrived, as an aware ``datetime``."""
        return utc(self.received_unix)

    @property
    def idempotency_key(self) -> str:
        """The same for every run of this handler on this event; pass it to what you call.

        After a crash between an effect and its record a handler runs again, and a payment provider
        or a database can tell by this key that it has seen the effect before.
        """
        # A colon in both the id and a handler's name would give two effects one key.
        event_id = self.event_id.replace("%", "%25").replace(":", "%3A")
        return f"{self.endpoint}:{event_id}:{self.handler}"

    @property
    def effect(self) -> Effect:
        """The row that a ledger records for this handler and event."""
        return Effect(self.endpoint, self.event_id, self.handler)

    async def record_in(self, connection: object, *, table: str = TABLE) -> None:
        """Record this handler's effect in your own transaction, whose commit makes it done.

        Call it first in the transaction, so that a second run waits for the first::

            async with sessions.begin() as session:
                await context.record_in(session)
                session.add(…)

        Args:
            connection: an async session or connection of SQLAlchemy, psycopg 3, asyncpg or
                aiosqlite, in a transaction.
            table: the ledger's table.

        Raises:
            AlreadyDone: the effect was committed before. Let it pass: the transaction is rolled
                back, and the handler has succeeded.
            LedgerError: the connection is in no transaction, the handler is within a ledger, or it
                was and has committed before its end. The COMMIT of a session or connection of
                SQLAlchemy raises it if the record is not in the transaction any more.

        """
        self._check_own_transaction()
        await record_in(connection, self.effect, table)

    def record_in_sync(self, connection: object, *, table: str = TABLE) -> None:
        """Do the same in a handler that runs in a thread.

        Args:
            connection: a session or connection of SQLAlchemy, psycopg 3, sqlite3 or Django
                (``django.db.connection``), in a transaction.
            table: the ledger's table.

        Raises:
            AlreadyDone: the effect was committed before. Let it pass.
            LedgerError: as above; of Django's, the end of ``transaction.atomic()`` raises it.

        """
        self._check_own_transaction()
        record_in_sync(connection, self.effect, table)

    def _check_own_transaction(self) -> None:
        # The ledger has inserted the row already; `record_in` would take it for an earlier success.
        if self._is_within:
            raise LedgerError(
                f"{self.handler} is within a ledger, which records its effect; take record_in out"
                " of it, or within= out of its registration"
            )
