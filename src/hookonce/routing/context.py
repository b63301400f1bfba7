"""``Context``: the facts about an event, an attempt and a raw body, for a handler."""

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
        key: identifies the event that is handled once: ``endpoint:webhook-id``.
        endpoint: the name of the receiving endpoint.
        event_id: the webhook-id.
        event_type: the type named in the signed body.
        handler: the name under which this handler's success is remembered.
        attempt: our own number of this attempt, from 1.
        delivery_attempt: the sender's number of the attempt, from 1; only a hint, because it is
            unsigned. None if the sender sent none, and always for an event from the inbox.
        last_chance: whether the event becomes a dead letter if this attempt fails.
        is_replay: whether an operator replays a dead letter or a handled event.
        generation: the number of the replay of a handled event, which repeats the handler's effect
            on purpose: a ledger records the effect once for each generation. 0 otherwise.
        late: whether ``latest_by`` lets this replay run even if a newer event has succeeded.
        new_key: whether the idempotency key of this replay differs from that of earlier runs.
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
    generation: int = 0
    late: bool = False
    new_key: bool = False
    _is_within: bool = field(default=False, repr=False)  # whether a ledger records the effect

    @property
    def received_at(self) -> datetime:
        """The time at which the delivery arrived, as an aware UTC ``datetime``."""
        return utc(self.received_unix)

    @property
    def idempotency_key(self) -> str:
        """An idempotency key for APIs that you call; the same for every attempt of this handler.

        A replay with ``new_key`` has another key, which is the same for its attempts.

        If the process crashes after an effect but before the store records it, the handler runs
        again. By this key a payment provider or a database recognises the repeated effect.
        """
        # Colons separate the parts. If the id contained an unescaped colon, two effects could get
        # the same key.
        event_id = self.event_id.replace("%", "%25").replace(":", "%3A")
        if self.new_key:
            # The key stays unique, because a webhook-id contains no full stop.
            event_id = f"{event_id}.{self.generation}"
        return f"{self.endpoint}:{event_id}:{self.handler}"

    @property
    def effect(self) -> Effect:
        """The row that a ledger records for this handler and event."""
        return Effect(self.endpoint, self.event_id, self.handler, self.generation)

    async def record_in(self, connection: object, *, table: str = TABLE) -> None:
        """Record this handler's effect in your own transaction, whose commit finishes the handler.

        Call it first in the transaction, so that a second attempt waits for the first::

            async with sessions.begin() as session:
                await context.record_in(session)
                session.add(…)

        Args:
            connection: an async session or connection of SQLAlchemy, psycopg 3, asyncpg or
                aiosqlite, in a transaction.
            table: the ledger's table.

        Raises:
            AlreadyDone: the effect was committed before. Do not catch it: the transaction is rolled
                back, and the handler counts as succeeded.
            LedgerError: the connection is in no transaction, or has committed too early; or the
                handler is registered with ``within=``. SQLAlchemy's COMMIT raises it if the record
                is no longer in the transaction.
        """
        self._check_own_transaction()
        await record_in(connection, self.effect, table)

    def record_in_sync(self, connection: object, *, table: str = TABLE) -> None:
        """Record this handler's effect like ``record_in``, in a handler that runs in a thread.

        Args:
            connection: a session or connection of SQLAlchemy, psycopg 3, sqlite3 or Django
                (``django.db.connection``), in a transaction.
            table: the ledger's table.

        Raises:
            AlreadyDone: the effect was committed before. Do not catch it.
            LedgerError: as for ``record_in``; with Django the end of ``transaction.atomic()``
                raises it.
        """
        self._check_own_transaction()
        record_in_sync(connection, self.effect, table)

    def _check_own_transaction(self) -> None:
        # The ledger has inserted the row already; `record_in` would take it for an earlier success.
        if self._is_within:
            raise LedgerError(
                f"{self.handler} runs within a ledger, which records its effect already; remove the"
                " call of record_in, or remove within= from the registration"
            )
