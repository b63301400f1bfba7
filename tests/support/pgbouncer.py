"""PgBouncer in front of a PostgreSQL server, for tests."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from .needs import needed
from .postgres import PostgresServer, as_somebody
from .redis_servers import free_port
from .waiting import PATIENCE_SECONDS

__all__ = ["pgbouncer"]

_SETTINGS = """
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 100
"""


@contextmanager
def pgbouncer(server: PostgresServer, *, connections: int) -> Iterator[str]:
    """Run PgBouncer in transaction mode with this many connections to the server; yield its URL."""
    binary = needed("pgbouncer", package="pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="hookonce-pgbouncer-"))
    folder.chmod(0o755)
    port = free_port()
    settings = folder / "pgbouncer.ini"
    settings.write_text(_SETTINGS.format(server=server.port, port=port, connections=connections))
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binary, str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            **as_somebody(),
        )
    try:
        _wait_for(url, process, folder / "log")
        yield url
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with psycopg.connect(url, prepare_threshold=None) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(log.read_text()) from None
            time.sleep(0.02)
        else:
            return
