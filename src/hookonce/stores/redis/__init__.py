"""The Redis store: shared by many machines."""

from .safety import Durability
from .store import RedisStore

__all__ = ["Durability", "RedisStore"]
