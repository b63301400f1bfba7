"""The pages behind the doors: deliveries, dead letters, the inbox, and what is live."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import TypeVar
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ...clock import uptime
from ...http.app import Receive, Scope, Send
from ...inbox.waiting import WaitingEvents
from ...logs import get_logger
from ...stores.time_limit import within
from ...stores.values import DeadLetter, DeadReason, Entry
from .access import Access
from .actions import Actions
from .bounds import Bounds
from .elsewhere import Elsewhere
from .filters import AGES, DeadLetterFilters, Filters
from .journal import Journal
from .live import Live, Watch
from .overview import Overviews
from .pages import Frame, Pages
from .redaction import Redaction
from .stored import dead_letter_row, dead_letter_view, entry_row
from .views import delivery_view, row_of
from .watched import Watched

_log = get_logger("hookonce.inspector")

_MOST_FORM_BYTES = 8192
_FORM_SECONDS = 10.0
_SAFE_IN_PATHS = "/!$&'()*+,:;=@~"

_MOST_ROWS = 100
_MOST_LETTERS = 200
_MOST_SEARCHED = 5000
_STORE_SECONDS = 5.0
_MOST_WAITING_PAGES = 8
_PAGE_SECONDS = 10.0

# The bodies that are read for a list, since what failed may quote them.
_MOST_LISTED_BYTES = 1024**2
_LIST_SECONDS = 3.0
_AT_ONCE = 8

T = TypeVar("T")

_NUMBER = re.compile("[0-9]{1,15}")  # int() refuses thousands of digits


class BusyError(Exception):
    """Too many pages are being made at once, or this one takes too long."""


class Site:
    """What a visitor who may look can see and do.

    Args:
        receiver: whose deliveries.
        endpoints: the names of all endpoints that the inspector shows.
        access: who may act.
        redaction: what is hidden.
        bounds: how much is kept.

    Attributes:
        pages: what renders them.
        live: the streams to open pages.

    """

    def __init__(
        self,
        receiver: Watched,
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
        self._inbox: WaitingEvents | None = getattr(receiver, "inbox", None)
        self._actions = Actions(receiver, self._inbox, most=bounds.actions)
        has_inbox = self._inbox is not None
        self._overviews = Overviews(receiver, self._journal, has_inbox=has_inbox)
        self._elsewhere = Elsewhere(receiver, self._journal)
        # Threads of its own: pages that take long hold up other pages, and no handler.
        self._maker = ThreadPoolExecutor(2, thread_name_prefix="hookonce-inspector")
        self._turn = asyncio.Lock()
        self._waiting_pages = 0
        self.pages = Pages()
        self.live = Live(self._journal, bounds, look=self._elsewhere.look)
        receiver.observe(self._journal, of=self._journal.followed)

    def routes(self) -> list[Route]:
        """Return the routes, below wherever the inspector is mounted."""
        at = "" if len(self._endpoints) == 1 else f"/at/{self._receiver.endpoint}"
        return [
            Route(f"{at}/", self._deliveries),
            Route(f"{at}/deliveries/{{number}}", self._delivery),
            Route(f"{at}/dead", self._dead),
            Route(f"{at}/dead/letter", self._letter),
            Route(f"{at}/dead/replay", partial(self._act, "replay"), methods=["POST"]),
            Route(f"{at}/dead/discard", partial(self._act, "discard"), methods=["POST"]),
            Route(f"{at}/inbox", self._waiting),
            Route(f"{at}/inbox/retry", partial(self._act, "retry"), methods=["POST"]),
            Route(f"{at}/stream", _Stream(self)),
        ]

    def frame(self, scope: Scope) -> Frame:
        """Return what stands around the pages of a request."""
        home, endpoint = root_of(scope), self._receiver.endpoint
        return Frame(
            home=home,
            root=home if len(self._endpoints) == 1 else f"{home}/at/{endpoint}",
            endpoint=endpoint,
            endpoints=self._endpoints,
            has_inbox=self._inbox is not None,
        )

    async def _page(
        self,
        template: str,
        request: Request,
        status: int = HTTPStatus.OK,
        content: Callable[[], Mapping[str, object]] = dict,
    ) -> Response:
        """Return a page with what stands above every page; its content is made in a thread."""
        frame, overview = self.frame(request.scope), await self._overviews.now()

        def make() -> str:
            return self.pages.render(template, frame, overview=overview, **content())

        return HTMLResponse(await self._made(make), status)

    async def _made(self, make: Callable[[], T]) -> T:
        """Make a page beside the event loop, or raise BusyError where that takes too long."""
        making = asyncio.get_running_loop().run_in_executor(self._maker, make)
        try:
            async with asyncio.timeout(_PAGE_SECONDS):
                return await making
        except TimeoutError:
            _log.warning("a page of the inspector took longer than %g s", _PAGE_SECONDS)
            raise BusyError from None

    @asynccontextmanager
    async def _at_its_turn(self) -> AsyncIterator[None]:
        """Let one page be made at a time of those that show events: each may take much memory."""
        if self._waiting_pages >= _MOST_WAITING_PAGES:
            raise BusyError
        self._waiting_pages += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting_pages -= 1

    async def _deliveries(self, request: Request) -> Response:
        filters = Filters.parse(request.query_params)
        await self._elsewhere.look()
        place = self.live.place  # before the rows: what comes between is sent again, not lost
        copies = [seen.copy() for seen in self._journal.newest_first()]

        def content() -> Mapping[str, object]:
            rows = [row_of(seen) for seen in islice(filter(filters.match, copies), _MOST_ROWS)]
            return {"rows": rows, "filters": filters, "place": place, "most": _MOST_ROWS}

        return await self._page("deliveries.html", request, content=content)

    async def _delivery(self, request: Request) -> Response:
        number = request.path_params["number"]
        await self._elsewhere.look()
        seen = self._journal.find(int(number)) if _NUMBER.fullmatch(number) else None
        filters = Filters.parse(request.query_params)
        if seen is None:
            return await self._missing(request, "this delivery has been forgotten, or never was")
        parser, copy = self._receiver.parser, seen.copy()

        def content() -> Mapping[str, object]:
            return {"view": delivery_view(copy, parser, self._redaction), "filters": filters}

        async with self._at_its_turn():
            return await self._page("delivery.html", request, content=content)

    async def _dead(self, request: Request) -> Response:
        filters = DeadLetterFilters.parse(request.query_params)
        async with self._at_its_turn():
            letters, searched = await within(_STORE_SECONDS, self._letters(filters))
            failed = [letter.delivery.event_id for letter in letters if letter.error]
            bodies = await within(_STORE_SECONDS, _bodies(failed, self._receiver.dead.show))

            def content() -> Mapping[str, object]:
                body = _in_time(bodies)
                rows = [
                    dead_letter_row(letter, body(letter.delivery.event_id), self._redaction)
                    for letter in letters
                ]
                return {
                    "letters": rows,
                    "filters": filters,
                    "most": _MOST_LETTERS,
                    "searched": searched,
                }

            return await self._page("dead.html", request, content=content)

    async def _letters(self, filters: DeadLetterFilters) -> tuple[list[DeadLetter], int | None]:
        """Return the first letters to show, and after how many the search for more has ended."""
        since = self._receiver.clock() - AGES[filters.age] if filters.age else None
        reason = DeadReason(filters.reason) if filters.reason else None
        found: list[DeadLetter] = []
        searched, after = 0, None
        while searched < _MOST_SEARCHED:
            page = await self._receiver.dead.list(
                reason=reason, since=since, after=after, limit=_MOST_LETTERS
            )
            found += filter(filters.match, page)
            if len(found) >= _MOST_LETTERS or len(page) < _MOST_LETTERS:
                return found[:_MOST_LETTERS], None
            searched, after = searched + len(page), page[-1].place
        return found, searched

    async def _letter(self, request: Request) -> Response:
        event_id = request.query_params.get("id", "")
        await self._elsewhere.look()
        async with self._at_its_turn():
            letter = await within(_STORE_SECONDS, self._receiver.dead.show(event_id))
            if letter is None:
                return await self._missing(request, "there is no such dead letter any more")
            history = self._journal.history_of(event_id)
            copy, parser = history and history.copy(), self._receiver.parser

            def content() -> Mapping[str, object]:
                return {"view": dead_letter_view(letter, copy, parser, self._redaction)}

            return await self._page("letter.html", request, content=content)

    async def _waiting(self, request: Request) -> Response:
        inbox = self._inbox
        if inbox is None:
            return await self._missing(request, "this receiver has no inbox")
        async with self._at_its_turn():
            now = self._receiver.clock()
            found = await within(_STORE_SECONDS, inbox.list(limit=_MOST_LETTERS))
            failed = [entry.delivery.event_id for entry in found if entry.history]
            bodies = await within(_STORE_SECONDS, _bodies(failed, inbox.show))

            def content() -> Mapping[str, object]:
                body = _in_time(bodies)
                rows = [
                    entry_row(entry, body(entry.delivery.event_id), self._redaction, now)
                    for entry in found
                ]
                return {"entries": rows, "most": _MOST_LETTERS}

            return await self._page("inbox.html", request, content=content)

    async def _missing(self, request: Request, problem: str) -> Response:
        """Return a page that says what is not there."""
        content = {"problem": problem}
        return await self._page(
            "problem.html", request, HTTPStatus.NOT_FOUND, content=lambda: content
        )

    async def _act(self, name: str, request: Request) -> Response:
        event_id = _id_in(await body_of(request))
        if event_id is None:
            wanted = 'send {"id": "…"}'
            return JSONResponse({"ok": False, "outcome": wanted}, HTTPStatus.BAD_REQUEST)
        self._journal.follow(event_id)  # it may be from before this process began
        result = await self._actions.act(name, event_id, client_of(request))
        self._overviews.forget()
        content = {"id": event_id, "ok": result.ok, "outcome": result.outcome}
        return JSONResponse(content, result.status)

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a page that wants to be live."""
        request = Request(scope, receive)
        if self.live.is_full:
            text = "too many pages are live; close one\n"
            await Response(text, HTTPStatus.SERVICE_UNAVAILABLE)(scope, receive, send)
            return
        filters, frame = Filters.parse(request.query_params), self.frame(scope)
        is_in_session = self._access.has_session(request)  # not with a bearer token
        render = partial(self.pages.render, "_row.html", frame, filters=filters)
        watch = Watch(
            filters=filters,
            row=lambda seen: render(row=row_of(seen)),
            overview=partial(self._overview, frame),
            may_go_on=lambda: not is_in_session or self._access.has_session(request),
        )
        last_id = request.headers.get("last-event-id")
        place = last_id or request.query_params.get("place") or self.live.place
        await self.live.stream(watch, place, receive, send)

    async def _overview(self, frame: Frame) -> Mapping[str, str]:
        overview = await self._overviews.now()
        return {
            name: self.pages.render(f"_{name}.html", frame, overview=overview)
            for name in ("facts", "charts")
        }


