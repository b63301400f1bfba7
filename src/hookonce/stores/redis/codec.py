"""Encodes the calls of the Lua script, which are called steps, and decodes the replies."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from math import ceil, isfinite
from typing import Any, NamedTuple

from ...errors import StoreError
from ..formats import OLD_SECONDS, SEEN_SECONDS, damaged
from ..handled import HandledEvent, Keeping
from ..life import MAX_HISTORY, MAX_HISTORY_ERROR_CHARACTERS, error_text
from ..protocols import WORKER_SECONDS
from ..replays import ReplayBatch, ReplayPlan
from ..values import (
    INTERRUPTED,
    Acquired,
    AcquireResult,
    Busy,
    Claimed,
    ClaimResult,
    Dead,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    EnqueueResult,
    Entry,
    FailedAttempt,
    Fetched,
    Full,
    InFlight,
    Ownership,
    Stale,
    Stored,
    Token,
    Waiting,
    Wanted,
    Watermark,
    no_place,
)

FORMATS: tuple[int, ...] = (1,)
"""The formats of records that the script can read and write, oldest first."""

_FOLDER = files(__package__) / "lua"


def _joined(*parts: str) -> bytes:
    return b"\n".join((_FOLDER / f"{part}.lua").read_bytes() for part in parts)


# `INTERRUPTED` is JSON, like every error text in a history.
_CONSTANTS = f"""
local MOST_FAILURES, WORKER_SECONDS = {MAX_HISTORY}, {WORKER_SECONDS!r}
local SEEN_SECONDS, OLD_SECONDS = {SEEN_SECONDS!r}, {OLD_SECONDS!r}
local INTERRUPTED = [[{json.dumps(INTERRUPTED)}]]
"""
_STEPS = (
    "dead_letters",
    "inbox",
    "damaged",
    "claims",
    "handled",
    "key_locks",
    "reconciling",
    "reports",
    "upgrading",
)
# The wrapper `define_steps` makes each call faster. Each call of the script creates all functions,
# and for each outer variable of a function Lua searches the list of all outer variables in use.
# Inside `define_steps` that list is short.
SCRIPT = b"\n".join(
    [
        _CONSTANTS.encode(),
        _joined("prelude", "indexes", "records"),
        b"local function define_steps()",
        _joined(*_STEPS),
        b"end",
        b"define_steps()",
        _joined("main"),
    ]
)
"""All steps in one script, so that one call can run steps of every kind."""
SCRIPT_SHA = sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()

# Added to the time of a watermark, so that times before 1970 are not negative.
_TIME_ZERO = 2**63

_NONE: frozenset[str] = frozenset()


class EncodedStep(NamedTuple):
    """One step of the script: its name, the number of its arguments, and the arguments.

    Attributes:
        request: the bytes on the wire.
        words: how many words of the command these bytes are.
    """

    request: bytes
    words: int


def step(name: str, *arguments: str | bytes | float) -> EncodedStep:
    """Encode a step; write numbers with all their digits."""
    # Encode the step for the wire here: redis-py sends bytes unchanged.
    request = _head(name, len(arguments))
    for argument in arguments:
        if isinstance(argument, str):
            word = argument.encode("utf-8", "surrogatepass")
        elif isinstance(argument, bytes):
            word = argument
        else:
            word = repr(argument).encode()
        request += b"$%d\r\n%b\r\n" % (len(word), word)
    return EncodedStep(request, len(arguments) + 2)


def claim_step(key: DeliveryKey, token: Token, lease: float) -> EncodedStep:
    """Encode a claim faster than ``step`` does: every delivery makes a claim."""
    if not (key.isascii() and token.isascii()):
        return step("claim", key, token, lease)
    request = (
        f"$5\r\nclaim\r\n$1\r\n3\r\n${len(key)}\r\n{key}\r\n"
        f"${len(token)}\r\n{token}\r\n{_seconds(lease)}"
    )
    return EncodedStep(request.encode(), 5)


# Formatting a float is slow, and a receiver's lease never changes: cache the text.
@lru_cache(maxsize=8)
def _seconds(lease: float) -> str:
    return bulk(repr(lease).encode()).decode()


def completion_step(key: DeliveryKey) -> EncodedStep:
    """Encode a completion faster than ``step`` does: every event makes a completion."""
    if not key.isascii():
        return step("complete", key)
    return EncodedStep(f"$8\r\ncomplete\r\n$1\r\n1\r\n${len(key)}\r\n{key}\r\n".encode(), 3)


@cache
def _head(name: str, count: int) -> bytes:
    return bulk(name.encode()) + bulk(b"%d" % count)


def bulk(word: bytes) -> bytes:
    """Encode one word of a command."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def encode(text: str) -> bytes:
    """Encode text as UTF-8; lone surrogates, which JSON may contain, are preserved."""
    return text.encode("utf-8", "surrogatepass")


