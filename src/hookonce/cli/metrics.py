"""``hookonce serve --metrics`` and ``hookonce worker --metrics``: an endpoint for Prometheus.

Several processes of a command share a folder of files. Each process writes its own files and reads
the files of all processes, so that any process can answer with the sums. A file stays when its
process ends, even if the process was killed. The process that replaces it adds to the same file.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext

import click
import uvicorn

from hookonce import Receiver
from hookonce.http.app import Route, application

from .output import Option
from .statuses import CannotBegin
from .supervisor import Member, supervised

_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

# At its end, the command waits this long for a request of Prometheus that still runs.
_SHUTDOWN_SECONDS = 2


def _address(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[str, int] | None:
    """Return the host and the port of ``PORT`` or ``HOST:PORT``."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port[:6]) <= 65535):
        raise click.BadParameter(f"{text[:80]!r} is not a port, such as 9100, or HOST:PORT")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


metrics_option: Option = click.option(
    "--metrics",
    is_flag=True,
    help="Serve metrics for Prometheus at /metrics, to every client that reaches the port; of all"
    " processes together.",
)
metrics_address_option: Option = click.option(
    "--metrics",
    "metrics_address",
    metavar="[HOST:]PORT",
    callback=_address,
    help="Serve metrics for Prometheus at http://HOST:PORT/metrics, of all processes together. HOST"
    " is 127.0.0.1 by default; 0.0.0.0 lets other machines reach the port.",
)


def check_path(path: str) -> None:
    """Exit with a usage error if deliveries and metrics have the same path."""
    if path.rstrip("/") == "/metrics":
        raise click.BadParameter("/metrics is the path of the metrics", param_hint="--path")


def metrics_of(receivers: Sequence[Receiver]) -> tuple[Callable[[str, int], None], list[Route]]:
    """Add metrics to the receivers; return the route of the metrics, or exit with an error.

    Also returns a function that counts requests, which takes their kind and their status.
    """
    with _or_exit():
        from hookonce.operations.prometheus import (  # noqa: PLC0415 - an optional dependency
            PrometheusObserver,
            metrics_routes,
        )
    observer = PrometheusObserver()
    for receiver in receivers:
        receiver.observe(observer)
        observer.know(receiver)
    return observer.count_request, metrics_routes(receivers[0], observer)


@contextmanager
def _or_exit() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise CannotBegin(str(error)) from None


def supervised_with_metrics(
    count: int, announcement: str, listeners: Sequence[socket.socket] = ()
) -> Member:
    """Call ``supervised``, and let the processes add up their metrics.

    They share a folder that the supervisor removes at the end. If ``PROMETHEUS_MULTIPROC_DIR``
    names a folder, they use that folder, and other commands may share it.
    """
    if os.environ.get(_FOLDER_VARIABLE):
        return supervised(count, announcement, listeners)
    os.environ[_FOLDER_VARIABLE] = click.get_current_context().with_resource(_folder())
    member = supervised(count, announcement, listeners)
    with _or_exit():
        from hookonce.operations.prometheus import (  # noqa: PLC0415 - an optional dependency
            write_files_of,
        )
    write_files_of(f"process{member.place}")
    return member


@contextmanager
def _folder() -> Iterator[str]:
    """Make a temporary folder; remove it when the block ends here, not in a forked process."""
    try:
        folder = tempfile.mkdtemp(prefix="hookonce-metrics-")
    except OSError as error:
        raise CannotBegin(
            f"cannot make a folder for the metrics of several processes ({error.strerror}); set"
            " TMPDIR to a folder that this user may write"
        ) from None
    maker = os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == maker:
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def serving_metrics(
    receivers: Sequence[Receiver], listeners: Sequence[socket.socket]
) -> AsyncIterator[None]:
    """Serve /metrics on these sockets during the block."""
    _, routes = metrics_of(receivers)
    config = uvicorn.Config(
        application(routes, lambda _: nullcontext()),
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(list(listeners)))
    try:
        yield
    finally:
        server.should_exit = True
        await task


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, because the command handles signals itself."""
        yield
