"""Logs and counts the requests of ``hookonce serve`` that reach no receiver.

A receiver logs and counts its deliveries itself. Without this middleware a wrong path, a missing
slash or a scanner would leave no trace.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from http import HTTPStatus
from logging import INFO, WARNING
from typing import NamedTuple

from hookonce.http.app import REACHED, ASGIApp, Message, Receive, Scope, Send
from hookonce.logs import get_logger

_log = get_logger("hookonce.requests")

_PERIOD_SECONDS = 60.0
_MOST_PLACES = 100  # limited, because strangers choose the paths
_SHOWN_PLACES = 3
_MOST_PATH_CHARACTERS = 100


class RequestKind(StrEnum):
    """Which part of the server answered a request; a metric has this value as a label."""

    RECEIVER = "receiver"
    """A receiver answered."""
    SERVER = "server"
    """A page of the server answered: health, metrics or the inspector."""
    APPLICATION = "application"
    """The user's application answered, and not with a 404, a 405 or a redirect."""
    UNKNOWN = "unknown"
    """The answer was a 404, a 405 or a redirect."""
    MISDIRECTED = "misdirected"
    """The answer was a 404, a 405 or a redirect, and the request has the header of a signed id."""


class _Place(NamedTuple):
    method: str
    path: str
    status: int

    def __str__(self) -> str:
        return f"{self.method} {self.path!r} (answered {self.status})"


class RequestLog:
    """ASGI middleware that counts every request, and logs those that no receiver answers.

    Requests to unknown paths are summed up once a minute, so that a scanner cannot fill the log.

    Args:
        own_paths: the paths of health checks, metrics and the inspector, with all paths below them.
        delivery_paths: the paths of the receivers, for messages.
        delivery_headers: the headers that only deliveries have, in lower case.
        count: called with the kind and the status of each answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        own_paths: Collection[str],
        delivery_paths: Collection[str] = (),
        delivery_headers: Collection[bytes] = (b"webhook-id",),
        count: Callable[[str, int], object] | None = None,
    ) -> None:
        self._app = app
        self._own_paths = tuple(own_paths)
        self._delivery_paths = ", ".join(delivery_paths)
        self._delivery_headers = frozenset(delivery_headers)
        self._count = count
        self._unknown: Counter[_Place] = Counter()
        self._misdirected: Counter[_Place] = Counter()
        self._next_summary: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, and count it with the status of its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            # At shutdown, log the counts of the last period.
            if self._next_summary is not None:
                self._next_summary.cancel()
                self._summarise()
            return
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)  # the status if the application raises

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        # Read the path before the call, because a mount changes the path.
        path, reached = scope["path"], list[object]()
        scope[REACHED] = reached
        try:
            await self._app(scope, receive, noting)
        finally:
            kind = RequestKind.RECEIVER if reached else self._kind(path, scope["headers"], status)
            self._note(kind, _Place(scope["method"], path[:_MOST_PATH_CHARACTERS], status))

    def _note(self, kind: RequestKind, place: _Place) -> None:
        if self._count is not None:
            self._count(kind, place.status)
        if kind is RequestKind.UNKNOWN:
            self._add(self._unknown, place)
        elif kind is RequestKind.MISDIRECTED:
            self._add(self._misdirected, place)
        elif kind is not RequestKind.RECEIVER:
            _log.debug("%s", place)

    def _kind(self, path: str, headers: Iterable[tuple[bytes, bytes]], status: int) -> RequestKind:
        if any(path == own or path.startswith(f"{own}/") for own in self._own_paths):
            return RequestKind.SERVER
        if 300 <= status < 400 or status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
            is_delivery = any(name in self._delivery_headers for name, _ in headers)
            return RequestKind.MISDIRECTED if is_delivery else RequestKind.UNKNOWN
        return RequestKind.APPLICATION

    def _add(self, places: Counter[_Place], place: _Place) -> None:
        """Log the first request of a period at once; count later requests for the summary."""
        if self._next_summary is None:
            self._next_summary = asyncio.get_running_loop().call_later(
                _PERIOD_SECONDS, self._summarise
            )
        if not places:
            if places is self._misdirected:
                _log.warning("a delivery did not reach a receiver: %s%s", place, self._hint(place))
            else:
                _log.info("a request to an unknown path: %s", place)
            places[place] = 0
        elif place not in places and len(places) >= _MOST_PLACES:
            place = next(reversed(places))
        places[place] += 1

    def _hint(self, place: _Place) -> str:
        """Return what to do about a delivery that did not reach a receiver."""
        if 300 <= place.status < 400:
            return (
                ", and the sender follows no redirect; exempt the path from redirects (instead of a"
                " Mount, use receiver.routes(path)), or register the target as the endpoint's URL"
            )
        return f"; deliveries go to {self._delivery_paths}" if self._delivery_paths else ""

    def _summarise(self) -> None:
        """Log the counts of the period that ends now, and start the next period."""
        self._next_summary = None
        for places, level, text in (
            (self._misdirected, WARNING, "deliveries did not reach a receiver"),
            (self._unknown, INFO, "requests went to unknown paths"),
        ):
            count = places.total()
            if count > 1:
                most = ", ".join(
                    f"{n} times {place}" for place, n in places.most_common(_SHOWN_PLACES)
                )
                _log.log(level, "in the last %g s, %d %s: %s", _PERIOD_SECONDS, count, text, most)
            places.clear()
