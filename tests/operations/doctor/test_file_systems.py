"""What a database file lies on is found in the list of mounts, and judged."""

from pathlib import PurePosixPath

import pytest

from hookonce.operations.doctor import Level
from hookonce.operations.doctor.file_systems import file_system_finding, file_system_of

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


def test_without_mounts_nothing_is_known_and_nothing_claimed() -> None:
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
        ("overlay", Level.WARNING, "goes with the container"),
    ],
)
def test_memory_networks_and_layers_of_containers_are_no_place_for_it(
    kind: str, level: Level, words: str
) -> None:
    found = file_system_finding(PurePosixPath("/data/hookonce.db"), kind)
    assert found.level is level
    assert words in found.found
