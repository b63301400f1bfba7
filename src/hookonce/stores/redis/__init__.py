"""The Redis store: shared by many machines."""

from ...errors import NeedsExtra

with NeedsExtra("redis", "the Redis store", "redis"):
    from .safety import Durability
    from .store import RedisStore

__all__ = ["Durability", "RedisStore"]
