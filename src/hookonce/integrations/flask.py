"""A receiver in a Flask application."""

from __future__ import annotations

from flask import Blueprint, Flask, Response, current_app, request
from werkzeug.exceptions import HTTPException

from ..http.guard import headers_of, plain_path
from ..logs import get_logger
from ..outcome import BROKEN, Outcome, is_punished
from ..receiver import Receiver
from .wsgi import WSGIReceiver

__all__ = ["mount"]

_log = get_logger("hookonce.http")

# Without routes for these methods, Flask would answer them with HTML.
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")


def mount(
    app: Flask | Blueprint, receiver: Receiver, path: str = "/webhooks", *, name: str = "hookonce"
) -> WSGIReceiver:
    """Add a route that answers deliveries at ``path``, with and without a trailing slash.

    The body is read before Flask parses it. No hook of the application, such as a redirect to a
    login page, can send a 3xx or a 410 from this path.

    Args:
        app: the application, or a blueprint that is not registered yet.
        receiver: answers the deliveries, in an event loop that the first delivery starts.
        path: where deliveries arrive, after the prefix of a blueprint.
        name: the name of the route; a second receiver of one application needs another.

    Returns:
        the application behind the route; its ``close`` drains running handlers. At exit this
        happens by itself.
    """
    bare = path.rstrip("/")
    wsgi = WSGIReceiver(receiver)

    def deliver() -> Response:
        # If a hook has read the stream, only Flask's copy of the body is left.
        kept = request.get_data() if "stream" in vars(request) else None
        return _response(wsgi.dispatch(request.environ, body=kept))

    def guard(response: Response) -> Response:
        if not is_punished(response.status_code) or _endpoint_name(_intended_endpoint()) != name:
            return response
        _log.error(
            "the application answered a delivery with %d; sent 500 instead", response.status_code
        )
        return _response(BROKEN)

    app.add_url_rule(
        bare or "/",
        name,
        deliver,
        methods=_METHODS,
        provide_automatic_options=False,
        strict_slashes=False,
        merge_slashes=False,  # do not redirect a path with two slashes
    )
    # Flask calls a blueprint's own hook only for paths that match a rule of the blueprint. So
    # register a hook of the application.
    (app.after_app_request if isinstance(app, Blueprint) else app.after_request)(guard)
    return wsgi


def _intended_endpoint() -> str | None:
    """Return the endpoint of a request, also for another spelling of the endpoint's path."""
    if request.endpoint is not None:
        return request.endpoint
    paths = current_app.url_map.bind("")
    try:
        return str(paths.match(plain_path(request.path), method="POST")[0])
    except HTTPException:
        return None


def _endpoint_name(endpoint: str | None) -> str:
    """Return an endpoint's own name, without the names of its blueprints."""
    return (endpoint or "").rpartition(".")[2]


def _response(outcome: Outcome) -> Response:
    return Response(outcome.body, int(outcome.status), headers_of(outcome))
