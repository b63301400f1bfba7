"""The identity of the file at a path, without opening the file.

Opening a file of an open SQLite store is harmful: closing it drops the locks of this process.
"""

from __future__ import annotations

import os
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

AnyPath: TypeAlias = str | bytes | os.PathLike[Any]

Identity: TypeAlias = tuple[int, int]
"""The device and inode of a file, which no other file has while this file is open."""


def identity_of(path: AnyPath) -> Identity | None:
    """Return the identity of the file at a path; None if the file's status cannot be read."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def is_same_file(one: AnyPath, other: AnyPath) -> bool:
    """Return whether two paths lead to the same file; the file need not exist yet."""
    identity = identity_of(one)
    if identity is not None or identity_of(other) is not None:
        return identity == identity_of(other)
    return os.path.realpath(os.fsencode(one)) == os.path.realpath(os.fsencode(other))


def file_of_database(name: object) -> AnyPath | None:
    """Return the file that ``sqlite3.connect`` opens for a name or URI; None for no file."""
    if not isinstance(name, str | bytes | os.PathLike):
        return None
    path = os.fsencode(name)
    if path.startswith(b"file:") and not os.path.lexists(path):
        uri = path.removeprefix(b"file:").partition(b"#")[0]
        path, _, query = uri.partition(b"?")
        if b"mode=memory" in query.split(b"&"):
            return None
        if path.startswith(b"//"):  # drop the host between // and the next slash
            path = b"/" + path[2:].partition(b"/")[2]
        path = unquote_to_bytes(path)
    return None if path in (b"", b":memory:") else path
