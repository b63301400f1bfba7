"""Actions of visitors: replay or discard a dead letter, or make a waiting event due now.

The log says who asked for each action, and its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from ...errors import PayloadError, StoreError
from ...logs import event_fields, get_logger
from ...outcome import SUCCEEDED
from ...receiver import Receiver
from ...stores.time_limit import within

_log = get_logger("hookonce.inspector")

_STORE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Result:
    """Result of an action.

    Attributes:
        outcome: a few words for the visitor.
    """

    status: int
    outcome: str
    ok: bool = False


_NO_DEAD_LETTER = Result(HTTPStatus.NOT_FOUND, "there is no such dead letter any more")


class Actions:
    """Acts on the events of a receiver.

    Args:
        most: the most actions at the same time.
    """

    def __init__(self, receiver: Receiver, *, most: int) -> None:
        self._receiver = receiver
        self._most = most
        self._running = 0
        self._actions = {
            "replay": self._replay,
            "discard": self._discard,
            "retry": self._retry,
        }

    async def act(self, name: str, event_id: str, who: str | None) -> Result:
        """Act on an event, and log it.

        Args:
            name: ``replay``, ``discard`` or ``retry``.
            who: address of the visitor.
        """
        if self._running >= self._most:
            return Result(HTTPStatus.TOO_MANY_REQUESTS, "too many actions at once; try again")
        self._running += 1
        result = Result(HTTPStatus.SERVICE_UNAVAILABLE, "cancelled")
        fields = event_fields(self._receiver.endpoint, event_id, None)
        try:
            result = await self._actions[name](event_id)
        except StoreError as error:
            _log.error("cannot %s %r: %s", name, event_id, error, extra=fields)
            text = "the store failed; the log says why"
            result = Result(HTTPStatus.SERVICE_UNAVAILABLE, text)
        finally:
            self._running -= 1
            _log.info(
                "%s of %r at %s, asked for by %s: %s",
                name,
                event_id,
                self._receiver.endpoint,
                who,
                result.outcome,
                extra=fields,
            )
        return result

    async def _replay(self, event_id: str) -> Result:
        try:
            outcome = await self._receiver.dead.replay(event_id)
        except LookupError:
            return _NO_DEAD_LETTER
        except PayloadError as error:
            return Result(HTTPStatus.UNPROCESSABLE_ENTITY, f"still unreadable: {error.fault}")
        return Result(HTTPStatus.OK, outcome.reason, outcome.reason in SUCCEEDED)

    async def _discard(self, event_id: str) -> Result:
        if not await within(_STORE_SECONDS, self._receiver.dead.discard(event_id)):
            return _NO_DEAD_LETTER
        return Result(HTTPStatus.OK, "discarded", ok=True)

    async def _retry(self, event_id: str) -> Result:
        if not self._receiver.has_inbox:
            return Result(HTTPStatus.NOT_FOUND, "this receiver has no inbox")
        if not await within(_STORE_SECONDS, self._receiver.waiting.retry(event_id)):
            return Result(HTTPStatus.NOT_FOUND, "it does not wait for a later attempt any more")
        return Result(HTTPStatus.OK, "due now", ok=True)
