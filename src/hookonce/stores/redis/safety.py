"""How safe a write must be before it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ...errors import StoreError
from .connection import without_frames
from .faults import explained

Durability: TypeAlias = Literal["memory", "fsync"]


@dataclass(frozen=True, slots=True)
class Safety:
    """What must have happened to a write before it counts.

    Attributes:
        durability: "fsync" if it must be on the server's disk.
        replicas: how many replicas must have it; on their disks too with "fsync".

    """

    durability: Durability = "memory"
    replicas: int = 0

    @property
    def is_asked_for(self) -> bool:
        """Whether the server's answer to the write is not enough."""
        return self.durability == "fsync" or self.replicas > 0

    def command(self, seconds: float) -> tuple[bytes, ...]:
        """Return the command that waits for it, after a write on the same connection."""
        milliseconds = b"%d" % max(1, int(seconds * 1000))
        if self.durability == "fsync":
            return (b"WAITAOF", b"1", b"%d" % self.replicas, milliseconds)
        return (b"WAIT", b"%d" % self.replicas, milliseconds)

    def check(self, reply: Any) -> None:
        """Raise StoreError unless it was reached."""
        if isinstance(reply, Exception):
            raise StoreError(self._inability(reply)) from without_frames(reply)
        local, replicas = reply if self.durability == "fsync" else (1, reply)
        if int(local) < 1:
            raise StoreError("the Redis server has not written it to its disk in time")
        if int(replicas) < self.replicas:
            raise StoreError(
                f"{int(replicas)} of {self.replicas} Redis replicas have it so far; start more of"
                " them, or ask for fewer with replicas="
            )

    def _inability(self, error: Exception) -> str:
        text = str(error)
        if "appendonly" in text:
            return "durability='fsync' needs a server with an append-only file: appendonly yes"
        if "unknown command" in text:
            return (
                "durability='fsync' needs WAITAOF, which Redis has from 7.2 and Valkey from 7.2 on"
            )
        return f"the Redis server cannot wait until a write is safe: {explained(error)}"
