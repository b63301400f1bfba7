"""Live updates of open pages, as server-sent events.

Nothing is queued for a page. Each page has a cursor, which is a version of the journal. The stream
sends the rows that have changed since that version, a limited number at a time. A slow page misses
rows, but delays nobody.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

from ...clock import span_seconds, uptime
from ...http.app import Receive, Send
from ...logs import get_logger
from ...stores.values import new_token
from .bounds import Bounds
from .filters import Filters
from .journal import Journal
from .seen import Seen

_log = get_logger("hookonce.inspector")

_LOOK_SECONDS = 0.5
_OVERVIEW_SECONDS = 2.0
_HEARTBEAT_SECONDS = 5.0
# The server disconnects a visitor that reads nothing for this long.
_SEND_SECONDS = 5.0
_RETRY_MILLISECONDS = 500
_MOST_ROWS = 30
_MOST_CHANGES = 500
_VERSION = re.compile("[0-9]{1,15}")  # few digits, because int() raises for thousands of digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The filters of a page, and the functions that render the page's updates.

    Attributes:
        overview: renders the parts of the page above the rows; the result has each part by its
            name.
        is_allowed: returns whether the visitor is still logged in.
    """

    filters: Filters
    row: Callable[[Seen], str]
    overview: Callable[[], Awaitable[Mapping[str, str]]]
    is_allowed: Callable[[], bool]


class Live:
    """Streams of events to open pages.

    Args:
        bounds: the most pages, and the longest stream.
        look: adds the work of other processes to the journal; called before each reading of the
            journal.
    """

    def __init__(
        self, journal: Journal, bounds: Bounds, *, look: Callable[[], Awaitable[None]]
    ) -> None:
        self._journal = journal
        self._look = look
        self._bounds = bounds
        self._stream_seconds = span_seconds("stream_seconds", bounds.stream_seconds)
        self._viewers = 0
        self._is_ended = False
        # Part of each cursor, because the journal's versions start again at 0 in each process.
        self._process = new_token()[:8]

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of streams is open."""
        return self._viewers >= self._bounds.viewers

    @property
    def cursor(self) -> str:
        """The cursor for a page that is rendered now; its stream starts there."""
        return f"{self._process}-{self._journal.version}"

    def end(self) -> None:
        """End all streams, within half a second, so that the server can stop."""
        self._is_ended = True

    async def stream(self, watch: Watch, cursor: str, receive: Receive, send: Send) -> None:
        """Answer a request with a stream of events, for a limited time.

        Args:
            cursor: the page's cursor, or the id of the last event it has received.
            receive: ASGI's; it returns when the visitor is gone.
        """
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        self._viewers += 1
        try:
            async with _gone(receive) as gone:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await self._send_all(watch, cursor, gone, send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            _log.info("ended the stream of a page that reads nothing any more")
        finally:
            self._viewers -= 1

    async def _send_all(
        self, watch: Watch, cursor: str, gone: asyncio.Future[None], send: Send
    ) -> None:
        process, _, version = cursor.partition("-")
        if process != self._process or _VERSION.fullmatch(version) is None:
            await _write(send, _event("restarted", {}))
            return
        seen = int(version)
        ends = uptime() + self._stream_seconds
        overview_at = beat_at = 0.0
        while not (self._is_ended or gone.done()) and uptime() < ends and watch.is_allowed():
            parts = []
            await self._look()
            if self._journal.version != seen:
                cursor, changed = self.cursor, self._changed(seen)
                seen = self._journal.version
                parts = [_event("rows", await asyncio.to_thread(_rows, watch, changed), cursor)]
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
        """Return copies of the deliveries that have changed since a version, newest first."""
        newest = (one for one in self._journal.newest_first() if one.changed > seen)
        return [one.copy() for one in islice(newest, _MOST_CHANGES)]


def _rows(watch: Watch, changed: list[Seen]) -> list[dict[str, object]]:
    """Return the changed rows as HTML; a row that no longer passes the filters is empty."""
    rows: list[dict[str, object]] = []
    shown = 0
    for one in changed:
        is_wanted = watch.filters.match(one)
        rows.append({"number": one.number, "html": watch.row(one) if is_wanted else ""})
        shown += is_wanted
        if shown == _MOST_ROWS:
            break
    return rows


def _event(name: str, content: object, cursor: str | None = None) -> str:
    # A line end would end the event, but the JSON contains none.
    event_id = "" if cursor is None else f"id: {cursor}\n"
    return f"event: {name}\n{event_id}data: {json.dumps(content)}\n\n"


async def _write(send: Send, text: str) -> None:
    async with asyncio.timeout(_SEND_SECONDS):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


@asynccontextmanager
async def _gone(receive: Receive) -> AsyncIterator[asyncio.Future[None]]:
    """Yield a future that is done when the visitor has disconnected."""

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task = asyncio.get_running_loop().create_task(listen())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
