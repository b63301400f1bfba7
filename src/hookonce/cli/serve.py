"""``hookonce serve``: a receiver on a server of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import click
import uvicorn

from hookonce import Receiver
from hookonce.asgi import ASGIApp, application
from hookonce.dispatch import THREAD_NAME_PREFIX
from hookonce.errors import StoreError

from .loading import load_receiver

__all__ = ["DEFAULT_PORT", "serve", "service_app"]

DEFAULT_PORT = 8000

# Longer than any answer takes; handlers are then drained by the receiver's lifespan.
_SHUTDOWN_SECONDS = 30
_IDLE_THREAD_SECONDS = 0.2


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
    try:
        asyncio.run(_open_once(target))
    except StoreError as error:  # one line here, where the server would print a traceback
        raise click.ClickException(str(error)) from error
    uvicorn.run(
        service_app(target, path),
        host=host,
        port=port,
        log_config=_LOG_CONFIG,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    _end_with_its_threads()


def _end_with_its_threads() -> None:
    """End now, though sync handlers still run: each holds its event only for a lease.

    The interpreter would wait for their threads, and as a container's first process not even
    the signal that ended the server ends it.
    """
    handlers = [t for t in threading.enumerate() if t.name.startswith(THREAD_NAME_PREFIX)]
    for thread in handlers:
        thread.join(_IDLE_THREAD_SECONDS)
    if any(thread.is_alive() for thread in handlers):
        click.echo("ended while sync handlers were running; their events will be retried", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


async def _open_once(receiver: Receiver) -> None:
    async with receiver:
        pass


# uvicorn's own, with the library's lines in the same form. Its access log is off: the receiver
# writes a line for each delivery that says more.
_LOG_CONFIG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "hookonce": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "uvicorn": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "uvicorn.access": {"level": "WARNING"},
    },
}
