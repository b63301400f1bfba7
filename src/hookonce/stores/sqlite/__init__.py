"""The SQLite store: durable on one machine."""

from .store import SQLiteStore

__all__ = ["SQLiteStore"]
