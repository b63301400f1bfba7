"""``hookonce health``: what a running server says of itself."""

from __future__ import annotations

import os
from http import HTTPStatus

import click
import httpx2

from .listeners import DEFAULT_PORT, HEALTH_TOKEN_VARIABLE
from .output import Output
from .statuses import Nothing, Status


@click.command()
@click.argument("url", required=False)
def health(url: str | None) -> None:
    """Ask a running server for its health; exit 0 if it is well.

    URL is http://127.0.0.1:$PORT/livez by default, with port 8000 where PORT is not set. Made for a
    container's HEALTHCHECK.

    /readyz says what is wrong to who shows the token in $HOOKONCE_HEALTH_TOKEN, as this does where
    it is set.
    """
    token = os.environ.get(HEALTH_TOKEN_VARIABLE)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = url or f"http://127.0.0.1:{os.environ.get('PORT') or DEFAULT_PORT}/livez"
    try:
        # A proxy in the environment is for the way out of the machine.
        response = httpx2.get(url, headers=headers, timeout=3.0, trust_env=False)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Nothing(f"{url} does not answer: {error}") from error
    Output(as_json=False).say(response.text)
    if response.status_code != HTTPStatus.OK:
        raise SystemExit(Status.FOUND)
