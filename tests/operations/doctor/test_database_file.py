"""Checks of a database file's file system, which the doctor finds in the list of mounts."""

from pathlib import Path, PurePosixPath

import pytest

from hookonce.operations.doctor import Level
from hookonce.operations.doctor.database_file import (
    file_system_finding,
    file_system_of,
    space_finding,
)

MOUNTS = r"""
rootfs / rootfs rw 0 0
overlay / overlay rw,relatime 0 0
/dev/sda1 /data ext4 rw 0 0
tmpfs /data/scratch tmpfs rw 0 0
nas:/share /mnt/my\040nas nfs4 rw 0 0
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/app/hookonce.db", "overlay"),
        ("/data/hookonce.db", "ext4"),
        ("/data/scratch/deep/hookonce.db", "tmpfs"),
        ("/data/scratches/hookonce.db", "ext4"),
        ("/mnt/my nas/hookonce.db", "nfs4"),
    ],
)
def test_the_innermost_and_latest_mount_counts(path: str, kind: str) -> None:
    assert file_system_of(PurePosixPath(path), MOUNTS) == kind


def test_an_unknown_file_system_is_no_fault() -> None:
    path = PurePosixPath("/data/hookonce.db")
    assert file_system_of(path, "") is None
    assert file_system_finding(path, None).level is Level.OK


@pytest.mark.parametrize(
    ("kind", "level", "words"),
    [
        ("ext4", Level.OK, "ext4"),
        ("tmpfs", Level.FAULT, "is memory"),
        ("nfs4", Level.FAULT, "network file system"),
        ("cifs", Level.FAULT, "network file system"),
        ("fuse.sshfs", Level.FAULT, "network file system"),
        ("overlay", Level.WARNING, "is deleted with the container"),
    ],
)
def test_memory_network_and_container_file_systems_are_reported(
    kind: str, level: Level, words: str
) -> None:
    found = file_system_finding(PurePosixPath("/data/hookonce.db"), kind)
    assert found.level is level
    assert words in found.found


@pytest.mark.parametrize(
    ("free_mebibytes", "level", "words"),
    [
        (0, Level.FAULT, "the disk is full"),
        (7.9, Level.FAULT, "the disk is full"),
        (8, Level.WARNING, "only 8 MiB are free"),
        (255, Level.WARNING, "only 255 MiB are free"),
        (256, Level.OK, "256 MiB are free"),
    ],
)
def test_a_full_disk_is_named_with_the_disk_to_free(
    free_mebibytes: float, level: Level, words: str
) -> None:
    found = space_finding(Path("/data/hookonce.db"), int(free_mebibytes * 1024 * 1024))
    assert found.level is level
    assert words in found.found
    if level is not Level.OK:
        assert "the disk of /data" in found.fix