class _Stream:
    """A class, so that Starlette takes it for an application and not for a view."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._site.stream(scope, receive, send)


def root_of(scope: Scope) -> str:
    """Return the path the inspector is mounted at, as a URL has it: never the name of a host."""
    root = scope.get("root_path", "").strip("/")
    return f"/{quote(root, safe=_SAFE_IN_PATHS)}" if root else ""


def client_of(request: Request) -> str | None:
    """Return the address of a client; None if the server gives none."""
    return request.client.host if request.client else None


async def _bodies(
    event_ids: Iterable[str], show: Callable[[str], Awaitable[DeadLetter | Entry | None]]
) -> Mapping[str, bytes]:
    """Return bodies of events, a few at a time, until they are too many bytes to be looked at."""
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
    """Return what finds a body for a list, and none when the list has taken too long."""
    ends = uptime() + _LIST_SECONDS
    return lambda event_id: bodies.get(event_id) if uptime() < ends else None


async def body_of(request: Request) -> bytes:
    """Return the body of a small request; an empty one of one that is large, slow or cut off."""
    body = b""
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_FORM_BYTES:
                    return b""
    except (TimeoutError, ClientDisconnect):
        return b""
    return body


def _id_in(body: bytes) -> str | None:
    try:
        content = json.loads(body)
        event_id = content["id"]
        event_id.encode()  # half of a surrogate pair is in no id, and in no answer
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    return event_id if isinstance(event_id, str) else None
