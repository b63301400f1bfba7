"""Liveness and readiness of a receiver."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..clock import moment_text
from ..delivery.attempts import Attempts
from ..delivery.dependencies import Dependencies
from ..errors import LedgerError, SecretError, StoreError
from ..routing.registration import Registration
from ..stores.formats import FormatError
from ..stores.protocols import Reports
from ..stores.time_limit import within
from ..verification.secrets import fingerprint
from ..watching.process import process_name
from ..watching.refusals import Refusals
from .bearer import check_token, has_bearer

_log = logging.getLogger("hookonce")

_FRESH_SECONDS = 2.0

HEALTH_PATHS = ("/livez", "/readyz")
"""The paths of liveness and readiness."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a receiver can accept deliveries.

    Attributes:
        problems: the reasons why it cannot, each as "problem; fix" if a fix is known.
        warnings: faults that an operator should repair, though deliveries are accepted; each as
            "problem; fix" if a fix is known.
        secrets: the fingerprints of the current secrets, newest first.
        refused: the refused deliveries since the last genuine one; None after a genuine one.
        without_workers: the warnings that no separate worker handles an inbox; they are in
            ``warnings`` too.
    """

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    refused: Refusals | None = None
    without_workers: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    def requiring_workers(self) -> Readiness:
        """Return a copy in which missing separate workers are a problem, not a warning."""
        warnings = tuple(text for text in self.warnings if text not in self.without_workers)
        return replace(self, problems=self.problems + self.without_workers, warnings=warnings)


_SHUTTING_DOWN = Readiness(("the receiver is shutting down",))


class ReadinessCheck:
    """Checks whether a receiver can accept deliveries.

    Args:
        watches: return warnings; may raise SecretError.
        prepare: builds what the first delivery needs; may raise any error.
        inbox: returns the problem of the receiver's inbox, if there is one; may raise StoreError.
        has_separate_workers: whether other processes handle the inbox.
        secrets: returns the current secrets; may raise SecretError.
        refusals: returns the refused deliveries since the last genuine one.
        store_problem: returns the problem of a recent failure of the store, if there was one.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        attempts: Attempts,
        *,
        store: Reports,
        watches: Iterable[Callable[[], tuple[str, ...]]],
        registration: Registration,
        prepare: Callable[[], Awaitable[None]],
        inbox: Callable[[], Awaitable[str | None]] | None,
        has_separate_workers: bool,
        secrets: Callable[[], tuple[str, ...]],
        refusals: Callable[[], Refusals | None],
        store_problem: Callable[[], str | None],
    ) -> None:
        self._dependencies = dependencies
        self._attempts = attempts
        self._store = store
        self._watches = tuple(watches)
        self._registration = registration
        self._prepare = prepare
        self._inbox = inbox
        self._has_separate_workers = has_separate_workers
        self._secrets = secrets
        self._refusals = refusals
        self._store_problem = store_problem
        self._last = Readiness()
        self._fresh_until = 0.0
        self._checking: asyncio.Task[None] | None = None

    async def recent(self) -> Readiness:
        """Return the last result; if it is some seconds old, check again, once for all callers."""
        if not self._attempts.accepting:
            return _SHUTTING_DOWN
        loop = asyncio.get_running_loop()
        if loop.time() >= self._fresh_until:
            if self._checking is None or self._checking.done():
                self._checking = loop.create_task(self._refresh())
            await asyncio.shield(self._checking)
        return self._last

    async def now(self) -> Readiness:
        """Return the result of a new check."""
        if not self._attempts.accepting:
            return _SHUTTING_DOWN
        problems: list[str] = []
        warnings: tuple[str, ...] = ()
        without_workers: tuple[str, ...] = ()
        fingerprints: tuple[str, ...] = ()
        limits, store = self._dependencies.limits, self._store
        if overdue := self._attempts.overdue:
            problems.append(
                f"handlers beyond their time limit: {len(overdue)} ({', '.join(overdue)}). They"
                f" keep their events, and each sync handler keeps one of {limits.threads} threads;"
                " give the calls in these handlers a time limit, and restart this process"
            )
        if (problem := self._store_problem()) is not None:
            problems.append(problem)
        if (problem := await self._unprepared()) is not None:
            problems.append(problem)
        try:
            fingerprints = tuple(fingerprint(secret) for secret in self._secrets())
            for watch in self._watches:
                warnings += watch()
            warnings += await within(limits.store_seconds, store.warnings())
            warnings += await within(limits.store_seconds, self._registration.renew())
            if self._inbox is None:
                warnings += await self._stranded()
            elif (problem := await self._inbox()) is not None:
                if self._has_separate_workers:
                    # Only a warning: this process can still store deliveries, so it must go on
                    # receiving them.
                    without_workers = (problem,)
                    warnings += without_workers
                else:
                    problems.append(problem)
        except FormatError as error:  # another version of hookonce has upgraded the store
            _log.warning("not ready: %s", error)
            problems.append(str(error))
        except StoreError as error:
            _log.warning("not ready: %s", error)
            problems.append(f"the store does not work: {error}")
        except SecretError as error:
            problems.append(f"no delivery can be verified: {error}")
        return Readiness(tuple(problems), warnings, fingerprints, self._refusals(), without_workers)

    async def _refresh(self) -> None:
        self._last = await self.now()
        self._fresh_until = asyncio.get_running_loop().time() + _FRESH_SECONDS

    async def _unprepared(self) -> str | None:
        """Return the reason why every delivery would fail; None if deliveries can succeed."""
        try:
            await self._prepare()
        except LedgerError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - a user's event class may raise anything
            summary = str(error).partition("\n")[0]
            problem = (
                "no delivery can be read, because an event class of a handler cannot be built:"
                f" {type(error).__name__}: {summary}"
            )
        else:
            return None
        _log.warning("not ready: %s", problem)
        return problem

    async def _stranded(self) -> tuple[str, ...]:
        """Return a warning about events in an inbox that the receiver no longer has."""
        endpoint, seconds = self._dependencies.endpoint, self._dependencies.limits.store_seconds
        stats = await within(seconds, self._store.stats(endpoint=endpoint))
        return (stranded(endpoint, stats.depth),) if stats.depth and not stats.workers else ()


