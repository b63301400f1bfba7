"""Stores that pass each call of the contract on to another store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..errors import shows_half_built
from .handled import HandledStore
from .protocols import InboxStore, Store

P = ParamSpec("P")
T = TypeVar("T")


def _passed(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Wrapped, P], Coroutine[Any, Any, T]]:
    name = method.__name__

    @wraps(method)
    async def passed(self: Wrapped, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.call(name, partial(getattr(self.inner, name), *args, **kwargs))

    return passed


@shows_half_built
class Wrapped:
    """A store that passes every call of the contract on to another store, through ``call``.

    Args:
        inner: the other store.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.inner).__name__})"

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002 - a subclass may use the name
        """Call the other store; a subclass may act before and after the call.

        Args:
            name: the name of the called method.
            call: calls the same method of the other store.
        """
        return await call()

    @property
    def keeps_bodies(self) -> bool:
        """Whether the wrapped store keeps bodies."""
        return self.inner.keeps_bodies

    open = _passed(Store.open)
    warnings = _passed(Store.warnings)
    aclose = _passed(Store.aclose)
    claim = _passed(Store.claim)
    extend = _passed(Store.extend)
    complete = _passed(Store.complete)
    release = _passed(Store.release)
    keep = _passed(Store.keep)
    keep_in_flight = _passed(Store.keep_in_flight)
    bury = _passed(Store.bury)
    acquire_key_lock = _passed(Store.acquire_key_lock)
    release_key_lock = _passed(Store.release_key_lock)
    dead_letters = _passed(Store.dead_letters)
    dead_letter = _passed(Store.dead_letter)
    replay = _passed(Store.replay)
    discard = _passed(Store.discard)
    known = _passed(Store.known)
    prune = _passed(Store.prune)
    stats = _passed(Store.stats)


class WrappedInbox(Wrapped):
    """A ``Wrapped`` around a store with an inbox."""

    inner: InboxStore

    enqueue = _passed(InboxStore.enqueue)
    fetch = _passed(InboxStore.fetch)
    retry = _passed(InboxStore.retry)
    wait = _passed(InboxStore.wait)
    retire = _passed(InboxStore.retire)
    entries = _passed(InboxStore.entries)
    entry = _passed(InboxStore.entry)
    make_due = _passed(InboxStore.make_due)


class WrappedHandled(Wrapped):
    """A ``Wrapped`` around a store that keeps handled events."""

    complete_and_keep = _passed(HandledStore.complete_and_keep)
    handled_events = _passed(HandledStore.handled_events)
    handled_event = _passed(HandledStore.handled_event)
    handled_stats = _passed(HandledStore.handled_stats)
    begin_replay_batch = _passed(HandledStore.begin_replay_batch)
    end_replay_batch = _passed(HandledStore.end_replay_batch)
    replay_batches = _passed(HandledStore.replay_batches)
