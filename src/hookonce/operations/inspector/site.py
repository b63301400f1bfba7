"""The pages of one receiver: deliveries, stored events, workers, and live updates."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from itertools import islice
from math import inf
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ...clock import uptime
from ...errors import StoreError
from ...events import EventParser
from ...http.app import Receive, Scope, Send
from ...inbox.handled import HandledEvents
from ...logs import get_logger
from ...receiver import Receiver
from ...routing.table import HandlerTable
from ...stores.filters import passing
from ...stores.handled import HandledEvent
from ...stores.time_limit import within
from ...stores.values import DeadLetter, DeadReason, DeliveryKey, Entry
from ...watching.process import process_name
from .access import Access
from .actions import Actions
from .bounds import Bounds
from .filters import AGES, Filters, StoredFilters
from .journal import Journal
from .live import Live, Watch
from .other_processes import OtherProcesses
from .overview import Overviews
from .pages import Frame, Pages
from .redaction import Redaction
from .requests import body_of, client_of, root_of
from .stored import dead_letter_row, dead_letter_view, entry_row, handled_row, handled_view
from .views import delivery_view, row_of

E = TypeVar("E", DeadLetter, Entry, HandledEvent)

_log = get_logger("hookonce.inspector")

_MOST_ROWS = 100
_MOST_STORED = 200
_MOST_SEARCHED = 5000
_STORE_SECONDS = 5.0
_MOST_WAITING_PAGES = 8
_PAGE_SECONDS = 10.0

# Errors in a list may quote hidden values. To find these values, the list reads bodies, up to this
# total size.
_MOST_LISTED_BYTES = 1024**2
_LIST_SECONDS = 3.0
_AT_ONCE = 8

_NUMBER = re.compile("[0-9]{1,15}")  # few digits, because int() raises for thousands of digits


class BusyError(Exception):
    """Raised if too many pages are loading at once, or one page takes too long."""


class Site:
    """The pages of one receiver.

    Args:
        endpoints: names of all endpoints that the inspector shows.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        endpoints: tuple[str, ...],
        access: Access,
        redaction: Redaction,
        bounds: Bounds,
    ) -> None:
        self._receiver = receiver
        self._endpoints = endpoints
        self._access = access
        self._redaction = redaction
        self._journal = Journal(bounds)
        self._actions = Actions(receiver, most=bounds.actions)
        self._overviews = Overviews(receiver, self._journal)
        self._others = OtherProcesses(receiver, self._journal)
        # Use separate threads, so that slow pages delay no handler.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="hookonce-inspector")
        self._large_page = asyncio.Lock()
        self._waiting_pages = 0
        self.pages: Pages = Pages()
        self.live: Live = Live(self._journal, bounds, look=self._others.look)
        receiver.observe(self._journal, of=self._journal.followed)

    def routes(self) -> list[Route]:
        """Return the routes, relative to the path at which the inspector is mounted."""
        at = "" if len(self._endpoints) == 1 else f"/at/{self._receiver.endpoint}"
        return [
            Route(f"{at}/", self._deliveries),
            Route(f"{at}/deliveries/{{number}}", self._delivery),
            Route(f"{at}/dead", self._dead),
            Route(f"{at}/dead/letter", self._dead_letter),
            Route(f"{at}/dead/replay", partial(self._act, "replay"), methods=["POST"]),
            Route(f"{at}/dead/discard", partial(self._act, "discard"), methods=["POST"]),
            Route(f"{at}/inbox", self._waiting),
            Route(f"{at}/inbox/retry", partial(self._act, "retry"), methods=["POST"]),
            Route(f"{at}/handled", self._handled),
            Route(f"{at}/handled/event", self._handled_event),
            Route(f"{at}/workers", self._workers),
            Route(f"{at}/stream", _Stream(self)),
        ]

    def frame(self, scope: Scope) -> Frame:
        home, endpoint = root_of(scope), self._receiver.endpoint
        return Frame(
            home=home,
            root=home if len(self._endpoints) == 1 else f"{home}/at/{endpoint}",
            endpoint=endpoint,
            endpoints=self._endpoints,
            has_inbox=self._receiver.has_inbox,
            keeps_handled=self._kept is not None,
        )

    @property
    def _kept(self) -> HandledEvents | None:
        return getattr(self._receiver, "handled", None)

    async def _page(
        self,
        template: str,
        request: Request,
        status: int = HTTPStatus.OK,
        content: Callable[[], Mapping[str, object]] = dict,
    ) -> Response:
        """Return a page; a thread makes the ``content`` of the page."""
        frame, overview = self.frame(request.scope), await self._overviews.now()

        def render() -> str:
            return self.pages.render(template, frame, overview=overview, **content())

        rendering = asyncio.get_running_loop().run_in_executor(self._threads, render)
        try:
            async with asyncio.timeout(_PAGE_SECONDS):
                return HTMLResponse(await rendering, status)
        except TimeoutError:
            _log.warning("a page of the inspector took longer than %g s", _PAGE_SECONDS)
            raise BusyError from None

    @asynccontextmanager
    async def _one_at_a_time(self) -> AsyncIterator[None]:
        """Load only one page with bodies at a time, because it may need much memory."""
        if self._waiting_pages >= _MOST_WAITING_PAGES:
            raise BusyError
        self._waiting_pages += 1
        try:
            async with self._large_page:
                yield
        finally:
            self._waiting_pages -= 1

    def _parser(self) -> EventParser:
        return HandlerTable(self._receiver.handlers).parser

    async def _deliveries(self, request: Request) -> Response:
        filters = Filters.parse(request.query_params)
        await self._others.look()
        # Take the cursor before the rows, so that the stream misses no change.
        cursor = self.live.cursor
        copies = [seen.copy() for seen in self._journal.newest_first()]

        def content() -> Mapping[str, object]:
            rows = [row_of(seen) for seen in islice(filter(filters.match, copies), _MOST_ROWS)]
            return {"rows": rows, "filters": filters, "cursor": cursor, "most": _MOST_ROWS}

        return await self._page("deliveries.html", request, content=content)

    async def _delivery(self, request: Request) -> Response:
        number = request.path_params["number"]
        await self._others.look()
        seen = self._journal.find(int(number)) if _NUMBER.fullmatch(number) else None
        filters = Filters.parse(request.query_params)
        if seen is None:
            return await self._missing(
                request, "this delivery is unknown, or newer ones have replaced it"
            )
        copy = seen.copy()

        def content() -> Mapping[str, object]:
            view = delivery_view(copy, self._parser(), self._redaction)
            return {"view": view, "filters": filters}

        async with self._one_at_a_time():
            return await self._page("delivery.html", request, content=content)

    async def _dead(self, request: Request) -> Response:
        filters, dead = StoredFilters.parse(request.query_params), self._receiver.dead
        reason = DeadReason(filters.reason) if filters.reason else None
        async with self._one_at_a_time():
            finding = self._find(filters, partial(dead.list, reason=reason), dead.show)
            letters, searched, problem = await within(_STORE_SECONDS, finding)
            failed = [letter.delivery.event_id for letter in letters if letter.error]
            bodies = await within(_STORE_SECONDS, _bodies(failed, dead.show))

            def content() -> Mapping[str, object]:
                body = _in_time(bodies)
                rows = [
                    dead_letter_row(letter, body(letter.delivery.event_id), self._redaction)
                    for letter in letters
                ]
                return {
                    "letters": rows,
                    "filters": filters,
                    "most": _MOST_STORED,
                    "searched": searched,
                    "problem": problem,
                }

            return await self._page("dead.html", request, content=content)

    async def _find(
        self,
        filters: StoredFilters,
        listed: Callable[..., Awaitable[Sequence[E]]],
        show: Callable[[str], Awaitable[E | None]],
    ) -> tuple[list[E], int | None, str]:
        """Return the events of a list that pass the filters.

        Returns:
            The events; if the search stops early, the number of events that it read; and the
            problem of the filters, or an empty text.
        """
        try:
            wanted = filters.of_body(self._redaction)
        except ValueError as error:
            return [], None, str(error)

        def load(key: DeliveryKey) -> Awaitable[E | None]:
            return show(key.partition(":")[2])

        since = self._receiver.clock() - AGES[filters.age] if filters.age else None
        # Bodies may be large, so a search in them reads few at once, and stops after some time.
        size, seconds = (_AT_ONCE, _LIST_SECONDS) if filters.where else (_MOST_STORED, inf)
        ends = uptime() + seconds
        found: list[E] = []
        searched, after = 0, None
        while True:
            page = await listed(since=since, after=after, limit=size)
            matching = list(filter(filters.match, page))
            found += await passing(matching, load, wanted) if filters.where else matching
            if len(found) >= _MOST_STORED or len(page) < size:
                return found[:_MOST_STORED], None, ""
            searched, after = searched + len(page), page[-1].place
            if searched >= _MOST_SEARCHED or uptime() >= ends:
                return found, searched, ""

    async def _dead_letter(self, request: Request) -> Response:
        event_id = request.query_params.get("id", "")
        await self._others.look()
        async with self._one_at_a_time():
            letter = await within(_STORE_SECONDS, self._receiver.dead.show(event_id))
            if letter is None:
                return await self._missing(request, "there is no such dead letter any more")
            history = self._journal.history_of(event_id)
            copy = history and history.copy()

            def content() -> Mapping[str, object]:
                return {"view": dead_letter_view(letter, copy, self._parser(), self._redaction)}

            return await self._page("dead_letter.html", request, content=content)

    async def _waiting(self, request: Request) -> Response:
        if not self._receiver.has_inbox:
            return await self._missing(request, "this receiver has no inbox")
        filters, waiting = StoredFilters.parse(request.query_params), self._receiver.waiting
        async with self._one_at_a_time():
            now = self._receiver.clock()
            finding = self._find(filters, waiting.list, waiting.show)
            found, searched, problem = await within(_STORE_SECONDS, finding)
            failed = [entry.delivery.event_id for entry in found if entry.history]
            bodies = await within(_STORE_SECONDS, _bodies(failed, waiting.show))

            def content() -> Mapping[str, object]:
                body = _in_time(bodies)
                rows = [
                    entry_row(entry, body(entry.delivery.event_id), self._redaction, now)
                    for entry in found
                ]
                return {
                    "entries": rows,
                    "filters": filters,
                    "most": _MOST_STORED,
                    "searched": searched,
                    "problem": problem,
                }

            return await self._page("inbox.html", request, content=content)

    async def _handled(self, request: Request) -> Response:
        kept = self._kept
        if kept is None:
            return await self._missing(request, "this receiver keeps no handled events")
        filters = StoredFilters.parse(request.query_params)
        async with self._one_at_a_time():
            finding = self._find(filters, kept.list, kept.show)
            found, searched, problem = await within(_STORE_SECONDS, finding)

            def content() -> Mapping[str, object]:
                return {
                    "events": [handled_row(event) for event in found],
                    "filters": filters,
                    "most": _MOST_STORED,
                    "searched": searched,
                    "problem": problem,
                }

            return await self._page("handled.html", request, content=content)

    async def _handled_event(self, request: Request) -> Response:
        kept, event_id = self._kept, request.query_params.get("id", "")
        if kept is None:
            return await self._missing(request, "this receiver keeps no handled events")
        await self._others.look()
        async with self._one_at_a_time():
            event = await within(_STORE_SECONDS, kept.show(event_id))
            if event is None:
                return await self._missing(request, "no such handled event is kept any more")
            history = self._journal.history_of(event_id)
            copy = history and history.copy()

            def content() -> Mapping[str, object]:
                return {"view": handled_view(event, copy, self._parser(), self._redaction)}

            return await self._page("handled_event.html", request, content=content)

    async def _workers(self, request: Request) -> Response:
        # `look` tells the workers that a page is open. They then report more often.
        await self._others.look()
        try:
            workers = await self._receiver.workers()
        except StoreError as error:
            _log.warning("the inspector cannot read the reports of workers: %s", error)
            workers = None
        content = {"workers": workers, "own_process": process_name()}
        return await self._page("workers.html", request, content=lambda: content)

    async def _missing(self, request: Request, problem: str) -> Response:
        """Return a page with status 404."""
        content = {"problem": problem}
        return await self._page(
            "problem.html", request, HTTPStatus.NOT_FOUND, content=lambda: content
        )

    async def _act(self, name: str, request: Request) -> Response:
        event_id = _id_in(await body_of(request))
        if event_id is None:
            wanted = 'send {"id": "…"}'
            return JSONResponse({"ok": False, "outcome": wanted}, HTTPStatus.BAD_REQUEST)
        self._journal.follow(event_id)  # from now on, keep every step of this event
        result = await self._actions.act(name, event_id, client_of(request))
        self._overviews.forget()
        content = {"id": event_id, "ok": result.ok, "outcome": result.outcome}
        return JSONResponse(content, result.status)

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if self.live.is_full:
            text = "too many pages are live; close one of them\n"
            await Response(text, HTTPStatus.SERVICE_UNAVAILABLE)(scope, receive, send)
            return
        filters, frame = Filters.parse(request.query_params), self.frame(scope)
        is_in_session = self._access.has_session(request)  # a bearer token has no session
        render = partial(self.pages.render, "_row.html", frame, filters=filters)
        watch = Watch(
            filters=filters,
            row=lambda seen: render(row=row_of(seen)),
            overview=partial(self._overview, frame),
            is_allowed=lambda: not is_in_session or self._access.has_session(request),
        )
        last_id = request.headers.get("last-event-id")
        cursor = last_id or request.query_params.get("cursor") or self.live.cursor
        await self.live.stream(watch, cursor, receive, send)

    async def _overview(self, frame: Frame) -> Mapping[str, str]:
        overview = await self._overviews.now()
        return {
            name: self.pages.render(f"_{name}.html", frame, overview=overview)
            for name in ("facts", "charts")
        }


