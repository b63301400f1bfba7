"""The inspector as an ASGI application: the doors, and the pages behind them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from http import HTTPStatus
from importlib.resources import files
from math import ceil
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from ...errors import StoreError
from ...http.app import ASGIApp, Message, Receive, Scope, Send
from ...http.guard import app_path
from ...verification.loggers import get_logger
from .access import (
    COOKIE,
    LOOPBACK_HOSTS,
    SECURITY_HEADERS,
    Access,
    Standing,
    Visit,
    take_token,
)
from .bounds import Bounds
from .redaction import Redaction
from .sessions import SESSION_SECONDS
from .site import BusyError, Site, body_of, root_of
from .watched import Watched

_PAGE = re.compile(
    r"(?:/at/[A-Za-z0-9_.-]{1,64})?/(?:deliveries/[0-9]{1,15}|dead|dead/letter|inbox)?(?:\?[!$&-;=?-\[\]_a-z|~%]*)?"
)

_log = get_logger("hookonce.inspector")

_STATIC = {
    "actions.js": "text/javascript",
    "inspector.css": "text/css",
    "inspector.js": "text/javascript",
    "live.js": "text/javascript",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


class Inspector:
    """An ASGI application: pages for the engineer who runs a receiver, or several.

    It sees what happens in this process, from its making on, and what other processes on the same
    store do while a page is open. Every visitor has to show the token, also one of this machine:
    behind a proxy all seem to be there.

    Args:
        receivers: whose deliveries: one receiver, or several of different endpoints.
        token: what a visitor must know, at least 16 characters. It is sent in a form, as
            ``Authorization: Bearer``, or once as ``?token=…``, which leads to the page without it.
        hosts: which ``Host`` is accepted, exactly; one without a port goes with every port.
        redaction: what is hidden.
        bounds: how much is kept, and for how many visitors.

    Raises:
        ValueError: there is no token, it is too short, a host is none, or two receivers have one
            endpoint; the message says what to do.

    """

    def __init__(
        self,
        receivers: Watched | Sequence[Watched],
        *,
        token: str,
        hosts: Collection[str] = LOOPBACK_HOSTS,
        redaction: Redaction | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        several = list(receivers) if isinstance(receivers, Sequence) else [receivers]
        endpoints = tuple(receiver.endpoint for receiver in several)
        if not several or len(set(endpoints)) < len(several):
            raise ValueError(
                "an inspector takes a receiver, or several that each have an endpoint of their"
                f" own, not {', '.join(endpoints) or 'none'}"
            )
        self._access = Access(token, hosts)
        self._sites = [
            Site(
                receiver,
                endpoints=endpoints,
                access=self._access,
                redaction=redaction or Redaction(),
                bounds=bounds or Bounds(),
            )
            for receiver in several
        ]
        folder = files("hookonce.operations.inspector") / "static"
        self._static = {name: (folder / name).read_bytes() for name in _STATIC}
        self._router = Router(
            [
                *(route for site in self._sites for route in site.routes()),
                *([] if len(several) == 1 else [Route("/", self._to_the_first)]),
                Route("/login", self._login, methods=["POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                Route("/static/{name}", self._file),
            ],
            redirect_slashes=False,
            default=_nothing_here,
        )

    def below(self, path: str, otherwise: ASGIApp) -> ASGIApp:
        """Return an application that is the inspector at and below a path, else the other.

        Let it come after the routes of deliveries: a wrapper around them costs each of them 2 %.
        """

        async def both(scope: Scope, receive: Receive, send: Send) -> None:
            root = scope.get("root_path", "") + path
            if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{root}/"):
                scope["root_path"] = root  # no copy: the server logs the URL of its own
                await self(scope, receive, send)
            else:
                await otherwise(scope, receive, send)

        return both

    def end(self) -> None:
        """End open streams at once, for a server that stops; else they end within seconds."""
        for site in self._sites:
            site.live.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; every answer carries the headers that keep a page to itself."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = _Guarded(send)
        try:
            await self._answer(scope, receive, answer)
        except StoreError as error:
            _log.error("the inspector cannot read the store: %s", error)
            if not answer.has_begun:
                text = "the store cannot be read; the log says why\n"
                await _plain(text, HTTPStatus.SERVICE_UNAVAILABLE)(scope, receive, answer)
        except BusyError:
            text = "too many pages are made at once, or this one takes too long; load it again\n"
            await _plain(text, HTTPStatus.SERVICE_UNAVAILABLE)(scope, receive, answer)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit, path, token = Visit.of(scope), app_path(scope), take_token(scope)
        refusal = self._access.refusal(visit)
        if refusal is not None:
            await _plain(f"{refusal}\n", HTTPStatus.FORBIDDEN)(scope, receive, send)
        elif token is not None and scope["method"] == "GET":
            request = Request(scope)
            await self._entered(request, token, to=_url_of(scope))(scope, receive, send)
        elif path == "":
            await RedirectResponse(f"{root_of(scope)}/")(scope, receive, send)
        elif path == "/login" or path.startswith("/static/"):
            await self._router(scope, receive, send)
        else:
            await self._behind_the_door(visit, path)(scope, receive, send)

    def _behind_the_door(self, visit: Visit, path: str) -> ASGIApp:
        """Return what answers a visitor, by what it has shown of the token."""
        standing = self._access.standing(visit)
        if standing is Standing.KNOWN:
            return self._router
        if standing is Standing.TOO_SOON:
            return self._too_soon(visit)
        if standing is Standing.WRONG:
            _log_wrong(visit)
        return (
            _plain("log in first\n", HTTPStatus.UNAUTHORIZED)
            if path.endswith("/stream")
            else self._ask
        )

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask whoever wants to see a page for the token."""
        if scope["method"] != "GET":
            answer: Response = _plain("log in first\n", HTTPStatus.UNAUTHORIZED)
        else:
            answer = self._login_page(scope, to=_url_of(scope))
        await answer(scope, receive, send)

    def _too_soon(self, visit: Visit) -> Response:
        seconds = ceil(self._access.seconds_to_wait(visit)) or 1
        text = f"there were too many wrong tokens; try again in {seconds} s\n"
        headers = {"retry-after": str(seconds)}
        return PlainTextResponse(text, HTTPStatus.TOO_MANY_REQUESTS, headers)

    def _login_page(self, scope: Scope, *, is_wrong: bool = False, to: str) -> Response:
        frame = self._sites[0].frame(scope)
        to = _own_page(to, frame.home)
        text = self._sites[0].pages.render("login.html", frame, is_wrong=is_wrong, to=to)
        return HTMLResponse(text, HTTPStatus.UNAUTHORIZED)

    async def _to_the_first(self, request: Request) -> Response:
        return RedirectResponse(f"{self._sites[0].frame(request.scope).root}/")

    async def _login(self, request: Request) -> Response:
        visit = Visit.of(request.scope)
        if (refusal := self._access.origin_refusal(visit)) is not None:
            return _plain(f"{refusal}\n", HTTPStatus.FORBIDDEN)
        form = parse_qs((await body_of(request)).decode("latin-1"))
        return self._entered(request, form.get("token", [""])[0], to=form.get("to", [""])[0])

    def _entered(self, request: Request, token: str, *, to: str) -> Response:
        """Return the way to a page with a session for who shows the token."""
        visit = Visit.of(request.scope)
        standing = self._access.judge(token, visit)
        if standing is Standing.TOO_SOON:
            return self._too_soon(visit)
        if standing is not Standing.KNOWN:
            _log_wrong(visit)
            return self._login_page(request.scope, is_wrong=True, to=to)
        root = root_of(request.scope)
        answer = RedirectResponse(_own_page(to, root), HTTPStatus.SEE_OTHER)
        answer.set_cookie(
            COOKIE,
            self._access.begin_session(),
            max_age=SESSION_SECONDS,
            path=root or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _logout(self, request: Request) -> Response:
        visit = Visit.of(request.scope)
        if (refusal := self._access.origin_refusal(visit)) is not None:
            return _plain(f"{refusal}\n", HTTPStatus.FORBIDDEN)
        self._access.end_sessions(visit)
        root = root_of(request.scope)
        answer = RedirectResponse(f"{root}/", HTTPStatus.SEE_OTHER)
        answer.delete_cookie(COOKIE, path=root or "/", httponly=True, samesite="strict")
        return answer

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            return _plain("there is nothing here\n", HTTPStatus.NOT_FOUND)
        return Response(self._static[name], media_type=_STATIC[name])


class _Guarded:
    """A ``send`` that adds the security headers to every answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            message = {**message, "headers": [*message.get("headers", ()), *SECURITY_HEADERS]}
        await self._send(message)


def _url_of(scope: Scope) -> str:
    """Return the path and the query string of a request."""
    path, query = root_of(scope) + app_path(scope), scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _own_page(path: str, root: str) -> str:
    """Return the page of the inspector that a form names, or its first.

    Only what is known to be one goes into a redirect: there are too many ways to write another
    site's name for a list of them.
    """
    is_own = path.startswith(root) and _PAGE.fullmatch(path.removeprefix(root)) is not None
    return path if is_own else f"{root}/"


def _log_wrong(visit: Visit) -> None:
    _log.warning("a wrong token for the inspector, from %s", visit.client)


def _plain(text: str, status: int) -> Response:
    return PlainTextResponse(text, status)


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    await _plain("there is nothing here\n", HTTPStatus.NOT_FOUND)(scope, receive, send)


async def _live(receive: Receive, send: Send) -> None:
    """Speak the lifespan protocol, where a server runs the inspector by itself."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
