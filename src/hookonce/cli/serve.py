"""``hookonce serve``: serves receivers over HTTP."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from ipaddress import ip_network
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import click
import uvicorn

from hookonce import Receiver
from hookonce.http.app import ASGIApp, Receive, Scope, Send
from hookonce.http.guard import respond
from hookonce.http.health import HEALTH_PATHS
from hookonce.logs import get_logger
from hookonce.receiver.receiver import note_unread
from hookonce.stores.memory import MemoryStore

from .application import INSPECTOR_PATH, ReportedStart, application_of, service_app
from .collecting import collect_rarely
from .connections import OVERLOADED, ServerConnections, allow_files
from .durations import Duration
from .ending import end_seconds_of, end_with_its_threads
from .listeners import DEFAULT_PORT, HEALTH_TOKEN_VARIABLE, bound, url_of
from .loading import Loaded, factory_option, load
from .logs import log_options, log_settings, start_logging
from .metrics import check_path, metrics_of, metrics_option, supervised_with_metrics
from .requests import RequestLog
from .statuses import CannotBegin, Status
from .stores import run
from .supervisor import processes_option, supervised

if TYPE_CHECKING:
    from hookonce.operations.inspector import Inspector

    from .refused import RefusedRequests

_log = get_logger("hookonce")


TOKEN_VARIABLE = "HOOKONCE_INSPECTOR_TOKEN"  # noqa: S105 - the variable's name, not a token
# With --reload, all processes get one generated token through this variable.
_GENERATED_TOKEN_VARIABLE = "_HOOKONCE_GENERATED_INSPECTOR_TOKEN"  # noqa: S105 - the variable's name, not a token

# How long a shutdown waits for open requests: longer than any answer takes. After that, the
# receiver's lifespan drains the handlers.
_SHUTDOWN_SECONDS = 30

# How many new connections may wait in the kernel until the server accepts them.
_BACKLOG = 2048


def _proxies(_: click.Context, __: click.Parameter, text: str) -> str:
    """Refuse an invalid address; uvicorn would silently trust no proxy."""
    for one in (part.strip() for part in text.split(",")):
        try:
            if one != "*":
                ip_network(one)
        except ValueError as error:
            raise click.BadParameter(f"{error}; write * to trust every client") from None
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
    help="The port to listen on; 0 picks a free port.",
)
@click.option("--path", default="/webhooks", show_default=True, help="The path of deliveries.")
@click.option(
    "--inspector",
    "with_inspector",
    is_flag=True,
    help=f"Serve the inspector at {INSPECTOR_PATH}/. Its token is ${TOKEN_VARIABLE}; if that is not"
    " set, a new token is printed with the URL.",
)
@click.option(
    "--inspector-host",
    "inspector_hosts",
    multiple=True,
    metavar="NAME[:PORT]",
    help="A further host name by which browsers reach the inspector; may be repeated.",
)
@click.option(
    "--max-connections",
    default=1000,
    show_default=True,
    type=click.IntRange(1),
    help="At this limit, a new connection closes the one that has been idle longest; if none is"
    " idle, its requests are answered 503.",
)
@click.option(
    "--idle-timeout",
    "idle_seconds",
    default="10s",
    show_default=True,
    type=Duration(0, min_open=True),
    help="Close a connection that takes longer to send the headers of a request, or to read an"
    " answer; such as 10s or 2m.",
)
@click.option(
    "--proxy-headers/--no-proxy-headers",
    default=True,
    show_default=True,
    help="Trust X-Forwarded-For and X-Forwarded-Proto from the proxies in --forwarded-allow-ips.",
)
@click.option(
    "--forwarded-allow-ips",
    default="127.0.0.1,::1",
    show_default=True,
    envvar="FORWARDED_ALLOW_IPS",
    show_envvar=True,
    callback=_proxies,
    help="Addresses and networks of trusted proxies, separated by commas; * trusts every client.",
)
@click.option(
    "--save-refused",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Save refused requests in this folder, for hookonce verify --request: the last 100, of 20"
    " MiB at most. Only this user can read them.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="Development: restart when a Python file in this folder changes.",
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
    save_refused: Path | None,
    reload: bool,
    log_level: str,
    log_format: str,
    log_tracebacks: bool,
    factory: bool,
) -> None:
    """Serve MODULE:RECEIVER over HTTP, with /livez and /readyz beside it.

    MODULE:APP names an application with receivers, which keeps its own paths. MODULE:RECEIVERS
    names a mapping or a list of receivers; each receives deliveries at /webhooks/ENDPOINT.

    With --processes, several processes share the port and the store, which must be SQLite,
    PostgreSQL or Redis. Each of them works on an embedded inbox. Limits apply to one process, and
    /readyz reports on the process that answers. A process that cannot start, or that dies again and
    again, ends the command. The first SIGTERM or Ctrl-C shuts all of them down in order, the second
    kills them.

    /readyz gives its reasons only to requests with $HOOKONCE_HEALTH_TOKEN as a bearer token.

    For example: hookonce serve app.hooks:receiver --port 9000
    """
    _check_paths(path, inspector_hosts, with_inspector=with_inspector, with_metrics=metrics)
    if processes > 1:
        _check_several(with_inspector=with_inspector, with_reload=reload)
    if reload:
        _restart_at_changes()
        return
    start_logging(log_level, log_format, every_traceback=log_tracebacks)
    refused = None if save_refused is None else _refused_requests(save_refused)
    listeners, member = None, None
    if processes > 1:
        listeners = bound(host, port)
        begin = supervised_with_metrics if metrics else supervised
        member = begin(processes, f"{receiver} running on {url_of(listeners)}", listeners)
    loaded = load(receiver, factory=factory)
    targets = tuple(loaded.receivers.values())
    if member is not None and any(isinstance(one.store, MemoryStore) for one in targets):
        raise CannotBegin(
            f"{receiver} keeps its store in memory, which processes cannot share; for --processes"
            " give it sqlite:///file.db, postgresql://host/database or redis://host"
        )
    inspector, generated_token = None, None
    if with_inspector:
        inspector, generated_token = _inspector(targets, [_own_name(host), *inspector_hosts])
    listeners = listeners or bound(host, port)
    for one in targets:
        # Report a failure in one line; the server would print a traceback.
        run(open_once(one))
    app = served_app(loaded, path, inspector, with_metrics=metrics)
    if refused is not None:
        app = refused.around(app)
        for one in targets:
            one.observe(refused)
    connections = ServerConnections(
        max_connections, idle_seconds=idle_seconds, refuse=_refusing(targets[0])
    )
    start = ReportedStart(app)
    config = uvicorn.Config(
        start,
        http=connections.protocol(),
        ws="none",  # no WebSockets, because `ServerConnections` does not count them
        backlog=_BACKLOG,
        log_config=log_settings(log_level, log_format, every_traceback=log_tracebacks),
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
            member.report_ready(end_seconds)
        else:
            _log.info("%s running on %s (Ctrl-C ends it)", receiver, url_of(listeners))
        # Do not log the token: more people can read the log.
        if generated_token is not None:
            url = f"http://{_own_name(host)}:{port}{INSPECTOR_PATH}/"
            click.echo(f"inspector: {url}?token={generated_token}")

    server = _Server(
        config,
        connections,
        before_end=inspector.end if inspector else lambda: None,
        after_start=after_start,
    )
    with refused or nullcontext():
        _run(server, listeners, start)
    end_with_its_threads()


def _run(server: uvicorn.Server, listeners: list[socket.socket], start: ReportedStart) -> None:
    """Run a server until a signal ends it; exit with the reason if its application fails."""
    # At a signal uvicorn shuts down, then raises the same signal again. Ignore the second signal.
    signal.signal(signal.SIGTERM, lambda *_: None)
    # uvicorn raises SystemExit if the application cannot start.
    with suppress(KeyboardInterrupt, SystemExit):
        server.run(listeners)
    if start.fault is not None:
        raise CannotBegin(f"the application cannot start: {start.fault}")
    if not server.started:  # a signal ended the server before it had started
        sys.exit(Status.CANNOT_BEGIN)


class _Server(uvicorn.Server):
    """A server that closes idle connections.

    Args:
        before_end: called when the shutdown begins; it ends live pages, which never end alone.
        after_start: called with the port when the server accepts connections.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        connections: ServerConnections,
        *,
        before_end: Callable[[], object],
        after_start: Callable[[int], object],
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


