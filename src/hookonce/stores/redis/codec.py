"""How the Redis store's script is spoken to: steps as bytes, its replies as values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from math import isfinite
from typing import Any, NamedTuple

from ...errors import StoreError
from ..contract import WORKER_SECONDS
from ..life import MAX_HISTORY, MAX_HISTORY_ERROR_CHARACTERS, error_text
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

_FOLDER = files(__package__) / "lua"


def _joined(*parts: str) -> bytes:
    return b"\n".join((_FOLDER / f"{part}.lua").read_bytes() for part in parts)


# Texts in a history are JSON.
_CONSTANTS = f"""
local MOST_FAILURES, WORKER_SECONDS = {MAX_HISTORY}, {WORKER_SECONDS!r}
local INTERRUPTED = [[{json.dumps(INTERRUPTED)}]]
"""
# Every call makes all functions anew, and for each variable that one uses Lua goes through the open
# variables of the function around it: there are fewer of them with a function around the steps.
SCRIPT = b"\n".join(
    [
        _CONSTANTS.encode(),
        _joined("prelude", "indexes", "records"),
        b"local function define_steps()",
        _joined("dead_letters", "inbox", "claims", "key_locks", "reconciling", "reports"),
        b"end",
        b"define_steps()",
        _joined("main"),
    ]
)
"""All steps in one script, so that steps of all kinds go out in one call."""
SCRIPT_SHA = sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()

# Of a mark, so that a time before 1970 has no sign.
_TIME_ZERO = 2**63

_NONE: frozenset[str] = frozenset()


class Step(NamedTuple):
    """One step of the script: its name, the number of its arguments and these, as they are sent.

    Attributes:
        request: the bytes on the wire.
        words: how many words these are to the server.

    """

    request: bytes
    words: int


def step(name: str, *arguments: str | bytes | float) -> Step:
    """Return a step; numbers are written so that they come back as they are."""
    # Written for the wire at once: redis-py takes that for what is bytes already.
    request = _head(name, len(arguments))
    for argument in arguments:
        if isinstance(argument, str):
            word = argument.encode("utf-8", "surrogatepass")
        elif isinstance(argument, bytes):
            word = argument
        else:
            word = repr(argument).encode()
        request += b"$%d\r\n%b\r\n" % (len(word), word)
    return Step(request, len(arguments) + 2)


def claim_step(key: DeliveryKey, token: Token, lease: float) -> Step:
    """Return the step of a claim, as ``step`` does; every delivery has one."""
    if not (key.isascii() and token.isascii()):
        return step("claim", key, token, lease)
    request = (
        f"$5\r\nclaim\r\n$1\r\n3\r\n${len(key)}\r\n{key}\r\n"
        f"${len(token)}\r\n{token}\r\n{_seconds(lease)}"
    )
    return Step(request.encode(), 5)


# A receiver has one lease, and a number takes long to be written.
@lru_cache(maxsize=8)
def _seconds(lease: float) -> str:
    return bulk(repr(lease).encode()).decode()


def completion_step(key: DeliveryKey) -> Step:
    """Return the step of a completion, as ``step`` does; every event has one."""
    if not key.isascii():
        return step("complete", key)
    return Step(f"$8\r\ncomplete\r\n$1\r\n1\r\n${len(key)}\r\n{key}\r\n".encode(), 3)


@cache
def _head(name: str, count: int) -> bytes:
    return bulk(name.encode()) + bulk(b"%d" % count)


def bulk(word: bytes) -> bytes:
    """Return a word as it is sent."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def encode(text: str) -> bytes:
    """Return text as it is stored; what JSON may contain and UTF-8 may not comes back as it was."""
    return text.encode("utf-8", "surrogatepass")


def decode(stored: bytes) -> str:
    """Return text as it was before ``encode``."""
    return stored.decode("utf-8", "surrogatepass")


def write_names(finished: Iterable[str]) -> bytes:
    """Return handlers' names as JSON, one a line, so that the script can unite two such lists."""
    return b"\n".join(json.dumps(name).encode() for name in sorted(finished))


def _read_names(stored: bytes) -> frozenset[str]:
    if not stored:
        return _NONE
    return frozenset(json.loads(line) for line in stored.split(b"\n"))


def read_count(stored: bytes) -> int:
    """Return a count; where none can be, as in a record that was damaged, 0."""
    number = float(stored)
    return int(number) if isfinite(number) else 0


def error_arguments(error: str | None) -> tuple[bytes, bytes]:
    """Return an error's text as a line of a history, and as a letter holds it; bounded."""
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
    """Return a type as it is stored; an empty text is none."""
    return "" if event_type is None else f"={event_type}"


