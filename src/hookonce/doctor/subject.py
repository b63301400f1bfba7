"""What is examined: a receiver, the application it is in, and the path it answers at there.

The parts of a receiver and of its store that have no public name are read here, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..asgi import ASGIApp
from ..errors import StoreError
from ..receiver import Receiver

__all__ = ["Subject"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A receiver as it is examined.

    Attributes:
        receiver: the receiver; it must not be in use in this process.
        app: the application that has it; the receiver itself, where none is known.
        path: where it answers there, as the application's routes spell it.

    """

    receiver: Receiver
    app: ASGIApp
    path: str

    @property
    def is_alone(self) -> bool:
        """Whether the receiver is its own application."""
        return self.app is self.receiver

    @property
    def retention_seconds(self) -> float | None:
        """How long a handled event is remembered; None where its store does not say."""
        store: Any = self.receiver.store
        for owner in (store, getattr(store, "_claims", None)):
            seconds = getattr(owner, "_retention", None)
            if isinstance(seconds, int | float):
                return seconds
        seconds = getattr(store, "_link", {}).get("retention")
        return seconds if isinstance(seconds, int | float) else None

    @property
    def database(self) -> Path | None:
        """The file of an SQLite store."""
        path = getattr(getattr(self.receiver.store, "_writer", None), "_path", None)
        return path if isinstance(path, Path) else None

    async def server_times(self) -> list[float]:
        """Return the Unix time by the clock of each Redis server of the store.

        Raises:
            StoreError: a server does not tell.

        """
        running = getattr(self.receiver.store, "_running", None)
        if running is None:
            return []
        connections = import_module("..stores.redis_connection", __package__)
        times = []
        try:
            for pool in await running().servers.pools():
                async with connections.connected(pool) as connection:
                    [reply] = await connections.exchange(connection, [(b"TIME",)])
                    if not isinstance(reply, Exception):
                        times.append(int(reply[0]) + int(reply[1]) / 1_000_000)
        except Exception as error:  # redis-py's, which only the store may import
            raise StoreError(f"no clock to be read: {type(error).__name__}") from error
        return times