def served_app(
    loaded: Loaded, path: str, inspector: Inspector | None, *, with_metrics: bool
) -> ASGIApp:
    """Return the application to serve, which logs all requests; or exit with an error."""
    receivers = tuple(loaded.receivers.values())
    count_request, more = metrics_of(receivers) if with_metrics else (None, [])
    health_token = os.environ.get(HEALTH_TOKEN_VARIABLE) or None
    try:
        if isinstance(loaded.named, Receiver):
            app = service_app(receivers[0], path, inspector, more, health_token=health_token)
        else:
            app = application_of(loaded, inspector, more, health_token=health_token)
    except ValueError as error:
        raise CannotBegin(f"{HEALTH_TOKEN_VARIABLE}: {error}") from None
    own_paths = [*HEALTH_PATHS, *(route.path for route in more)]
    if inspector is not None:
        own_paths.append(INSPECTOR_PATH)
    delivery_paths = [each or path for each in loaded.receivers]
    prefixes = {prefix for one in receivers for prefix in one.sender.headers}
    return RequestLog(
        app,
        own_paths=own_paths,
        delivery_paths=delivery_paths,
        delivery_headers=[f"{prefix}-id".encode() for prefix in prefixes],
        count=count_request,
    )


def _check_paths(
    path: str, inspector_hosts: Sequence[str], *, with_inspector: bool, with_metrics: bool
) -> None:
    """Exit with a usage error if ``path`` is invalid or another route has the same path."""
    if not path.startswith("/"):
        raise click.BadParameter(f"a path starts with a slash, unlike {path!r}")
    if path.rstrip("/") in HEALTH_PATHS:
        raise click.BadParameter(f"{path} is the path of a health check", param_hint="--path")
    if inspector_hosts and not with_inspector:
        raise click.UsageError("--inspector-host needs --inspector")
    if with_inspector and f"{path}/".startswith(f"{INSPECTOR_PATH}/"):
        raise click.BadParameter(f"{INSPECTOR_PATH} is the path of the inspector")
    if with_metrics:
        check_path(path)


