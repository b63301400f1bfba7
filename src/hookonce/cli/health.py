"""``hookonce health``: asks a running server for its health."""

from __future__ import annotations

import os
from http import HTTPStatus

import click
import httpx2

from .listeners import DEFAULT_PORT, HEALTH_TOKEN_VARIABLE
from .output import Output
from .statuses import Nothing, Status


def ask(url: str) -> httpx2.Response:
    """Return a server's answer about its health; raises httpx2's errors."""
    token = os.environ.get(HEALTH_TOKEN_VARIABLE)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    # Ignore proxies that the environment names: a proxy cannot reach this machine.
    return httpx2.get(url, headers=headers, timeout=3.0, trust_env=False)


@click.command()
@click.argument("url", required=False)
def health(url: str | None) -> None:
    """Ask a running server for its health; exit 0 if it is healthy.

    URL is http://127.0.0.1:$PORT/livez by default, with port 8000 if PORT is not set. A container's
    HEALTHCHECK can call this command.

    If $HOOKONCE_HEALTH_TOKEN is set, the request carries it; /readyz then gives its reasons.
    """
    url = url or f"http://127.0.0.1:{os.environ.get('PORT') or DEFAULT_PORT}/livez"
    try:
        response = ask(url)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Nothing(f"{url} does not answer: {error}") from error
    Output(as_json=False).say(response.text)
    if response.status_code != HTTPStatus.OK:
        raise SystemExit(Status.FOUND)
