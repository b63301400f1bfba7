"""``hookonce serve``: a receiver on a server of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import uvicorn

from hookonce import Receiver
from hookonce.asgi import ASGIApp, application

from .ending import end_with_its_threads
from .loading import load_receiver
from .logs import LOG_CONFIG
from .stores import run

__all__ = ["DEFAULT_PORT", "serve", "service_app", "serving"]

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


@asynccontextmanager
async def serving(app: ASGIApp, port: int) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Serve on the loopback interface; give the base URL, and an event for the server's end."""
    # Named as TCP, or asyncio does not switch off Nagle's algorithm, which costs 40 ms an answer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        config = uvicorn.Config(app, log_config=None, access_log=False)
        server = uvicorn.Server(config)
        stopped = asyncio.Event()
        task = asyncio.create_task(server.serve(sockets=[listener]))
        task.add_done_callback(lambda _: stopped.set())
        while not server.started:
            await asyncio.sleep(0.01)
            if task.done():
                await task
                raise click.ClickException("the server did not start")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", stopped
        finally:
            server.should_exit = True
            await task
