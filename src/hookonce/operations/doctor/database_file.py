"""Checks of a SQLite file: its file system, its existence, and deleted files still in use."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePath

from .findings import Finding, fault, fine, note, warning

MOUNTS = Path("/proc/self/mounts")
"""The list of mounted file systems on Linux."""

PROCESSES = Path("/proc")
"""The folder of processes on Linux; only root sees the files that other users' processes open."""

DELETED = "store.file"
"""The name of the finding about a database file that was deleted although a process uses it."""

_MEBIBYTE = 1024 * 1024
# SQLite needs room for its log and for the largest body: some mebibytes for each.
_NO_SPACE_BYTES = 8 * _MEBIBYTE
_LITTLE_SPACE_BYTES = 256 * _MEBIBYTE

_ESCAPED = re.compile(r"\\([0-7]{3})")
"""An escaped character in a mount point, such as ``\\040`` for a space."""

_IN_MEMORY = {"ramfs", "tmpfs"}
_OVER_NETWORK = {"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "smb3", "smbfs"}
_OVER_NETWORK_PREFIXES = ("nfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3", "fuse.gcsfuse")
_OF_A_CONTAINER = {"aufs", "overlay"}


async def file_findings(database: Path, *, mounts: Path) -> list[Finding]:
    """Check the file system of a database file, and whether a process still uses a deleted file.

    Args:
        database: the absolute path; the file need not exist.
    """
    try:
        mounted = await asyncio.to_thread(mounts.read_text, "utf-8", "replace")
    except OSError:
        kind = None
    else:
        kind = file_system_of(database, mounted)
    findings = [file_system_finding(database, kind)]
    with suppress(OSError):  # the folder does not exist, which `missing_finding` reports
        free = (await asyncio.to_thread(shutil.disk_usage, database.parent)).free
        findings.append(space_finding(database, free))
    return findings + await asyncio.to_thread(_deleted_file_findings, database)


def space_finding(database: Path, free_bytes: int) -> Finding:
    """Check the free space on the disk of a database file; the disk may be in memory (tmpfs)."""
    check, fix = "store.space", f"free space on the disk of {database.parent}, or enlarge the disk"
    shown = f"{free_bytes / _MEBIBYTE:.0f} MiB are free on the disk of {database}"
    if free_bytes < _NO_SPACE_BYTES:
        found = f"the disk is full: {shown}, and deliveries that cannot be stored are answered 503"
        return fault(check, found, fix)
    if free_bytes < _LITTLE_SPACE_BYTES:
        return warning(check, f"only {shown}", fix)
    return fine(check, shown)


def file_system_of(path: PurePath, mounts: str) -> str | None:
    """Return the type of the file system that contains an absolute path; None if unknown.

    Args:
        path: the path; it need not exist.
        mounts: the content of ``/proc/self/mounts``; a later mount on the same point is on top.
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
    """Check the file system of a database file; None if its type is unknown."""
    check = "store.durability"
    if kind in _IN_MEMORY:
        return fault(
            check,
            f"{path} is on {kind}, which is memory: a restart of the machine loses dead letters,"
            " accepted events and the record of handled events",
            "put the file on a disk",
        )
    if kind in _OVER_NETWORK or (kind or "").startswith(_OVER_NETWORK_PREFIXES):
        return fault(
            check,
            f"{path} is on {kind}, a network file system, where SQLite's write-ahead log does not"
            " work: events are handled twice, or the file is damaged",
            "put the file on a local disk; for several machines use postgresql:// or redis://",
        )
    if kind in _OF_A_CONTAINER:
        return warning(
            check,
            f"{path} is on {kind}, the layer of a container, and is deleted with the container",
            "mount a volume, and put the file there",
        )
    return fine(check, f"{path} is on {kind or 'an unknown file system'}")


def missing_finding(database: Path, *, served: bool) -> Finding | None:
    """Return a finding if a database file does not exist, else None.

    Args:
        served: whether a server should already have created the file.
    """
    if database.exists():
        return None
    folder = database.parent
    if not folder.is_dir():
        return fault(
            "store.reachable",
            f"the folder {folder} does not exist, so the store cannot be created",
            "create the folder, or correct the path in the store's URL",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return fault(
            "store.reachable",
            f"this user may not write to {folder}",
            "give the receiver's user the right to write there",
        )
    level = warning if served else note
    return level(
        "store.reachable",
        f"the file {database} does not exist yet; the receiver creates it when it starts",
        "if the receiver has run before, correct the path: a relative path starts at the working"
        " folder",
    )


def _deleted_file_findings(database: Path) -> list[Finding]:
    """Return a fault for each process that still uses a deleted or replaced database file."""
    gone = {f"{database}{suffix} (deleted)" for suffix in ("", "-wal")}
    return [
        fault(
            DELETED,
            f"process {holder} still writes to a file that was deleted or replaced at {database}:"
            " a restart loses what it writes",
            f"restore the right file and restart the process; {link} is the lost file",
        )
        for holder, link in processes_with(gone)
    ]


def processes_with(files: Collection[str]) -> list[tuple[str, Path]]:
    """Return the id of each process that has one of these files open, with a link to that file."""
    holders: dict[str, Path] = {}
    for folder in PROCESSES.glob("[0-9]*/fd"):
        for link in _links_in(folder):
            try:
                if os.readlink(link) in files:
                    holders.setdefault(folder.parent.name, link)
            except OSError:  # the process has closed the file, or belongs to another user
                continue
    return sorted(holders.items())


def _links_in(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # the process has ended or belongs to another user
        return []
