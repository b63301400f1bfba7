"""Access to the connection of an SQLite store's writer from a test's thread."""

from collections.abc import Iterator
from contextlib import contextmanager

from hookonce.stores.sqlite import SQLiteStore


@contextmanager
def between_batches(store: SQLiteStore) -> Iterator[None]:
    """Let only this thread use the writer's connection: two threads must not use it at once."""
    with store._file.writer._connection_lock:
        yield
