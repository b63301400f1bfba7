"""The durability that a write must reach before the store reports success."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ...errors import StoreError
from .connection import without_frames
from .faults import explained

Durability: TypeAlias = Literal["memory", "fsync"]
"""Where a write must be before the store reports success: in the server's memory or on disk."""


@dataclass(frozen=True, slots=True)
class Safety:
    """The durability that a write must reach.

    Attributes:
        durability: "fsync" if the write must be on the server's disk.
        replicas: how many replicas must have the write; with "fsync", on their disks.
    """

    durability: Durability = "memory"
    replicas: int = 0

    @property
    def needs_wait(self) -> bool:
        """Whether the store must wait after the server's answer to a write."""
        return self.durability == "fsync" or self.replicas > 0

    def command(self, seconds: float) -> tuple[bytes, ...]:
        """Return the command that waits for the durability of this connection's writes."""
        milliseconds = b"%d" % max(1, int(seconds * 1000))
        if self.durability == "fsync":
            return (b"WAITAOF", b"1", b"%d" % self.replicas, milliseconds)
        return (b"WAIT", b"%d" % self.replicas, milliseconds)

    def check(self, reply: Any) -> None:
        """Raise StoreError unless the reply to ``command`` says that the durability was reached."""
        if isinstance(reply, Exception):
            raise StoreError(self._inability(reply)) from without_frames(reply)
        local, replicas = reply if self.durability == "fsync" else (1, reply)
        if int(local) < 1:
            raise StoreError("the Redis server did not write to its disk in time")
        if int(replicas) < self.replicas:
            raise StoreError(
                f"only {int(replicas)} of {self.replicas} Redis replicas have the write; start"
                " more replicas, or lower replicas="
            )

    def _inability(self, error: Exception) -> str:
        text = str(error)
        if "appendonly" in text:
            return "durability='fsync' needs a server with an append-only file: set appendonly yes"
        if "unknown command" in text:
            return "durability='fsync' needs the command WAITAOF: use Redis or Valkey 7.2 or later"
        return f"the Redis server cannot wait for a durable write: {explained(error)}"