class _Stream:
    """An ASGI application as an object, because Starlette would call a method as a view."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._site.stream(scope, receive, send)


async def _bodies(
    event_ids: Iterable[str], show: Callable[[str], Awaitable[DeadLetter | Entry | None]]
) -> Mapping[str, bytes]:
    """Return the bodies of events by id, up to a total number of bytes."""
    bodies: dict[str, bytes] = {}
    waiting = iter(event_ids)
    size = 0
    while size < _MOST_LISTED_BYTES and (some := list(islice(waiting, _AT_ONCE))):
        for found in await asyncio.gather(*map(show, some)):
            if found is not None:
                size += len(found.delivery.body)
                bodies[found.delivery.event_id] = found.delivery.body
    return bodies


def _in_time(bodies: Mapping[str, bytes]) -> Callable[[str], bytes | None]:
    """Return a function that looks up bodies by id; it returns None after the list's time limit."""
    ends = uptime() + _LIST_SECONDS
    return lambda event_id: bodies.get(event_id) if uptime() < ends else None


def _id_in(body: bytes) -> str | None:
    try:
        content = json.loads(body)
        event_id = content["id"]
        # Refuse a lone surrogate, which no answer can contain: `encode` raises UnicodeEncodeError.
        event_id.encode()
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    return event_id if isinstance(event_id, str) else None
