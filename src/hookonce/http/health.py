"""Whether a receiver lives, and whether it can take deliveries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..delivery.attempts import Attempts
from ..delivery.parts import Parts
from ..delivery.registration import Registration
from ..delivery.time_limit import within
from ..errors import SecretError, StoreError
from ..stores.contract import Reports
from ..verification.secrets import fingerprint
from .bearer import check_token, has_bearer

_log = logging.getLogger("hookonce")

_FRESH_SECONDS = 2.0

HEALTH_PATHS = ("/livez", "/readyz")
"""Where a receiver tells whether it lives, and whether it can take deliveries."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a receiver can take deliveries.

    Attributes:
        problems: why it cannot.
        warnings: what an operator should mend, though it can.
        secrets: the fingerprints of the secrets in force, newest first.

    """

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


_SHUTTING_DOWN = Readiness(("the receiver is shutting down",))


class ReadinessLook:
    """Looks whether a receiver can take deliveries.

    Args:
        parts: what a receiver's rooms share.
        attempts: the events under way.
        store: what can be asked whether it works.
        watches: warnings of what is watched; may raise SecretError.
        registration: knows of other applications under the endpoint.
        inbox: what is wrong with the inbox, if it has one; may raise StoreError.
        secrets: returns the secrets in force; may raise SecretError.

    """

    def __init__(
        self,
        parts: Parts,
        attempts: Attempts,
        *,
        store: Reports,
        watches: Iterable[Callable[[], tuple[str, ...]]],
        registration: Registration,
        inbox: Callable[[], Awaitable[str | None]] | None,
        secrets: Callable[[], tuple[str, ...]],
    ) -> None:
        self._parts = parts
        self._attempts = attempts
        self._store = store
        self._watches = tuple(watches)
        self._registration = registration
        self._inbox = inbox
        self._secrets = secrets
        self._last = Readiness()
        self._fresh_until = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def recent(self) -> Readiness:
        """Return what the last look has found; one that is seconds old is made anew, for all."""
        if not self._attempts.accepting:
            return _SHUTTING_DOWN
        loop = asyncio.get_running_loop()
        if loop.time() >= self._fresh_until:
            if self._looking is None or self._looking.done():
                self._looking = loop.create_task(self._refresh())
            await asyncio.shield(self._looking)
        return self._last

    async def now(self) -> Readiness:
        """Return what there is to see at this moment."""
        if not self._attempts.accepting:
            return _SHUTTING_DOWN
        problems: list[str] = []
        warnings: tuple[str, ...] = ()
        fingerprints: tuple[str, ...] = ()
        limits, store = self._parts.limits, self._store
        if overdue := self._attempts.overdue:
            problems.append(
                f"handlers beyond their time limit: {len(overdue)} ({', '.join(overdue)}); they"
                f" keep their events, and each sync one keeps one of {limits.threads} threads"
            )
        try:
            fingerprints = tuple(fingerprint(secret) for secret in self._secrets())
            for watch in self._watches:
                warnings += watch()
            warnings += await within(limits.store_seconds, store.warnings())
            warnings += await within(limits.store_seconds, self._registration.warnings())
            if self._inbox is None:
                warnings += await self._stranded()
            elif (problem := await self._inbox()) is not None:
                problems.append(problem)
        except StoreError as error:
            _log.warning("not ready: %s", error)
            problems.append("the store cannot be used; the log says why")
        except SecretError as error:
            problems.append(f"no delivery can be verified: {error}")
        return Readiness(tuple(problems), warnings, fingerprints)

    async def _refresh(self) -> None:
        self._last = await self.now()
        self._fresh_until = asyncio.get_running_loop().time() + _FRESH_SECONDS

    async def _stranded(self) -> tuple[str, ...]:
        """Return a warning of events in an inbox that this receiver does not have any more."""
        endpoint, seconds = self._parts.endpoint, self._parts.limits.store_seconds
        stats = await within(seconds, self._store.stats(endpoint=endpoint))
        return (stranded(endpoint, stats.depth),) if stats.depth and not stats.workers else ()


def stranded(endpoint: str, depth: int) -> str:
    """Return what is wrong and, behind a semicolon, its fix: a receiver has lost its inbox."""
    return (
        f"{depth} events wait in the inbox of {endpoint}, nobody works on it, and this receiver"
        " has none; give it inbox=Inbox() until they are handled, or start a worker"
    )


def health_routes(
    recent: Callable[[], Awaitable[Readiness]], *, token: str | None = None
) -> list[Route]:
    """Return ``/livez`` (the process answers) and ``/readyz`` (it can take deliveries).

    Anybody may ask. The problems, which name paths and counts, are told to those alone that show
    the token; without a token to nobody.

    Args:
        recent: what was found lately.
        token: what ``Authorization: Bearer`` must show, at least 16 characters of ASCII.

    Raises:
        ValueError: the token is too short.

    """
    if token is not None:
        check_token(token, "the token for /readyz")

    async def livez(request: Request) -> Response:  # noqa: ARG001 - the signature of a route
        return JSONResponse({"alive": True})

    async def readyz(request: Request) -> Response:
        readiness = await recent()
        content: dict[str, object] = {"ready": readiness.ready}
        if token is not None and has_bearer(request.scope, token):
            content |= asdict(readiness)
        status = HTTPStatus.OK if readiness.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse(content, status)

    return [Route(path, answer) for path, answer in zip(HEALTH_PATHS, (livez, readyz), strict=True)]
