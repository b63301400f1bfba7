"""What lies under a database file: a disk, memory, a network, or a container's own layer."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

from .findings import Finding, fault, fine, warning

MOUNTS = Path("/proc/self/mounts")
"""Where Linux says what is mounted."""

# A space in a mount point is written as \040.
_ESCAPED = re.compile(r"\\([0-7]{3})")

_IN_MEMORY = {"ramfs", "tmpfs"}
_OVER_NETWORK = {"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "smb3", "smbfs"}
_OVER_NETWORK_PREFIXES = ("nfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3", "fuse.gcsfuse")
_OF_A_CONTAINER = {"aufs", "overlay"}


def file_system_of(path: PurePath, mounts: str) -> str | None:
    """Return the type of the file system that an absolute path lies on, or None.

    Args:
        path: it need not exist.
        mounts: what ``/proc/self/mounts`` says; the last of several on one point is on top.

    """
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = PurePath(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[1]))
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = len(point.parts), fields[2]
    return None if best is None else best[1]


def file_system_finding(path: PurePath, kind: str | None) -> Finding:
    """Judge where a database file lies."""
    check = "store.durability"
    if kind in _IN_MEMORY:
        return fault(
            check,
            f"{path} lies on {kind}, which is memory: a restart of the machine loses dead letters,"
            " accepted events and what has been handled",
            "put the file on a disk",
        )
    if kind in _OVER_NETWORK or (kind or "").startswith(_OVER_NETWORK_PREFIXES):
        return fault(
            check,
            f"{path} lies on {kind}, a network file system, over which write-ahead logs do not"
            " work: events are handled twice, or the file is damaged",
            "put the file on a local disk, or use redis:// for many machines",
        )
    if kind in _OF_A_CONTAINER:
        return warning(
            check,
            f"{path} lies on {kind}, the layer of a container, and goes with the container",
            "mount a volume, and put the file there",
        )
    return fine(check, f"{path} lies on {kind or 'a file system that this system does not name'}")
