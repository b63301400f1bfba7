"""``hookonce serve``: a receiver on a server of its own."""

from __future__ import annotations

import click
import uvicorn

from hookonce import Receiver
from hookonce.asgi import ASGIApp, application

from .ending import end_with_its_threads
from .loading import load_receiver
from .logs import LOG_CONFIG
from .stores import run

__all__ = ["DEFAULT_PORT", "serve", "service_app"]

DEFAULT_PORT = 8000

# Longer than any answer takes; handlers are then drained by the receiver's lifespan.
_SHUTDOWN_SECONDS = 30


def service_app(receiver: Receiver, path: str) -> ASGIApp:
    """Return an application with the receiver's routes at ``path``, ``/livez`` and ``/readyz``."""
    return application([*receiver.routes(path), *receiver.health_routes()], receiver.lifespan)


@click.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    envvar="PORT",
    show_envvar=True,
    type=click.IntRange(0, 65535),
    help="The port to listen on; 0 for a free one.",
)
@click.option("--path", default="/webhooks", show_default=True, help="Where deliveries arrive.")
def serve(receiver: str, host: str, port: int, path: str) -> None:
    """Serve MODULE:RECEIVER over HTTP, with /livez and /readyz beside it.

    For example: hookonce serve app.hooks:receiver --port 9000
    """
    if not path.startswith("/"):
        raise click.BadParameter(f"a path starts with a slash, unlike {path!r}")
    target = load_receiver(receiver)
    run(_open_once(target))  # says in one line what the server would print a traceback for
    uvicorn.run(
        service_app(target, path),
        host=host,
        port=port,
        log_config=LOG_CONFIG,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    end_with_its_threads()


async def _open_once(receiver: Receiver) -> None:
    async with receiver.opened():
        pass
