"""What a visitor may do: replay or discard a dead letter, have a waiting event tried now.

Each leaves a line in the log that says who asked for it and what became of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from ...errors import PayloadError, StoreError
from ...inbox.waiting import WaitingEvents
from ...logs import get_logger
from ...outcome import SUCCEEDED
from ...stores.time_limit import within
from .watched import Watched

_log = get_logger("hookonce.inspector")

_STORE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Result:
    """What became of an action.

    Attributes:
        status: the HTTP status that says so.
        outcome: a word for it.
        ok: whether what was asked for is done.

    """

    status: int
    outcome: str
    ok: bool = False


Action = Callable[[str], Awaitable[Result]]
"""Does something to the event of an id."""

_NO_DEAD_LETTER = Result(HTTPStatus.NOT_FOUND, "there is no such dead letter any more")


class Actions:
    """Acts on the events of a receiver.

    Args:
        receiver: whose.
        inbox: where its events wait, if it has an inbox.
        most: how many actions at once.

    """

    def __init__(self, receiver: Watched, inbox: WaitingEvents | None, *, most: int) -> None:
        self._receiver = receiver
        self._inbox = inbox
        self._most = most
        self._running = 0
        self._actions: dict[str, Action] = {
            "replay": self._replay,
            "discard": self._discard,
            "retry": self._retry,
        }

    async def act(self, name: str, event_id: str, who: str | None) -> Result:
        """Do something to an event, and say in the log who asked for it and what became of it.

        Args:
            name: ``replay``, ``discard`` or ``retry``.
            event_id: which event.
            who: the address of the visitor.

        """
        if self._running >= self._most:
            return Result(HTTPStatus.TOO_MANY_REQUESTS, "too many actions at once")
        self._running += 1
        result = Result(HTTPStatus.SERVICE_UNAVAILABLE, "broken off")
        try:
            result = await self._actions[name](event_id)
        except StoreError as error:
            _log.error("cannot %s %r: %s", name, event_id, error)
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
        if self._inbox is None:
            return Result(HTTPStatus.NOT_FOUND, "this receiver has no inbox")
        if not await within(_STORE_SECONDS, self._inbox.retry(event_id)):
            return Result(HTTPStatus.NOT_FOUND, "it does not wait for a later attempt any more")
        return Result(HTTPStatus.OK, "due now", ok=True)
