"""The pages behind the doors: deliveries, dead letters, the inbox, and what is live."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from itertools import islice

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ..delivery.time_limit import within
from ..http.app import Receive, Scope, Send
from ..inbox.waiting import WaitingEvents
from .access import Access, Visit
from .bounds import Bounds
from .filters import Filters
from .journal import Journal
from .live import Live, Watch
from .overview import Overviews
from .pages import Frame, Pages
from .redaction import Redaction
from .replays import Replays
from .views import delivery_view, entry_row, letter_row, letter_view, row_of
from .watched import Watched

__all__ = ["Site", "body_of"]

_MOST_FORM_BYTES = 8192

_MOST_ROWS = 100
_MOST_LETTERS = 200
_STORE_SECONDS = 5.0


class Site:
    """What a visitor who may look can see and do.

    Args:
        receiver: whose deliveries.
        access: who may act.
        redaction: what is hidden.
        bounds: how much is kept.

    Attributes:
        pages: what renders them.
        live: the streams to open pages.

    """

    def __init__(
        self, receiver: Watched, *, access: Access, redaction: Redaction, bounds: Bounds
    ) -> None:
        self._receiver = receiver
        self._access = access
        self._redaction = redaction
        self._journal = Journal(bounds)
        self._replays = Replays(receiver, most=bounds.replays)
        self._inbox: WaitingEvents | None = getattr(receiver, "inbox", None)
        has_inbox = self._inbox is not None
        self._overviews = Overviews(receiver, self._journal, has_inbox=has_inbox)
        self.pages = Pages()
        self.live = Live(self._journal, bounds)
        receiver.observe(self._journal, of=self._journal.followed)

    def routes(self) -> list[Route]:
        """Return the routes, below wherever the inspector is mounted."""
        return [
            Route("/", self._deliveries),
            Route("/deliveries/{number:int}", self._delivery),
            Route("/dead", self._dead),
            Route("/dead/letter", self._letter),
            Route("/dead/replay", self._replay, methods=["POST"]),
            Route("/inbox", self._waiting),
            Route("/stream", _Stream(self)),
        ]

    def frame(self, scope: Scope) -> Frame:
        """Return what stands around the pages of a request."""
        return Frame(
            root=scope.get("root_path", ""),
            endpoint=self._receiver.endpoint,
            has_inbox=self._inbox is not None,
            can_leave=self._access.needs_token,
        )

    async def _page(
        self, template: str, request: Request, status: int = HTTPStatus.OK, **content: object
    ) -> Response:
        """Return a page with what stands above every page."""
        frame, overview = self.frame(request.scope), await self._overviews.now()
        text = self.pages.render(template, frame, overview=overview, **content)
        return HTMLResponse(text, status)

    async def _deliveries(self, request: Request) -> Response:
        filters = Filters.parse(request.query_params)
        place = self.live.place  # before the rows: what comes between is sent again, not lost
        matching = filter(filters.match, self._journal.newest_first())
        rows = [row_of(seen) for seen in islice(matching, _MOST_ROWS)]
        return await self._page(
            "deliveries.html", request, rows=rows, filters=filters, place=place, most=_MOST_ROWS
        )

    async def _delivery(self, request: Request) -> Response:
        seen = self._journal.find(request.path_params["number"])
        filters = Filters.parse(request.query_params)
        if seen is None:
            return await self._missing(request, "this delivery has been forgotten, or never was")
        view = delivery_view(seen, self._receiver.parser, self._redaction)
        return await self._page("delivery.html", request, view=view, filters=filters)

    async def _dead(self, request: Request) -> Response:
        event_type = request.query_params.get("type", "").strip()
        call = self._receiver.dead.list(event_type=event_type or None, limit=_MOST_LETTERS)
        found = await within(_STORE_SECONDS, call)
        letters = [letter_row(letter, self._redaction) for letter in found]
        return await self._page(
            "dead.html", request, letters=letters, event_type=event_type, most=_MOST_LETTERS
        )

    async def _letter(self, request: Request) -> Response:
        event_id = request.query_params.get("id", "")
        letter = await within(_STORE_SECONDS, self._receiver.dead.show(event_id))
        if letter is None:
            return await self._missing(request, "there is no such dead letter any more")
        history = self._journal.history_of(event_id)
        view = letter_view(letter, history, self._receiver.parser, self._redaction)
        return await self._page("letter.html", request, view=view)

    async def _waiting(self, request: Request) -> Response:
        if self._inbox is None:
            return await self._missing(request, "this receiver has no inbox")
        found = await within(_STORE_SECONDS, self._inbox.list(limit=_MOST_LETTERS))
        entries = [entry_row(entry, self._redaction) for entry in found]
        return await self._page("inbox.html", request, entries=entries, most=_MOST_LETTERS)

    async def _missing(self, request: Request, problem: str) -> Response:
        """Return a page that says what is not there."""
        return await self._page("problem.html", request, HTTPStatus.NOT_FOUND, problem=problem)

    async def _replay(self, request: Request) -> Response:
        visit = Visit.of(request.scope)
        refusal = self._access.write_refusal(visit)
        if refusal is not None:
            return JSONResponse({"ok": False, "outcome": refusal}, HTTPStatus.FORBIDDEN)
        event_id = _id_in(await body_of(request))
        if event_id is None:
            wanted = 'send {"id": "…"}'
            return JSONResponse({"ok": False, "outcome": wanted}, HTTPStatus.BAD_REQUEST)
        self._journal.follow(event_id)  # it may be from before this process began
        replayed = await self._replays.replay(event_id, visit.client)
        self._overviews.forget()
        content = {"id": event_id, "ok": replayed.ok, "outcome": replayed.outcome}
        return JSONResponse(content, replayed.status)

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a page that wants to be live."""
        request = Request(scope, receive)
        if self.live.is_full:
            text = "too many pages are live; close one\n"
            await Response(text, HTTPStatus.SERVICE_UNAVAILABLE)(scope, receive, send)
            return
        filters, frame = Filters.parse(request.query_params), self.frame(scope)
        render = partial(self.pages.render, "_row.html", frame, filters=filters)
        watch = Watch(
            filters=filters,
            row=lambda seen: render(row=row_of(seen)),
            overview=partial(self._overview, frame),
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


async def body_of(request: Request) -> bytes:
    """Return the body of a small request; an empty one instead of one too large."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM_BYTES:
            return b""
    return body


def _id_in(body: bytes) -> str | None:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    event_id = content.get("id") if isinstance(content, dict) else None
    return event_id if isinstance(event_id, str) else None
