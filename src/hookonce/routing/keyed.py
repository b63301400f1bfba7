"""Key functions (``latest_by``, ``serial_by``) and the watermark of an event."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar

from ..effects.ledger import AnyLedger
from ..events import Event
from ..stores.values import KeyLock, Watermark

E = TypeVar("E")
L = TypeVar("L", bound=AnyLedger[Any] | None)

Key: TypeAlias = str | int | None
"""What a key function returns; None for an event that needs no key lock."""

Ties: TypeAlias = Literal["apply", "drop"]
"""Of two events of the same time on one key: whether both are run, or only the first."""

# What the tables of ledgers have room for; a digest stands for any other key.
_MOST_CHARACTERS = 200
_DIGEST = "sha256:"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class HandlerOptions(TypedDict, Generic[E, L], total=False):
    """How a handler is registered, beside what it is for.

    Attributes:
        name: the stable name under which its success is remembered, the function's module and
            qualified name by default. Give one before you move or rename a function.
        within: a ledger, in whose transaction it runs; see ``hookonce.effects``.
        latest_by: returns the key of an event, such as the id of its channel. An event is left out,
            and counts as handled, where a newer one with its key has succeeded in this handler;
            one run at a time is let through for a key, over all processes.
        serial_by: returns the key of an event for which one run at a time is let through, over all
            processes, in no order that is promised.
        ties: what ``latest_by`` does with an event of the same time as the newest that has
            succeeded: run it (``apply``, the default) or leave it out (``drop``).

    """

    name: str | None
    within: L
    latest_by: Callable[[E], Key]
    serial_by: Callable[[E], Key]
    ties: Ties


class TooLateError(Exception):
    """A handler within a ledger was not run: by the ledger's watermark its event comes too late."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """The key function of a handler, and what its key lock is for.

    Attributes:
        function: returns the key of an event.
        is_latest: whether an event is left out where a newer one has succeeded.
        drop_ties: whether one of the same time makes it late as well.

    """

    function: Callable[[Any], object]
    is_latest: bool
    drop_ties: bool

    def key_lock(self, event: Event[Any], endpoint: str, handler: str) -> KeyLock | None:
        """Return the key lock of an event; None if the event has no key.

        Raises:
            TypeError: the key is neither text nor a whole number.
            Exception: whatever the user's function raises.

        """
        key = self.function(event)
        if key is None:
            return None
        if not isinstance(key, str | int):
            what = "latest_by" if self.is_latest else "serial_by"
            raise TypeError(f"{what} gives str, int or None, and not {type(key).__name__}")
        return KeyLock(endpoint, handler, _bounded(str(key)))


def keyed_by(options: HandlerOptions[Any, Any]) -> Keyed | None:
    """Return the key function of a handler, checked; None if it has none.

    Raises:
        TypeError: an option is unknown, or a key function is none or async.
        ValueError: they contradict each other.

    """
    if unknown := options.keys() - HandlerOptions.__annotations__.keys():
        raise TypeError(f"there is no option {min(unknown)!r} for a handler")
    latest_by, serial_by = options.get("latest_by"), options.get("serial_by")
    ties = options.get("ties", "apply")
    if latest_by is not None and serial_by is not None:
        raise ValueError(
            "give latest_by or serial_by: latest_by lets one run at a time through too"
        )
    if ties not in {"apply", "drop"}:
        raise ValueError(f"ties is 'apply' or 'drop', not {ties!r}")
    if "ties" in options and latest_by is None:
        raise ValueError("ties says what latest_by does with events of the same time")
    function = serial_by if latest_by is None else latest_by
    if function is None:
        return None
    call = getattr(function, "__call__", None)  # noqa: B004 - the method is what is looked at
    if not callable(function) or any(map(inspect.iscoroutinefunction, (function, call))):
        raise TypeError(
            "a key is given by a plain function of the event, such as lambda event: event.data.id,"
            f" not by {function!r}"
        )
    return Keyed(function, is_latest=latest_by is not None, drop_ties=ties == "drop")


def watermark_of(event: Event[Any]) -> Watermark:
    """Return the watermark of an event: its creation time and its id."""
    return Watermark((event.created_at - _EPOCH) // timedelta(microseconds=1), event.id)


def _bounded(key: str) -> str:
    # PostgreSQL rejects NUL, no database accepts a lone surrogate, and MySQL ignores spaces at the
    # end. A key that looks like a digest is digested too: a user can choose their own name, and
    # must not share the key of the user whose name has that digest.
    is_plain = len(key) <= _MOST_CHARACTERS and key.isprintable() and not key.endswith(" ")
    if is_plain and not key.startswith(_DIGEST):
        return key
    return _DIGEST + sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
