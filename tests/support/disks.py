"""Small disks that are easy to fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["NoDiskError", "fill", "small_disk"]


class NoDiskError(PermissionError):
    """This machine cannot mount a disk. Tests can tell this from a store's PermissionError."""


@contextmanager
def small_disk(here: Path, megabytes: int) -> Iterator[Path]:
    """Mount a small disk; raise NoDiskError if that is not allowed."""
    disk = here / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(disk)]
    if os.getuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        remedy = "run as root, in Docker with --cap-add SYS_ADMIN"
        raise NoDiskError(f"a small disk cannot be mounted; to enable: {remedy}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(path: Path) -> None:
    """Write to a file until the disk is full."""
    with path.open("wb", buffering=0) as filler:
        size = 1 << 20
        while size:
            try:
                filler.write(bytes(size))
            except OSError:
                size //= 2