def decode(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


@lru_cache(maxsize=256)  # a receiver's handlers are the same for many events
def write_names(finished: frozenset[str]) -> bytes:
    """Return handlers' names as lines of JSON, so that the script can merge two lists."""
    return b"\n".join(json.dumps(name).encode() for name in sorted(finished))


def _read_names(stored: bytes) -> frozenset[str]:
    if not stored:
        return _NONE
    return frozenset(json.loads(line) for line in stored.split(b"\n"))


def read_count(stored: bytes) -> int:
    """Return a count; 0 if a damaged record holds infinity or NaN."""
    number = float(stored)
    return int(number) if isfinite(number) else 0


def error_arguments(error: str | None) -> tuple[bytes, bytes]:
    """Return the bounded text of an error twice: for the history, and for a dead letter."""
    text = error_text(error or "")
    line = json.dumps(text[:MAX_HISTORY_ERROR_CHARACTERS]).encode() if text else b""
    return line, text.encode()


def _read_history(stored: bytes) -> tuple[FailedAttempt, ...]:
    failures = (line.split(b" ", 2) for line in stored.split(b"\n") if line)
    return tuple(
        FailedAttempt(read_count(number), float(at), json.loads(error))
        for number, at, error in failures
    )


def write_delivery(delivery: Delivery) -> tuple[str | bytes | float, ...]:
    """Return a delivery as five arguments of a step."""
    endpoint, event_id, event_type, received_at, body = delivery
    return endpoint, event_id, _write_type(event_type), received_at, body


def _write_type(event_type: str | None) -> str:
    """Return an event type in the form that the store keeps; an empty text means None."""
    return "" if event_type is None else f"={event_type}"


def _read_delivery(
    endpoint: bytes, event_id: bytes, event_type: bytes, received_at: bytes, body: bytes
) -> Delivery:
    type_or_none = decode(event_type[1:]) if event_type else None
    return Delivery(decode(endpoint), decode(event_id), type_or_none, float(received_at), body)


# The text of a ``Cursor``: a number in Python's notation, a space, and the member of an index.
_PLACE = re.compile(
    r"(?P<score>-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?) (?P<member>[0-9]+:.+)", re.DOTALL
)


class Cursor(NamedTuple):
    """The position of an event in a listing of all shards: score, then number and key."""

    score: float
    member: bytes

    @classmethod
    def of(cls, row: Sequence[Any]) -> Cursor:
        """Return the position of a row of a listing."""
        return cls(float(row[9]), b"%b:%b:%b" % (row[10], row[0], row[1]))

    def __str__(self) -> str:
        return f"{self.score!r} {decode(self.member)}"


def write_cursor(after: str | None) -> tuple[str, str]:
    """Return an ``after`` cursor as two arguments of a step; both are empty for the start.

    Raises ValueError for an invalid cursor.
    """
    if after is None:
        return "", ""
    found = isinstance(after, str) and _PLACE.fullmatch(after)
    if not found:
        raise no_place(after)
    return found["score"], found["member"]


def write_wanted(wanted: Wanted, reason: DeadReason | None = None) -> tuple[str | float, ...]:
    """Return a listing's filters, except the endpoint, as five arguments of a step."""
    handler, since = wanted.get("handler"), wanted.get("since_unix")
    return (
        _write_type(wanted.get("event_type")),
        wanted.get("event_id") or "",
        "" if handler is None else json.dumps(handler),
        "" if since is None else since,
        reason or "",
    )


def read_ownership(reply: Any) -> Ownership:
    """Decode the reply to a step that only the owner of a claim may take."""
    if reply == b"N":
        raise StoreError("cannot bury the event: no delivery was given, and none is stored")
    return Ownership.HELD if reply == b"H" else Ownership.LOST


def read_claim(reply: Any, key: DeliveryKey, token: Token, clock_offset: float) -> ClaimResult:
    """Decode the reply to a claim of a known event."""
    match reply[0]:
        case b"C":
            _, lease, *counted = reply
            return _read_claimed(key, token, float(lease), *counted)
        case b"F":
            return InFlight(float(reply[1]) + clock_offset)
        case b"D":
            return Done()
        case b"U":
            raise damaged()
        case _:
            return Dead()


def _read_claimed(
    key: DeliveryKey,
    token: Token,
    lease: float,
    attempt: bytes,
    finished: bytes,
    outstanding: bytes,
) -> Claimed:
    names = _read_names(finished) if finished else _NONE
    outstanding_names = _read_names(outstanding) if outstanding else _NONE
    return Claimed(key, token, read_count(attempt), names, lease, outstanding_names)


def write_watermark(watermark: Watermark | None) -> tuple[str, str, str]:
    """Return a watermark as three arguments of a step; the time is text that sorts like a number.

    All three arguments are empty if there is no watermark.
    """
    if watermark is None:
        return "", "", ""
    created_unix_us, event_id, generation = watermark
    return f"{created_unix_us + _TIME_ZERO:020d}", event_id, str(generation)


def read_acquired(reply: Any, clock_offset: float) -> AcquireResult:
    """Decode the reply to an acquire of a key lock."""
    if reply == b"E":
        return Acquired()
    if reply[0] == b"B":
        return Busy(float(reply[1]) + clock_offset)
    _, created, event_id, generation = reply
    return Stale(Watermark(int(created) - _TIME_ZERO, decode(event_id), int(generation)))


ENQUEUE_RESULTS: dict[bytes, EnqueueResult] = {
    b"S": Stored(),
    b"W": Waiting(),
    b"F": Full(),
    b"D": Done(),
    b"X": Dead(),
}
"""The replies to an enqueue."""


def read_fetched(reply: Any, token: Token, lease: float) -> Fetched:
    key, attempt, finished, outstanding, endpoint, event_id, event_type, received_at, body = reply
    claim = _read_claimed(DeliveryKey(decode(key)), token, lease, attempt, finished, outstanding)
    return Fetched(claim, _read_delivery(endpoint, event_id, event_type, received_at, body))


def read_dead_letter(reply: Any) -> DeadLetter:
    counted, (buried_at, _, reason, error, is_kept, record) = reply[5:9], reply[9:]
    attempts, finished, history, outstanding = counted
    return DeadLetter(
        delivery=_read_delivery(*reply[:5]),
        reason=DeadReason(decode(reason)),
        error=decode(error),
        attempts=read_count(attempts),
        finished=_read_names(finished),
        buried_unix=float(buried_at),
        history=_read_history(history),
        outstanding=_read_names(outstanding),
        is_kept=is_kept == b"1",
        record=record,
    )


def write_keeping(keeping: Keeping, size: int, shards: int) -> tuple[float, int | str]:
    """Return one shard's share of the limits of ``Keeping``, as two arguments of a step."""
    seconds, most = keeping
    if most is None:
        return seconds, ""
    return seconds, max(ceil(most / shards), min(most, size))


def read_handled_event(reply: Any) -> HandledEvent:
    finished, expires = reply[5:7]
    return HandledEvent(
        delivery=_read_delivery(*reply[:5]),
        finished=_read_names(finished),
        handled_unix=float(reply[9]),
        expires_unix=float(expires),
    )


def read_replay_batch(endpoint: str, handler: str, reply: Any) -> ReplayBatch:
    generation, started_at, finished_at, plan = reply
    return ReplayBatch(
        endpoint,
        handler,
        int(generation),
        ReplayPlan.load(plan),
        float(started_at),
        float(finished_at) if finished_at else None,
    )


def read_entry(reply: Any, clock_offset: float) -> Entry:
    attempts, finished, history, outstanding, _, _, due_at, in_flight = reply[5:]
    return Entry(
        delivery=_read_delivery(*reply[:5]),
        due_unix=float(due_at) + clock_offset,
        in_flight=in_flight == b"1",
        attempts=read_count(attempts),
        finished=_read_names(finished),
        history=_read_history(history),
        outstanding=_read_names(outstanding),
    )
