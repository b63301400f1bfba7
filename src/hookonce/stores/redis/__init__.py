"""The Redis store: shared by many machines."""

from .store import RedisStore

__all__ = ["RedisStore"]
