"""The inspector as an ASGI application: the login, and the pages behind it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from http import HTTPStatus
from importlib.resources import files
from math import ceil
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from ...errors import StoreError
from ...http.app import ASGIApp, Message, Receive, Scope, Send, run_lifespan
from ...http.bearer import bearer_of
from ...http.guard import app_path
from ...logs import get_logger
from ...receiver import Receiver
from .access import (
    COOKIE,
    LOOPBACK_HOSTS,
    SECURITY_HEADERS,
    SESSION_SECONDS,
    Access,
    Login,
    take_token,
)
from .bounds import Bounds
from .redaction import Redaction
from .requests import body_of, client_of, root_of, url_of
from .site import BusyError, Site

# The pages to which a login may redirect, with their filters.
_PAGE = re.compile(
    r"(?:/at/[A-Za-z0-9_.-]{1,64})?/(?:deliveries/[0-9]{1,15}|dead|dead/letter|inbox|handled|handled/event|workers)?(?:\?[!$&-;=?-\[\]_a-z|~%]*)?"
)

_log = get_logger("hookonce.inspector")

_STATIC = {
    "actions.js": "text/javascript",
    "inspector.css": "text/css",
    "inspector.js": "text/javascript",
    "live.js": "text/javascript",
    "page.js": "text/javascript",
    "workers.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


class Inspector:
    """An ASGI application with pages that show the work of one or several receivers.

    The pages show what this process does from now on, and what other processes on the same store do
    while a page is open. Every visitor has to show the token, also one on this machine: behind a
    proxy every visitor seems to be local.

    Args:
        receivers: one receiver, or several with different endpoints.
        token: at least 16 ASCII characters. A visitor sends it with the login form, as
            ``Authorization: Bearer``, or once as ``?token=…``; the answer to the last is a redirect
            to the same page without it.
        hosts: accepted values of ``Host``; a name without a port is accepted with any port.
        redaction: the rules that select the values which the pages hide.
        bounds: how much is kept in memory, and for how many visitors.

    Raises:
        ValueError: the token is missing or too short, a host is not a host name, there is no
            receiver, or two receivers share an endpoint.
        TypeError: hosts is a single string.
    """

    def __init__(
        self,
        receivers: Receiver | Sequence[Receiver],
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
                "an inspector takes one receiver, or several that each have an endpoint of their"
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
                *([] if len(several) == 1 else [Route("/", self._first_endpoint)]),
                Route("/login", self._login, methods=["POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                Route("/static/{name}", self._file),
            ],
            redirect_slashes=False,
            default=_not_found,
        )

    def below(self, path: str, otherwise: ASGIApp) -> ASGIApp:
        """Return an application that serves the inspector at a path and below it.

        Args:
            path: such as ``/inspector``.
            otherwise: the application for all other paths. Put the result into a router after the
                routes of deliveries: around these routes it would slow down each delivery.
        """

        async def both(scope: Scope, receive: Receive, send: Send) -> None:
            root = scope.get("root_path", "") + path
            if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{root}/"):
                # Change the server's own scope, because its access log must not contain the token.
                scope["root_path"] = root
                await self(scope, receive, send)
            else:
                await otherwise(scope, receive, send)

        return both

    def end(self) -> None:
        """End all live streams, which would delay the server's shutdown."""
        for site in self._sites:
            site.live.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; every answer carries the security headers."""
        if scope["type"] == "lifespan":
            await run_lifespan(nullcontext(), receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        secured = _Secured(send)
        try:
            answer = self._answer_to(Request(scope), take_token(scope))
            await answer(scope, receive, secured)
        except StoreError as error:
            _log.error("the inspector cannot read the store: %s", error)
            if not secured.has_begun:
                text = "the store cannot be read; the log says why"
                await _plain(text, HTTPStatus.SERVICE_UNAVAILABLE)(scope, receive, secured)
        except BusyError:
            text = "too many pages are loading, or this one takes too long; load it again"
            await _plain(text, HTTPStatus.SERVICE_UNAVAILABLE)(scope, receive, secured)

    def _answer_to(self, request: Request, token: str | None) -> ASGIApp:
        """Return the application that answers a request; ``token`` comes from the request's URL."""
        path = app_path(request.scope)
        is_safe = request.method in {"GET", "HEAD"}
        if (refusal := self._access.host_refusal(request)) is not None:
            return _plain(refusal, HTTPStatus.FORBIDDEN)
        if token is not None and request.method == "GET":
            return self._enter(request, token, to=url_of(request))
        if path == "":
            return RedirectResponse(f"{root_of(request.scope)}/")
        if path.startswith("/static/"):
            return self._router
        if path == "/login" or self._access.has_session(request):
            refusal = None if is_safe else self._access.origin_refusal(request)
            return self._router if refusal is None else _plain(refusal, HTTPStatus.FORBIDDEN)
        # A browser never sends a bearer token by itself, so the Origin needs no check.
        bearer, to = bearer_of(request.headers.get("authorization", "")), url_of(request)
        if bearer is None:
            return self._asked(request, to=to)
        return self._refused(request, bearer, to=to) or self._router

    def _refused(self, request: Request, token: str, *, to: str) -> Response | None:
        """Return the answer to a wrong token; None for the right token."""
        client = client_of(request)
        login = self._access.log_in(token, client)
        if login is Login.RIGHT:
            return None
        if login is Login.WRONG:
            _log.warning("a wrong token for the inspector, from %s", client)
            return self._asked(request, to=to, is_wrong=True)
        seconds = ceil(self._access.seconds_to_wait(client)) or 1
        return PlainTextResponse(
            f"too many wrong tokens; try again in {seconds} s\n",
            HTTPStatus.TOO_MANY_REQUESTS,
            {"retry-after": str(seconds)},
        )

    def _asked(self, request: Request, *, to: str, is_wrong: bool = False) -> Response:
        """Return the login page, or a line of text if the request was not for a page."""
        path = app_path(request.scope)
        if path.endswith("/stream") or (request.method != "GET" and path != "/login"):
            return _plain("log in first", HTTPStatus.UNAUTHORIZED)
        site, frame = self._sites[0], self._sites[0].frame(request.scope)
        to = _own_page(to, frame.home)
        text = site.pages.render("login.html", frame, is_wrong=is_wrong, to=to)
        return HTMLResponse(text, HTTPStatus.UNAUTHORIZED)

    async def _first_endpoint(self, request: Request) -> Response:
        return RedirectResponse(f"{self._sites[0].frame(request.scope).root}/")

    async def _login(self, request: Request) -> Response:
        form = parse_qs((await body_of(request)).decode("latin-1"))
        return self._enter(request, form.get("token", [""])[0], to=form.get("to", [""])[0])

    def _enter(self, request: Request, token: str, *, to: str) -> Response:
        """Begin a session if the token is right, and redirect to a page."""
        if (refused := self._refused(request, token, to=to)) is not None:
            return refused
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
        self._access.end_session(request)
        root = root_of(request.scope)
        answer = RedirectResponse(f"{root}/", HTTPStatus.SEE_OTHER)
        answer.delete_cookie(COOKIE, path=root or "/", httponly=True, samesite="strict")
        return answer

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            return _plain("not found", HTTPStatus.NOT_FOUND)
        return Response(self._static[name], media_type=_STATIC[name])


class _Secured:
    """A ``send`` that adds the security headers to every answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            message = {**message, "headers": [*message.get("headers", ()), *SECURITY_HEADERS]}
        await self._send(message)


def _own_page(path: str, root: str) -> str:
    """Return the page that a login form names, or the first page if there is no such page.

    The check accepts known pages only: another site's name can be written in too many ways to be
    recognised.
    """
    is_own = path.startswith(root) and _PAGE.fullmatch(path.removeprefix(root)) is not None
    return path if is_own else f"{root}/"


def _plain(line: str, status: int) -> Response:
    return PlainTextResponse(f"{line}\n", status)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await _plain("not found", HTTPStatus.NOT_FOUND)(scope, receive, send)
