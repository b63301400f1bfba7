"""Answers the challenge that some senders send before their first event."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from pydantic_core import from_json

from ..logs import event_fields, get_logger
from ..outcome import Outcome, Reason
from ..senders.sender import Handshake
from ..verification.signature import VerifiedDelivery

_log = get_logger("hookonce")

_FAILED = Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.HANDSHAKE)


def reply_to(verified: VerifiedDelivery, handshake: Handshake, endpoint: str) -> Outcome | None:
    """Return the answer if the genuine delivery is a challenge; otherwise None."""
    body = _parsed(verified.body)
    if not isinstance(body, dict):
        return None
    try:
        answer = handshake(body)
        reply = None if answer is None else json.dumps({**answer}, allow_nan=False).encode()
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything
        # The message of the error may quote the body, so it is not logged.
        _log.error(
            "the handshake with the sender failed for %s: its function raised %s",
            verified.id,
            type(error).__name__,
            extra=event_fields(endpoint, verified.id, None),
        )
        return _FAILED
    return None if reply is None else Outcome(HTTPStatus.OK, Reason.HANDSHAKE, reply=reply)


def _parsed(body: bytes) -> Any:
    """Return the parsed body; None if it is not JSON: the parser of events reports that later."""
    try:
        return from_json(body)
    except ValueError:
        pass
    try:
        return json.loads(body.decode())  # pydantic refuses lone surrogates, which JSON may contain
    except (ValueError, RecursionError):
        return None
