"""The result of a delivery, and the answer to the sender."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from http import HTTPStatus
from math import ceil

from .errors import shows_half_built


class Reason(StrEnum):
    """The result of a delivery, as the answer's body names it."""

    HANDLED = "handled"
    DUPLICATE = "duplicate"
    STALE = "stale"
    UNKNOWN_TYPE = "unknown_type"
    NO_HANDLER = "no_handler"
    STORED = "stored"
    QUARANTINED = "quarantined"
    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    ALREADY_DEAD = "already_dead"
    HANDLER_FAILED = "handler_failed"
    HANDLER_ABSENT = "handler_absent"
    RETRY_REQUESTED = "retry_requested"
    STILL_RUNNING = "still_running"
    IN_FLIGHT = "in_flight"
    UNREADABLE = "unreadable"
    INBOX_FULL = "inbox_full"
    STORE_UNAVAILABLE = "store_unavailable"
    SECRETS_UNAVAILABLE = "secrets_unavailable"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"
    INTERNAL_ERROR = "internal_error"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TIMEOUT = "body_timeout"
    BODY_INCOMPLETE = "body_incomplete"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_FOUND = "not_found"
    HANDSHAKE = "handshake"


SUCCEEDED = frozenset({Reason.HANDLED, Reason.DUPLICATE, Reason.STALE})
"""Reasons after which an event needs no handler any more."""


def is_punished(status: int) -> bool:
    """Return whether the sender punishes a status: a redirect, or 410."""
    return status >= 300 and (status < 400 or status == HTTPStatus.GONE)


@shows_half_built
@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a delivery.

    Attributes:
        status: the HTTP status; never a 3xx, never 410.
        reason: the result of the delivery: a ``Reason``; or a ``Refusal`` if it is not genuine.
        headers: headers of the answer beside those that describe its body.
        reply: the JSON that answers a sender's challenge; None for every other delivery.

    Raises:
        ValueError: the status is a redirect or 410.
    """

    status: int
    reason: str
    headers: Mapping[str, str] = field(default_factory=dict)
    reply: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if is_punished(self.status):
            raise ValueError(
                f"a delivery must not be answered {self.status}: it would fail, or disable the"
                " endpoint"
            )

    @property
    def body(self) -> bytes:
        """The answer's body: ``{"status": "accepted" | "refused" | "retry", "reason": "…"}``.

        The answer to a sender's challenge is the sender's own: ``reply``.
        """
        return _body(self.status, self.reason) if self.reply is None else self.reply


# Cached: every answer has a body, and only a few dozen different bodies exist.
@lru_cache(maxsize=256)
def _body(status: int, reason: str) -> bytes:
    if status < HTTPStatus.BAD_REQUEST:
        verdict = "accepted"
    elif status < HTTPStatus.INTERNAL_SERVER_ERROR:
        verdict = "refused"
    else:
        verdict = "retry"
    return json.dumps({"status": verdict, "reason": reason}).encode()


ALREADY_DEAD = Outcome(HTTPStatus.ACCEPTED, Reason.ALREADY_DEAD)
HANDLED = Outcome(HTTPStatus.OK, Reason.HANDLED)
DUPLICATE = Outcome(HTTPStatus.OK, Reason.DUPLICATE)
STALE = Outcome(HTTPStatus.OK, Reason.STALE)
TOO_LARGE = Outcome(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, Reason.BODY_TOO_LARGE)
TOO_SLOW = Outcome(HTTPStatus.REQUEST_TIMEOUT, Reason.BODY_TIMEOUT)
# 500, not 400: a proxy lost the bytes, and a retry may arrive whole.
INCOMPLETE = Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.BODY_INCOMPLETE)
NOT_POST = Outcome(HTTPStatus.METHOD_NOT_ALLOWED, Reason.METHOD_NOT_ALLOWED, {"allow": "POST"})
NOT_FOUND = Outcome(HTTPStatus.NOT_FOUND, Reason.NOT_FOUND)
BROKEN = Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.INTERNAL_ERROR)


def wait_header(seconds: float) -> dict[str, str]:
    """Return a Retry-After header; a sender that does not know the header ignores it."""
    return {"retry-after": str(max(1, ceil(seconds)))}


USUAL_WAIT = wait_header(30.0)
"""The default Retry-After; the pipeline replaces it if it knows the sender's first retry wait."""


def later(reason: Reason, after_seconds: float | None = None) -> Outcome:
    """Return a 503 with Retry-After; its default is the sender's first retry wait, if known."""
    wait = USUAL_WAIT if after_seconds is None else wait_header(after_seconds)
    return Outcome(HTTPStatus.SERVICE_UNAVAILABLE, reason, wait)
