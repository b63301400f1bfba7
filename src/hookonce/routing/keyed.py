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
"""What to do with a second event of the same time and key: handle it (apply), or drop it."""

# A column in the tables of ledgers has room for this many characters. A longer key is replaced by
# its digest.
_MOST_CHARACTERS = 200
_DIGEST = "sha256:"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class HandlerOptions(TypedDict, Generic[E, L], total=False):
    """Options of a handler.

    Attributes:
        name: the stable name under which the handler's success is remembered; by default the
            function's module and qualified name. Give a name before you move or rename a function.
        within: the ledger in whose transaction the handler runs; see ``hookonce.effects``.
        latest_by: returns the key of an event, such as the id of its channel. If a newer event of
            the same key has succeeded in this handler, an older event is skipped and counts as
            handled. Over all processes, the handler runs for one event of a key at a time.
        serial_by: returns the key of an event. Over all processes, the handler runs for one event
            of a key at a time; the order is not promised.
        ties: what ``latest_by`` does with an event that has the same time as the newest successful
            event: run it (``apply``, the default) or skip it (``drop``).
    """

    name: str | None
    within: L
    latest_by: Callable[[E], Key]
    serial_by: Callable[[E], Key]
    ties: Ties


class TooLateError(Exception):
    """A handler with a ledger was skipped: the ledger's watermark is newer than the event."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """The checked key function of a handler.

    Attributes:
        function: returns the key of an event.
        is_latest: whether an event is skipped if a newer event of the key has succeeded.
        drop_ties: whether an event is also skipped if an event of the same time has succeeded.
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
            raise TypeError(f"{what} must return str, int or None, not {type(key).__name__}")
        return KeyLock(endpoint, handler, _bounded(str(key)))


def keyed_by(options: HandlerOptions[Any, Any]) -> Keyed | None:
    """Check a handler's options and return its key function; None if it has none.

    Raises:
        TypeError: an option is unknown, or the key function is async or not a function.
        ValueError: options contradict each other.
    """
    if unknown := options.keys() - HandlerOptions.__annotations__.keys():
        raise TypeError(f"a handler has no option {min(unknown)!r}")
    latest_by, serial_by = options.get("latest_by"), options.get("serial_by")
    ties = options.get("ties", "apply")
    if latest_by is not None and serial_by is not None:
        raise ValueError(
            "give latest_by or serial_by, not both: latest_by too handles one event of a key at a"
            " time"
        )
    if ties not in {"apply", "drop"}:
        raise ValueError(f"ties is 'apply' or 'drop', not {ties!r}")
    if "ties" in options and latest_by is None:
        raise ValueError("ties needs latest_by: it decides about events of the same time")
    function = serial_by if latest_by is None else latest_by
    if function is None:
        return None
    call = getattr(function, "__call__", None)  # noqa: B004 - the code inspects `__call__`, and does not call it
    if not callable(function) or any(map(inspect.iscoroutinefunction, (function, call))):
        raise TypeError(
            "a key function is a plain function of the event, such as lambda event: event.data.id,"
            f" not {function!r}"
        )
    return Keyed(function, is_latest=latest_by is not None, drop_ties=ties == "drop")


def watermark_of(event: Event[Any]) -> Watermark:
    """Return the watermark of an event: its creation time and its id.

    Raises:
        TypeError: the event has no time; registration refuses ``latest_by`` for such a sender.
    """
    if event.created_at is None:
        raise TypeError("latest_by needs created_at, and the event has none")
    return Watermark((event.created_at - _EPOCH) // timedelta(microseconds=1), event.id)


def _bounded(key: str) -> str:
    # PostgreSQL rejects NUL, no database accepts a lone surrogate, and MySQL ignores spaces at the
    # end. A key that looks like a digest is replaced by its own digest too. Otherwise a user whose
    # name is the key could choose the digest of another user's name, and share that user's key.
    is_plain = len(key) <= _MOST_CHARACTERS and key.isprintable() and not key.endswith(" ")
    if is_plain and not key.startswith(_DIGEST):
        return key
    return _DIGEST + sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
