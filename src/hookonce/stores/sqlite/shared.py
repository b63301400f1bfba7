"""The objects that all stores of a process on one file share, and how they survive a fork."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import TypeAlias
from weakref import WeakSet, WeakValueDictionary

from ...clock import Clock
from . import backup
from .claims import ClaimsTable
from .inbox import InboxTable
from .schema import FileFormat
from .upkeep import Upkeep
from .writer import Writer

_Key: TypeAlias = tuple[Path, float, int, tuple[int, ...]]


class SharedFile:
    """The tables and the writer of a file, for all stores with the same retention and clock.

    Args:
        retention_seconds: how long a done event is remembered.
        formats: the formats that the stores can read and write, oldest first.
    """

    def __init__(
        self, path: Path, retention_seconds: float, clock: Clock, formats: tuple[int, ...]
    ) -> None:
        self.path = path
        self.claims: ClaimsTable = ClaimsTable(retention_seconds, clock)
        self.inbox: InboxTable = InboxTable(self.claims)
        self.upkeep: Upkeep = Upkeep(self.claims)
        self.format: FileFormat = FileFormat(formats, self.claims.uptime)
        self.writer: Writer = Writer(path, self.upkeep.continue_walk, self.format)


_lock = threading.Lock()
_files: WeakValueDictionary[_Key, SharedFile] = WeakValueDictionary()
_writers: WeakSet[Writer] = WeakSet()
_closed_for_fork: list[Writer] = []


def shared_file(
    path: Path, retention_seconds: float, clock: Clock, formats: tuple[int, ...]
) -> SharedFile:
    """Return this process's ``SharedFile`` for a file; create it for the first store."""
    # The clock's id is safe as a key: a SharedFile keeps its clock alive, so the id is not reused.
    key = path, retention_seconds, id(clock), formats
    with _lock:
        shared = _files.get(key)
        if shared is None:
            shared = _files[key] = SharedFile(path, retention_seconds, clock, formats)
            _writers.add(shared.writer)
        return shared


def _before_fork() -> None:
    _lock.acquire()  # no other thread may create a writer before the fork is over
    backup.before_fork()
    _closed_for_fork.extend(_writers)
    for writer in _closed_for_fork:
        writer.before_fork()


def _after_fork(*, in_child: bool) -> None:
    # A fork by C code skips `_before_fork` and leaves `_closed_for_fork` empty: take all writers.
    for writer in _closed_for_fork or list(_writers):
        if in_child:
            writer.after_fork_in_child()
        else:
            writer.after_fork_in_parent()
    _closed_for_fork.clear()
    if in_child:
        backup.after_fork_in_child()
    else:
        backup.after_fork_in_parent()
    if _lock.locked():
        _lock.release()


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=partial(_after_fork, in_child=False),
        after_in_child=partial(_after_fork, in_child=True),
    )