def _refused_requests(folder: Path) -> RefusedRequests:
    try:
        from .refused import RefusedRequests  # noqa: PLC0415 - the supervisor needs fcntl, which Windows lacks
    except ImportError:
        raise CannotBegin("--save-refused needs fcntl, which this system lacks") from None
    return RefusedRequests(folder)


def _check_several(*, with_inspector: bool, with_reload: bool) -> None:
    """Exit with a usage error if an option does not allow several processes."""
    if with_reload:
        raise click.UsageError("--reload restarts one process; leave out --processes")
    if with_inspector:
        raise click.UsageError(
            "--inspector is a page of one process. Leave it out here, and serve it from one more"
            " process on the same store, which sees all of them: hookonce serve MODULE:RECEIVER"
            f" --inspector --port {DEFAULT_PORT + 1}"
        )


def _own_name(host: str) -> str:
    """Return a host at which this machine reaches a server that listens on ``host``."""
    if host in {"", "0.0.0.0", "::"}:  # noqa: S104 - this line compares the address, and does not bind it
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _inspector(receivers: Sequence[Receiver], hosts: Sequence[str]) -> tuple[Inspector, str | None]:
    """Return the inspector, and its token if the token was generated; or exit with an error."""
    try:
        from hookonce.operations.inspector import (  # noqa: PLC0415 - the inspector needs jinja2, an optional dependency
            LOOPBACK_HOSTS,
            Inspector,
        )
    except ImportError as error:
        raise CannotBegin(str(error)) from None
    generated = os.environ.pop(_GENERATED_TOKEN_VARIABLE, None) or secrets.token_urlsafe()
    token = os.environ.get(TOKEN_VARIABLE) or None
    try:
        inspector = Inspector(receivers, token=token or generated, hosts=[*LOOPBACK_HOSTS, *hosts])
    except ValueError as error:
        raise CannotBegin(str(error)) from None
    return inspector, generated if token is None else None


def _refusing(receiver: Receiver) -> ASGIApp:
    """Return an application that answers 503, for connections over the limit."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - an ASGI application has these parameters
        note_unread(receiver, OVERLOADED, 0.0)
        await respond(send, OVERLOADED, closing=scope)

    return refuse


def _restart_at_changes() -> None:
    """Run this command without --reload, and restart it whenever a Python file changes."""
    try:
        from watchfiles import PythonFilter, run_process  # noqa: PLC0415 - only --reload needs this module
    except ImportError:
        raise CannotBegin("--reload needs watchfiles: pip install watchfiles") from None
    arguments = [one for one in sys.argv[1:] if one != "--reload"]
    code = "from hookonce.cli import main; main()"
    os.environ[_GENERATED_TOKEN_VARIABLE] = secrets.token_urlsafe()
    command = shlex.join([sys.executable, "-c", code, *arguments])
    run_process(
        ".",
        target=command,
        target_type="command",
        watch_filter=PythonFilter(),
        sigint_timeout=ceil(_SHUTDOWN_SECONDS),
    )


async def open_once(receiver: Receiver) -> None:
    async with receiver.opened():
        pass


@contextmanager
def loopback_listener(port: int) -> Iterator[socket.socket]:
    """Listen on a loopback port during the block; the kernel queues connections for a server.

    Raises:
        CannotBegin: the port is taken.
    """
    # Without IPPROTO_TCP, asyncio leaves Nagle's algorithm on, which delays answers by 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(_BACKLOG)
        except OSError as error:
            raise CannotBegin(f"cannot serve on port {port}: {error.strerror}") from error
        yield listener


@asynccontextmanager
async def serving_at(listener: socket.socket, app: ASGIApp) -> AsyncIterator[str]:
    """Serve an application during the block; yield the base URL. The caller handles signals.

    Raises:
        CannotBegin: the application does not start.
    """
    server = _WithoutSignals(uvicorn.Config(app, ws="none", log_config=None, access_log=False))

    async def serve_until_end() -> None:
        # uvicorn calls sys.exit() if the application does not start.
        with suppress(SystemExit):
            await server.serve(sockets=[listener])

    task = asyncio.create_task(serve_until_end())
    while not server.started:
        await asyncio.sleep(0.01)
        if task.done():
            await task
            raise CannotBegin("the application did not start; the log says why")
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def serving(app: ASGIApp, port: int) -> AsyncIterator[str]:
    """Serve an application on the loopback interface during the block; yield the base URL.

    Raises:
        CannotBegin: the port is taken, or the application does not start.
    """
    with loopback_listener(port) as listener:
        async with serving_at(listener, app) as base_url:
            yield base_url


class _WithoutSignals(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
