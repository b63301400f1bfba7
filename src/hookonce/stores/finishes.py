"""Lets the commit of a handler's transaction also record the handler's success in the store.

A ledger in the store's database adds an SQL expression, the finish, to its last statement. The
finish of the last handler completes the event, so a crash after the commit leaves nothing to do.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from .values import Claimed

CLAIM_LOST = "HK001"
"""The SQLSTATE with which ``Finish.call`` fails if another attempt owns the event."""


class Finish(NamedTuple):
    """The SQL expression that a ledger adds to the last statement of a handler's transaction.

    Attributes:
        call: an SQL expression, with ``{}`` for each value. It records the handler's success and
            keeps other attempts from the event until the transaction ends. It fails if another
            attempt owns the event.
        values: the values, in this order.
    """

    call: str
    values: tuple[str, ...]


@runtime_checkable
class FinishingStore(Protocol):
    """A store that lets a transaction in its database record the success of a handler."""

    def finish(self, claim: Claimed, handler: str, others: frozenset[str]) -> Finish:
        """Return the SQL that records the success of a handler.

        The event is done when the finish of a handler and those of all its ``others`` are
        committed. A claim whose lease has expired still owns the event, until another attempt
        claims it.

        Args:
            claim: the attempt's claim.
            handler: the name of the handler.
            others: the other handlers of the event that are not known to have succeeded.
        """
        ...
