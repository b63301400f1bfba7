"""A page that is open hears of what is new, as server-sent events.

Nothing is queued for a page: it has a place in the journal, and what it has not seen from there on
is looked up, a bounded number of rows at a time. A page that reads slowly misses rows and holds up
nobody.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

from ...clock import uptime
from ...http.app import Receive, Send
from ...logs import get_logger
from ...stores.values import new_token
from .bounds import Bounds
from .filters import Filters
from .journal import Journal, Seen

_log = get_logger("hookonce.inspector")

_LOOK_SECONDS = 0.5
_OVERVIEW_SECONDS = 2.0
_HEARTBEAT_SECONDS = 5.0
# A visitor that takes nothing for so long is gone.
_SEND_SECONDS = 5.0
_RETRY_MILLISECONDS = 500
_MOST_ROWS = 30
_MOST_CHANGES = 500
_VERSION = re.compile("[0-9]{1,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What one page shows.

    Attributes:
        filters: which rows.
        row: renders a row.
        overview: renders what stands above the rows, part by part.
        may_go_on: says whether the visitor has not been sent away.

    """

    filters: Filters
    row: Callable[[Seen], str]
    overview: Callable[[], Awaitable[Mapping[str, str]]]
    may_go_on: Callable[[], bool]


class Live:
    """Streams to open pages, as many as the bounds allow.

    Args:
        journal: what there is to tell.
        bounds: how many pages, and for how long at a time.
        look: asked before each look at the journal for what happened in other processes.

    """

    def __init__(
        self, journal: Journal, bounds: Bounds, *, look: Callable[[], Awaitable[None]]
    ) -> None:
        self._journal = journal
        self._look = look
        self._bounds = bounds
        self._viewers = 0
        self._is_ended = False
        # After a restart numbers begin anew; a page that was open before has to load again.
        self._process = new_token()[:8]

    @property
    def is_full(self) -> bool:
        """Whether no other page can be live."""
        return self._viewers >= self._bounds.viewers

    @property
    def place(self) -> str:
        """Where the journal is now, for a page that is rendered now."""
        return f"{self._process}-{self._journal.version}"

    def end(self) -> None:
        """End every stream soon, since the server stops."""
        self._is_ended = True

    async def stream(self, watch: Watch, place: str, receive: Receive, send: Send) -> None:
        """Answer a request with a stream from a place on, until its time is over.

        Args:
            watch: what the page shows.
            place: what the page has seen: its ``place``, or the id of the last event.
            receive: the request's; it says when the visitor is gone.
            send: where the stream goes.

        """
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        self._viewers += 1
        try:
            async with _gone(receive) as gone:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await self._send_all(watch, place, gone, send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            _log.info("a visitor's page takes nothing any more; its stream is over")
        finally:
            self._viewers -= 1

    async def _send_all(
        self, watch: Watch, place: str, gone: asyncio.Future[None], send: Send
    ) -> None:
        process, _, version = place.partition("-")
        # Not of this process: another's, or made up. And int() refuses thousands of digits.
        if process != self._process or _VERSION.fullmatch(version) is None:
            await _write(send, _event("restarted", {}))
            return
        seen = int(version)
        ends = uptime() + self._bounds.stream_seconds
        overview_at = beat_at = 0.0
        while not (self._is_ended or gone.done()) and uptime() < ends and watch.may_go_on():
            parts = []
            await self._look()
            if self._journal.version != seen:
                place, changed = self.place, self._changed(seen)
                seen = self._journal.version
                parts = [_event("rows", await asyncio.to_thread(_rows, watch, changed), place)]
            if uptime() >= overview_at:
                parts.append(_event("overview", await watch.overview()))
                overview_at = uptime() + _OVERVIEW_SECONDS
            if uptime() >= beat_at:
                parts.append(f"retry: {_RETRY_MILLISECONDS}\n: here\n\n")
                beat_at = uptime() + _HEARTBEAT_SECONDS
            if parts:
                await _write(send, "".join(parts))
            await asyncio.wait({gone}, timeout=_LOOK_SECONDS)

    def _changed(self, seen: int) -> list[Seen]:
        """Return copies of the deliveries that have changed since, newest first."""
        newest = (one for one in self._journal.newest_first() if one.changed > seen)
        return [one.copy() for one in islice(newest, _MOST_CHANGES)]


def _rows(watch: Watch, changed: list[Seen]) -> list[dict[str, object]]:
    """Return rows for a page, a bounded number; one that does not match has no text."""
    rows: list[dict[str, object]] = []
    shown = 0
    for one in changed:
        is_wanted = watch.filters.match(one)
        rows.append({"number": one.number, "html": watch.row(one) if is_wanted else ""})
        shown += is_wanted
        if shown == _MOST_ROWS:
            break
    return rows


def _event(name: str, content: object, place: str | None = None) -> str:
    # JSON has neither line ends nor anything else that could end an event.
    last = "" if place is None else f"id: {place}\n"
    return f"event: {name}\n{last}data: {json.dumps(content)}\n\n"


async def _write(send: Send, text: str) -> None:
    async with asyncio.timeout(_SEND_SECONDS):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


@asynccontextmanager
async def _gone(receive: Receive) -> AsyncIterator[asyncio.Future[None]]:
    """Give a future that is done when the visitor is gone."""

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task = asyncio.get_running_loop().create_task(listen())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
