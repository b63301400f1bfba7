"""What registering returns, as type checkers see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, overload

from .context import Context

__all__ = ["HandlerDecorator", "TransactionDecorator"]

E = TypeVar("E")
T = TypeVar("T")
R = TypeVar("R")


class HandlerDecorator(Protocol[E]):
    """Takes a handler of the event, with or without a context, and gives it back unchanged."""

    @overload
    def __call__(self, handler: Callable[[E], R], /) -> Callable[[E], R]: ...
    @overload
    def __call__(self, handler: Callable[[E, Context], R], /) -> Callable[[E, Context], R]: ...


class TransactionDecorator(Protocol[E, T]):
    """Takes a handler of the event and a ledger's transaction, and gives it back unchanged.

    With a context as third argument, or without one.
    """

    @overload
    def __call__(self, handler: Callable[[E, T], R], /) -> Callable[[E, T], R]: ...
    @overload
    def __call__(
        self, handler: Callable[[E, T, Context], R], /
    ) -> Callable[[E, T, Context], R]: ...