def _read_delivery(
    endpoint: bytes, event_id: bytes, event_type: bytes, received_at: bytes, body: bytes
) -> Delivery:
    type_or_none = decode(event_type[1:]) if event_type else None
    return Delivery(decode(endpoint), decode(event_id), type_or_none, float(received_at), body)


# What ``Cursor`` writes: a number as Python does, a space, and a member of a list.
_PLACE = re.compile(
    r"(?P<score>-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?) (?P<member>[0-9]+:.+)", re.DOTALL
)


class Cursor(NamedTuple):
    """Where an event stands in a list of all shards: its score, then its number and key."""

    score: float
    member: bytes

    @classmethod
    def of(cls, row: Sequence[Any]) -> Cursor:
        """Return the place of a row of a list."""
        return cls(float(row[9]), b"%b:%b:%b" % (row[10], row[0], row[1]))

    def __str__(self) -> str:
        return f"{self.score!r} {decode(self.member)}"


def write_cursor(after: str | None) -> tuple[str, str]:
    """Return the place to go on behind as two arguments of a step; empty ones for the start.

    Raises ValueError for what is no place.
    """
    if after is None:
        return "", ""
    found = isinstance(after, str) and _PLACE.fullmatch(after)
    if not found:
        raise no_place(after)
    return found["score"], found["member"]


def write_wanted(wanted: Wanted, reason: DeadReason | None = None) -> tuple[str | float, ...]:
    """Return what a listing asks for, but for the endpoint, as five arguments of a step."""
    handler, since = wanted.get("handler"), wanted.get("since")
    return (
        _write_type(wanted.get("event_type")),
        wanted.get("event_id") or "",
        "" if handler is None else json.dumps(handler),
        "" if since is None else since,
        reason or "",
    )


def read_ownership(reply: Any) -> Ownership:
    """Return the answer to a step that only the owner may take."""
    if reply == b"N":
        raise StoreError("there is no delivery to bury: none was given or kept")
    return Ownership.HELD if reply == b"H" else Ownership.LOST


def read_claim(reply: Any, key: DeliveryKey, token: Token, clock_offset: float) -> ClaimResult:
    """Return the answer to a claim of an event that something is known of."""
    match reply[0]:
        case b"C":
            _, lease, *counted = reply
            return _read_claimed(key, token, float(lease), *counted)
        case b"F":
            return InFlight(float(reply[1]) + clock_offset)
        case b"D":
            return Done()
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
    owing = _read_names(outstanding) if outstanding else _NONE
    return Claimed(key, token, read_count(attempt), names, lease, owing)


def write_watermark(watermark: Watermark | None) -> tuple[str, str]:
    """Return a mark as two arguments of a step; its time as a text that sorts as the number."""
    return (
        ("", "")
        if watermark is None
        else (f"{watermark.created_at + _TIME_ZERO:020d}", watermark.event_id)
    )


def read_acquired(reply: Any, clock_offset: float) -> AcquireResult:
    """Return the answer to who would pass a gate."""
    if reply == b"E":
        return Acquired()
    if reply[0] == b"B":
        return Busy(float(reply[1]) + clock_offset)
    return Stale(Watermark(int(reply[1]) - _TIME_ZERO, decode(reply[2])))


ENQUEUE_RESULTS: dict[bytes, EnqueueResult] = {
    b"S": Stored(),
    b"W": Waiting(),
    b"F": Full(),
    b"D": Done(),
    b"X": Dead(),
}
"""The answers to a put."""


def read_fetched(reply: Any, token: Token, lease: float) -> Fetched:
    """Return one event of a take."""
    key, attempt, finished, outstanding, endpoint, event_id, event_type, received_at, body = reply
    claim = _read_claimed(DeliveryKey(decode(key)), token, lease, attempt, finished, outstanding)
    return Fetched(claim, _read_delivery(endpoint, event_id, event_type, received_at, body))


def read_dead_letter(reply: Any) -> DeadLetter:
    """Return one dead letter."""
    attempts, finished, history, outstanding, buried_at, _, reason, error, is_kept = reply[5:]
    return DeadLetter(
        delivery=_read_delivery(*reply[:5]),
        reason=DeadReason(decode(reason)),
        error=decode(error),
        attempts=read_count(attempts),
        finished=_read_names(finished),
        buried_at=float(buried_at),
        history=_read_history(history),
        outstanding=_read_names(outstanding),
        is_kept=is_kept == b"1",
    )


def read_entry(reply: Any, clock_offset: float) -> Entry:
    """Return one event of the inbox."""
    attempts, finished, history, outstanding, _, _, due_at, in_flight = reply[5:]
    return Entry(
        delivery=_read_delivery(*reply[:5]),
        due_at=float(due_at) + clock_offset,
        in_flight=in_flight == b"1",
        attempts=read_count(attempts),
        finished=_read_names(finished),
        history=_read_history(history),
        outstanding=_read_names(outstanding),
    )
