"""A command that root runs in another user's folder does not change root's other files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hookonce.verification.secrets import new_secret, secret_lines

from .running import Result
from .test_endpoints import Site, serving
from .test_rotate import endpoint

SERVICE = 65534
"""A user who is not root, and whose service root looks after."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of the service's user, inside a folder that only root can write to."""
    made = tmp_path / "service"
    made.mkdir()
    os.chown(made, SERVICE, SERVICE)
    return made


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_text("root's own\n")
    file.chmod(0o644)
    return file


def as_service(folder: Path, *command: str) -> None:
    """Run a program as the service's user."""
    subprocess.run(command, cwd=folder, user=SERVICE, group=SERVICE, extra_groups=[], check=True)


def create(site: Site, file: Path) -> tuple[str, Result]:
    secret = new_secret()
    site.answer = {"data": endpoint(secret=secret)}
    url = "https://hooks.example.com/"
    result = site.run("create", url, "--event", "comment.received", "--secrets-file", str(file))
    return secret, result


def untouched(victim: Path) -> bool:
    status = victim.stat()
    owner = (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))
    return (victim.read_text(), owner) == ("root's own\n", (0, 0, 0o644))


def test_a_planted_link_for_the_temporary_file_is_not_followed(
    site: Site, folder: Path, victim: Path
) -> None:
    as_service(folder, "ln", "-s", str(victim), ".secrets.new")
    secret, result = create(site, folder / "secrets")
    assert result.status == 0, result
    assert untouched(victim)
    assert secret_lines((folder / "secrets").read_text()) == (secret,)
    assert os.listdir(folder) == ["secrets"]


def test_a_planted_link_for_the_file_is_refused_before_anything_is_asked(
    site: Site, folder: Path, victim: Path
) -> None:
    as_service(folder, "ln", "-s", str(victim), "secrets")
    _, result = create(site, folder / "secrets")
    result.says("is a symbolic link; name the file itself", status=2)
    assert untouched(victim)
    assert site.asked == []


def test_a_planted_pipe_is_refused_and_nobody_waits(site: Site, folder: Path) -> None:
    as_service(folder, "mkfifo", "secrets")
    _, result = create(site, folder / "secrets")
    result.says("is not a regular file", status=2)
    assert site.asked == []


def test_a_link_to_the_folder_is_followed(site: Site, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "shortcut").symlink_to("service")
    secret, result = create(site, tmp_path / "shortcut" / "secrets")
    assert result.status == 0, result
    assert secret_lines((folder / "secrets").read_text()) == (secret,)


def test_the_service_owns_its_file_after_root_has_changed_it(site: Site, folder: Path) -> None:
    as_service(folder, "touch", "secrets")
    secret, result = create(site, folder / "secrets")
    assert result.status == 0, result
    status = (folder / "secrets").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (
        SERVICE,
        SERVICE,
        0o600,
    )
    assert secret in (folder / "secrets").read_text()


# A wrapper that runs the command as the service's user, and prints the file's owner at each step.
_WATCHED = """
import os, sys
from hookonce.cli.secrets_file import SecretsFile
from pathlib import Path

owners = []
real_rename, real_chown = os.rename, os.fchown

def fchown(file, *owner):
    owners.append(("given", os.fstat(file).st_size > 0))
    real_chown(file, *owner)

def rename(source, target):
    owners.append(("placed", os.stat(source).st_uid))
    real_rename(source, target)

os.fchown, os.rename = fchown, rename
file = SecretsFile(Path("secrets"))
with file.locked():
    file.replace(sys.argv[1])
print(owners)
"""


def test_the_new_file_gets_its_owner_by_descriptor_before_it_replaces_the_old_file(
    folder: Path,
) -> None:
    as_service(folder, "touch", "secrets")
    command = [sys.executable, "-c", _WATCHED, new_secret()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == f"[('given', True), ('placed', {SERVICE})]\n"


_AS_SERVICE = f"""
import os, sys
from pathlib import Path
from hookonce.cli.secrets_file import SecretsFile

os.setgroups([]); os.setgid({SERVICE}); os.setuid({SERVICE})
file = SecretsFile(Path(sys.argv[1]))
with file.locked():
    file.replace(file.read())
"""


def status_of(file: Path) -> tuple[int, ...]:
    """Return values that change if a file is written or replaced, but not if it is read."""
    status = file.stat()
    owner = status.st_mode, status.st_uid, status.st_gid
    return (*owner, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def test_another_user_does_not_take_the_file_from_its_owner() -> None:
    with TemporaryDirectory() as path:
        folder = Path(path)
        folder.chmod(0o777)
        (folder / "secrets").write_text(f"{new_secret()}\n")
        (folder / "secrets").chmod(0o644)
        before = status_of(folder / "secrets")
        done = subprocess.run(
            [sys.executable, "-c", _AS_SERVICE, str(folder / "secrets")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "it belongs to user 0, group 0; run this as that user, or as root" in done.stderr
        assert os.listdir(folder) == ["secrets"]
        assert status_of(folder / "secrets") == before
