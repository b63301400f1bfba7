"""Dead letters are run again for a visitor, a few at a time, and each leaves a line in the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus

from ..delivery.outcome import Reason
from ..errors import PayloadError, StoreError
from .texts import one_line
from .watched import Watched

__all__ = ["Replayed", "Replays"]

_log = logging.getLogger("hookonce.inspector")

_SUCCESS = {Reason.HANDLED, Reason.DUPLICATE}


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a replay.

    Attributes:
        status: the HTTP status that says so.
        outcome: a word for it.
        ok: whether the event is handled now.

    """

    status: int
    outcome: str
    ok: bool = False


class Replays:
    """Replays dead letters.

    Args:
        receiver: whose.
        most: how many at once.

    """

    def __init__(self, receiver: Watched, *, most: int) -> None:
        self._receiver = receiver
        self._most = most
        self._running = 0

    async def replay(self, event_id: str, who: str | None) -> Replayed:
        """Run a dead letter again, and say in the log who asked for it and what became of it.

        Args:
            event_id: which.
            who: the address of the visitor.

        """
        if self._running >= self._most:
            return Replayed(HTTPStatus.TOO_MANY_REQUESTS, "too many replays at once")
        self._running += 1
        replayed = Replayed(HTTPStatus.SERVICE_UNAVAILABLE, "broken off")
        try:
            replayed = await self._replay(event_id)
        finally:
            self._running -= 1
            _log.info(
                "replay of %r at %s, asked for by %s: %s",
                event_id,
                one_line(self._receiver.endpoint),
                one_line(who),
                replayed.outcome,
            )
        return replayed

    async def _replay(self, event_id: str) -> Replayed:
        try:
            outcome = await self._receiver.dead.replay(event_id)
        except LookupError:
            return Replayed(HTTPStatus.NOT_FOUND, "there is no such dead letter any more")
        except PayloadError as error:
            return Replayed(HTTPStatus.UNPROCESSABLE_ENTITY, f"still unreadable: {error.fault}")
        except StoreError as error:
            _log.error("cannot replay %r: %s", event_id, one_line(error))
            return Replayed(HTTPStatus.SERVICE_UNAVAILABLE, "the store failed; the log says why")
        return Replayed(HTTPStatus.OK, outcome.reason, outcome.reason in _SUCCESS)
