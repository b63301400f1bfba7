"""What registering returns, as type checkers see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

from ..effects.ledger import AnyLedger
from .context import Context

E = TypeVar("E")
L_co = TypeVar("L_co", bound=AnyLedger[Any] | None, covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class HandlerDecorator(Protocol[E, L_co]):
    """Takes a handler of the event, with or without a context, and gives it back unchanged.

    Within a ledger it takes a handler of the event and a transaction, with or without a context.
    """

    @overload
    def __call__(
        self: HandlerDecorator[E, None], handler: Callable[[E], R], /
    ) -> Callable[[E], R]: ...
    @overload
    def __call__(
        self: HandlerDecorator[E, None], handler: Callable[[E, Context], R], /
    ) -> Callable[[E, Context], R]: ...
    @overload
    def __call__(
        self: HandlerDecorator[E, AnyLedger[T]], handler: Callable[[E, T], R], /
    ) -> Callable[[E, T], R]: ...
    @overload
    def __call__(
        self: HandlerDecorator[E, AnyLedger[T]], handler: Callable[[E, T, Context], R], /
    ) -> Callable[[E, T, Context], R]: ...