def stranded(endpoint: str, depth: int) -> str:
    """Return a warning and its fix: the receiver has no inbox, but its store has inbox events."""
    return (
        f"the inbox of {endpoint} has no worker ({depth} waiting), and this receiver has no inbox;"
        " give it inbox=Inbox() until these events are handled, or start a worker"
    )


def _details(readiness: Readiness) -> dict[str, object]:
    """Return the part of ``/readyz`` that only callers with the token see."""
    details: dict[str, object] = {
        "process": process_name(),
        "problems": readiness.problems,
        "warnings": readiness.warnings,
        "secrets": readiness.secrets,
    }
    if (refused := readiness.refused) is not None:
        details["refused"] = {
            "since": moment_text(refused.since_unix),
            "count": refused.deliveries,
            "reason": refused.reason,
            "warning": refused.warning,
        }
    return details


def health_routes(
    recent: Callable[[], Awaitable[Readiness]], *, token: str | None = None
) -> list[Route]:
    """Return routes for ``/livez`` (the process answers) and ``/readyz`` (it accepts deliveries).

    If separate processes handle the inbox, their absence is only a warning, since deliveries can
    still be stored; ``/readyz?workers=required`` makes it a problem.

    Both need no token. Problems and warnings contain paths and counts, so ``/readyz`` shows them
    only to callers with the token.

    Args:
        recent: returns the result of a recent check.
        token: the bearer token, at least 16 ASCII characters; without one nobody sees details.

    Raises:
        ValueError: the token is too short.
    """
    if token is not None:
        check_token(token, "the token for /readyz")

    async def livez(request: Request) -> Response:  # noqa: ARG001 - Starlette prescribes this parameter
        return JSONResponse({"alive": True})

    async def readyz(request: Request) -> Response:
        readiness = await recent()
        if request.query_params.get("workers") == "required":
            readiness = readiness.requiring_workers()
        content: dict[str, object] = {"ready": readiness.ready}
        if token is not None and has_bearer(request.scope, token):
            content |= _details(readiness)
        status = HTTPStatus.OK if readiness.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse(content, status)

    return [Route(path, answer) for path, answer in zip(HEALTH_PATHS, (livez, readyz), strict=True)]
