"""A store that checks that each watermark is recorded before the calls that depend on it.

A watermark is the newest event of a key that has succeeded. A handler with ``latest_by`` skips
older events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

from hookonce.errors import StoreError
from hookonce.events import Event
from hookonce.routing.keyed import watermark_of
from hookonce.stores.protocols import Store
from hookonce.stores.values import KeyLock, Watermark
from hookonce.stores.wrapped import WrappedInbox

from .stores import FaultyStore

__all__ = ["WatchingInboxStore", "WatchingStore"]

T = TypeVar("T")

# These calls record the handlers that have succeeded. The number is the argument with their names.
_FINISHED = {"extend": 1, "release": 1, "retry": 2}


class WatchingStore(FaultyStore):
    """One process's store, which notes calls that come too early; a test can make it unreachable.

    Args:
        inner: the store.
        beside: another process's store on the same file or memory. The two processes share the
            recorded watermarks.

    Attributes:
        is_away: whether the store is unreachable.
        loses_replies: whether calls reach the store, but no reply comes back.
        violations: the calls that the process has made too early.

    """

    def __init__(self, inner: Store, beside: WatchingStore | None = None) -> None:
        super().__init__(inner)
        self.is_away = self.loses_replies = False
        self.violations: list[str] = []
        self._succeeded: dict[tuple[str, str], tuple[KeyLock, Watermark]] = {}
        self._recorded: defaultdict[KeyLock, Watermark] = (
            defaultdict(lambda: Watermark(0, "")) if beside is None else beside._recorded
        )

    def success(self, event: Event[Any], handler: str, key: str) -> None:
        """Note the success of a handler with ``latest_by``, at its end."""
        self._succeeded[event.id, handler] = KeyLock("default", handler, key), watermark_of(event)

    def is_recorded(self, event: Event[Any], handler: str) -> bool:
        """Return whether the store has the watermark of an event that has succeeded."""
        key_lock, watermark = self._succeeded[event.id, handler]
        return self._recorded[key_lock] >= watermark

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        step = cast("partial[Any]", call)
        self._check(name, step.args, step.keywords)
        if self.is_away and name not in {"open", "aclose"}:
            self.calls[name] += 1
            raise StoreError("the store is away")
        result = await super().call(name, call)
        if name == "release_key_lock" and (watermark := step.keywords["watermark"]) is not None:
            self._recorded[step.args[0]] = max(watermark, self._recorded[step.args[0]])
        if self.loses_replies:
            raise StoreError("the reply was lost")
        return result

    def _check(self, name: str, args: Any, named: Any) -> None:
        if name == "acquire_key_lock":
            for key_lock, watermark in self._succeeded.values():
                if key_lock == args[0] and watermark > self._recorded[key_lock]:
                    self.violations.append(
                        f"{key_lock.key} was acquired before its watermark was sent"
                    )
        elif name in {"complete", *_FINISHED, "bury"}:
            event_id = args[0].key.partition(":")[2]
            for (succeeded, handler), (key_lock, watermark) in self._succeeded.items():
                if name == "complete":
                    records = True
                elif name == "bury":
                    records = handler in named["finished"]
                else:
                    records = handler in args[_FINISHED[name]]
                if succeeded == event_id and records and watermark > self._recorded[key_lock]:
                    self.violations.append(f"{name} of {event_id} came before its watermark")


class WatchingInboxStore(WatchingStore, WrappedInbox):
    """A `WatchingStore` with an inbox."""
