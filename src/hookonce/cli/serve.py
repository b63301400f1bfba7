"""``hookonce serve``: a receiver on a server of its own."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_network
from math import ceil
from typing import TYPE_CHECKING

import click
import uvicorn

from hookonce import Receiver
from hookonce.http.app import ASGIApp, Receive, Route, Scope, Send, application, elsewhere
from hookonce.http.guard import respond
from hookonce.http.health import HEALTH_PATHS
from hookonce.stores.memory import MemoryStore

from .collecting import collect_rarely
from .connections import OVERLOADED, Connections, allow_files
from .durations import Duration
from .ending import end_seconds_of, end_with_its_threads
from .listeners import DEFAULT_PORT, HEALTH_TOKEN_VARIABLE, bound, url_of
from .loading import factory_option, load
from .logs import log_options, log_settings, start_logging
from .metrics import metrics_of, metrics_option
from .several import application_of
from .statuses import CannotBegin, Status
from .stores import run
from .supervisor import processes_option, supervised

if TYPE_CHECKING:
    from hookonce.operations.inspector import Inspector


INSPECTOR_PATH = "/inspector"
TOKEN_VARIABLE = "HOOKONCE_INSPECTOR_TOKEN"  # noqa: S105 - where it is, not what it is
# How --reload hands the token that it has made to each process it starts.
_MADE_TOKEN_VARIABLE = "_HOOKONCE_MADE_INSPECTOR_TOKEN"  # noqa: S105 - the same

# Longer than any answer takes; handlers are then drained by the receiver's lifespan.
_SHUTDOWN_SECONDS = 30

# Connections that the system has accepted and the server has not: those that come at once.
_BACKLOG = 2048


def service_app(
    receiver: Receiver,
    path: str,
    inspector: Inspector | None = None,
    more: Iterable[Route] = (),
    *,
    health_token: str | None = None,
) -> ASGIApp:
    """Return an application with the receiver's routes at ``path``, ``/livez`` and ``/readyz``.

    If an inspector is given, it is at ``INSPECTOR_PATH``; ``more`` are routes beside all of these.
    Whoever shows the ``health_token`` is told what is wrong, and nobody else.

    Raises:
        ValueError: the token is too short.

    """
    routes = [*receiver.routes(path), *receiver.health_routes(token=health_token), *more]
    otherwise = inspector.below(INSPECTOR_PATH, elsewhere) if inspector else elsewhere
    return application(routes, receiver.lifespan, otherwise)


def _proxies(_: click.Context, __: click.Parameter, text: str) -> str:
    """Refuse what is neither an address nor a network: nobody would be believed, or warned."""
    for one in (part.strip() for part in text.split(",")):
        try:
            if one != "*":
                ip_network(one)
        except ValueError as error:
            raise click.BadParameter(f"{error}; for every client it is *") from None
    return text


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
@click.option(
    "--inspector",
    "with_inspector",
    is_flag=True,
    help=f"Show what happens at {INSPECTOR_PATH}/ to who has the token: ${TOKEN_VARIABLE}, or one"
    " that is made and printed with its URL.",
)
@click.option(
    "--inspector-host",
    "inspector_hosts",
    multiple=True,
    metavar="NAME[:PORT]",
    help="A name the inspector is reached by, beside those of this machine; may be repeated.",
)
@click.option(
    "--max-connections",
    default=1000,
    show_default=True,
    type=click.IntRange(1),
    help="Beyond these the one that keeps the server waiting longest is closed, and where none does"
    " a new one is answered 503.",
)
@click.option(
    "--idle-timeout",
    "idle_seconds",
    default="10s",
    show_default=True,
    type=Duration(0, min_open=True),
    help="Close a connection that has not sent all headers of a request after this time, such as"
    " 10s or 2m.",
)
@click.option(
    "--proxy-headers/--no-proxy-headers",
    default=True,
    show_default=True,
    help="Believe a proxy what it says of the client: one at an address of --forwarded-allow-ips.",
)
@click.option(
    "--forwarded-allow-ips",
    default="127.0.0.1,::1",
    show_default=True,
    envvar="FORWARDED_ALLOW_IPS",
    show_envvar=True,
    callback=_proxies,
    help="Addresses and networks of proxies, with commas between; * for everybody.",
)
@click.option(
    "--reload", is_flag=True, help="For your desk: start anew whenever a Python file here changes."
)
@log_options
@factory_option
@metrics_option
@processes_option
def serve(
    receiver: str,
    host: str,
    port: int,
    path: str,
    with_inspector: bool,
    inspector_hosts: tuple[str, ...],
    max_connections: int,
    idle_seconds: float,
    metrics: bool,
    processes: int,
    proxy_headers: bool,
    forwarded_allow_ips: str,
    reload: bool,
    log_level: str,
    log_format: str,
    factory: bool,
) -> None:
    """Serve MODULE:RECEIVER over HTTP, with /livez and /readyz beside it.

    An application that has receivers, MODULE:APP, is served as it is, at its own paths; those of a
    mapping, MODULE:RECEIVERS, answer at /webhooks/ENDPOINT each.

    With --processes, several processes share the port and the store, which must be SQLite or Redis.
    Each of them works on an embedded inbox. Limits apply to one process, and /readyz reports on the
    process that answers. A process that cannot start, or that dies again and again, ends the
    command. The first SIGTERM or Ctrl-C shuts all of them down in order, the second kills them.

    /readyz gives its reasons only to requests with $HOOKONCE_HEALTH_TOKEN as a bearer token.

    For example: hookonce serve app.hooks:receiver --port 9000
    """
    _check_places(path, inspector_hosts, with_inspector=with_inspector)
    if reload:
        if processes > 1:
            raise click.UsageError("--reload restarts one process; leave out --processes")
        _start_anew_at_changes()
        return
    start_logging(log_level, log_format)
    listeners, member = None, None
    if processes > 1:
        _check_shared(with_inspector=with_inspector, with_metrics=metrics)
        listeners = bound(host, port)
        member = supervised(processes, f"{receiver} running on {url_of(listeners)}", listeners)
    loaded = load(receiver, factory=factory)
    targets = tuple(loaded.receivers.values())
    if member is not None and any(isinstance(one.store, MemoryStore) for one in targets):
        raise CannotBegin(
            f"{receiver} has its store in memory, where no other process sees what was handled; for"
            " --processes give it sqlite:///file.db or redis://host"
        )
    is_alone = isinstance(loaded.named, Receiver)
    inspector, made_token = None, None
    if with_inspector:
        inspector, made_token = _inspector(targets, [_own_name(host), *inspector_hosts])
    for one in targets:
        run(_open_once(one))  # says in one line what the server would print a traceback for
    more = metrics_of(targets, path) if metrics else []
    health_token = os.environ.get(HEALTH_TOKEN_VARIABLE) or None
    try:
        if is_alone:
            app = service_app(targets[0], path, inspector, more, health_token=health_token)
        else:
            app = application_of(loaded, more, health_token=health_token)
            app = inspector.below(INSPECTOR_PATH, app) if inspector else app
    except ValueError as error:
        raise CannotBegin(f"{HEALTH_TOKEN_VARIABLE}: {error}") from None
    target = targets[0]
    connections = Connections(max_connections, idle_seconds=idle_seconds, refuse=_refusing(target))
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=connections.protocol(),
        ws="none",  # a WebSocket would be a connection that is not counted
        backlog=_BACKLOG,
        log_config=log_settings(log_level, log_format),
        proxy_headers=proxy_headers,
        forwarded_allow_ips=forwarded_allow_ips,
        timeout_keep_alive=ceil(idle_seconds),
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    allow_files(max_connections + _BACKLOG)
    collect_rarely()
    end_seconds = _SHUTDOWN_SECONDS + max(end_seconds_of(one.limits) for one in targets)

    def after_start(port: int) -> None:
        if member is not None:
            member.is_at_work(end_seconds)
        _print_url(host, port, made_token)

    server = _Server(
        config,
        connections,
        before_end=inspector.end if inspector else lambda: None,
        after_start=after_start,
    )
    # The server raises the signal that has ended it once more, when all is done.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with suppress(KeyboardInterrupt, SystemExit):  # the latter where the port is taken
        server.run(listeners)
    if not server.started:
        sys.exit(Status.CANNOT_BEGIN)
    end_with_its_threads()


class _Server(uvicorn.Server):
    """Closes connections that idle, and at the end calls ``before_end`` before it waits for others.

    A live page would never close its own. It calls ``after_start`` with its port when it answers.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        *,
        before_end: Callable[[], object],
        after_start: Callable[[int], object] = lambda _: None,
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._before_end = before_end
        self._after_start = after_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._after_start(self.servers[0].sockets[0].getsockname()[1])

    async def on_tick(self, counter: int) -> bool:
        self._connections.close_idle(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        self._before_end()
        await super().shutdown(None if sockets is None else list(sockets))


def _check_places(path: str, inspector_hosts: Sequence[str], *, with_inspector: bool) -> None:
    """End with the usage where two things would be at one path."""
    if not path.startswith("/"):
        raise click.BadParameter(f"a path starts with a slash, unlike {path!r}")
    if path.rstrip("/") in HEALTH_PATHS:
        raise click.BadParameter(
            f"{path} is where a server is asked for its health", param_hint="--path"
        )
    if inspector_hosts and not with_inspector:
        raise click.UsageError("--inspector-host is of no use without --inspector")
    if with_inspector and f"{path}/".startswith(f"{INSPECTOR_PATH}/"):
        raise click.BadParameter(f"{INSPECTOR_PATH} is where the inspector is")


def _check_shared(*, with_inspector: bool, with_metrics: bool) -> None:
    """End with the usage where a page would show what one process has done, whichever answers."""
    if with_inspector:
        raise click.UsageError(
            "--inspector is a page of one process. Leave it out here, and serve it from one more"
            " process on the same store, which sees all of them: hookonce serve MODULE:RECEIVER"
            f" --inspector --port {DEFAULT_PORT + 1}"
        )
    if with_metrics and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        raise click.UsageError(
            "--metrics with --processes needs a folder to share; set PROMETHEUS_MULTIPROC_DIR to an"
            " empty one"
        )


def _own_name(host: str) -> str:
    """Return the host of a URL for the address that a server listens on."""
    if host in {"", "0.0.0.0", "::"}:  # noqa: S104 - compared
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _print_url(host: str, port: int, made_token: str | None) -> None:
    """Print the way in for a token that was made: on stdout, since others read the log as well."""
    if made_token is not None:
        place = f"http://{_own_name(host)}:{port}{INSPECTOR_PATH}/"
        click.echo(f"inspector: {place}?token={made_token}")


def _inspector(receivers: Sequence[Receiver], hosts: Sequence[str]) -> tuple[Inspector, str | None]:
    """Return the inspector of receivers and the token that was made for it, if none was set.

    What is wrong ends the command.
    """
    try:
        from hookonce.operations.inspector import (  # noqa: PLC0415 - only who asks for it has jinja2
            LOOPBACK_HOSTS,
            Inspector,
        )
    except ImportError as error:
        raise CannotBegin(str(error)) from None
    made = os.environ.pop(_MADE_TOKEN_VARIABLE, None) or secrets.token_urlsafe()
    token = os.environ.get(TOKEN_VARIABLE) or None
    try:
        inspector = Inspector(receivers, token=token or made, hosts=[*LOOPBACK_HOSTS, *hosts])
    except ValueError as error:
        raise CannotBegin(str(error)) from None
    return inspector, made if token is None else None


def _refusing(receiver: Receiver) -> ASGIApp:
    """Return what answers the connections that are too many."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the signature of an ASGI application
        receiver.note_unread(OVERLOADED, 0.0)
        await respond(send, OVERLOADED, closing=scope)

    return refuse


def _start_anew_at_changes() -> None:
    """Run this command again without --reload, and again whenever a Python file changes."""
    try:
        from watchfiles import PythonFilter, run_process  # noqa: PLC0415 - for --reload alone
    except ImportError:
        raise CannotBegin("--reload needs watchfiles: pip install watchfiles") from None
    arguments = [one for one in sys.argv[1:] if one != "--reload"]
    code = "from hookonce.cli import main; main()"
    os.environ[_MADE_TOKEN_VARIABLE] = secrets.token_urlsafe()  # the same after each change
    command = shlex.join([sys.executable, "-c", code, *arguments])
    run_process(
        ".",
        target=command,
        target_type="command",
        watch_filter=PythonFilter(),
        sigint_timeout=ceil(_SHUTDOWN_SECONDS),
    )


async def _open_once(receiver: Receiver) -> None:
    async with receiver.opened():
        pass


@asynccontextmanager
async def serving(app: ASGIApp, port: int) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Serve on the loopback interface; give the base URL, and an event for the server's end."""
    # Named as TCP, or asyncio does not switch off Nagle's algorithm, which costs 40 ms an answer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise CannotBegin(f"cannot serve on port {port}: {error.strerror}") from error
        config = uvicorn.Config(app, log_config=None, access_log=False)
        server = uvicorn.Server(config)
        stopped = asyncio.Event()
        task = asyncio.create_task(server.serve(sockets=[listener]))
        task.add_done_callback(lambda _: stopped.set())
        while not server.started:
            await asyncio.sleep(0.01)
            if task.done():
                await task
                raise CannotBegin("the server did not start")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", stopped
        finally:
            server.should_exit = True
            await task
