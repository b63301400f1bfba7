"""Commands that root runs in the folder of another user do nothing to root's other files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hookonce.cli.secrets_file import SecretsFile
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
    """Return a folder of the service's user, in one that root alone can write."""
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


@pytest.mark.parametrize("name", [".secrets.draft", ".secrets.0123456789abcdef.draft"])
def test_a_planted_link_for_a_draft_is_named_and_not_followed(
    site: Site, folder: Path, victim: Path, name: str
) -> None:
    as_service(folder, "ln", "-s", str(victim), name)
    secret, result = create(site, folder / "secrets")
    assert result.status == 0, result
    assert untouched(victim)
    assert repr(str(folder / name)) in result.errors
    assert f"belongs to user {SERVICE}" in result.errors
    assert secret_lines((folder / "secrets").read_text()) == (secret,)


def test_a_planted_draft_becomes_no_secret_and_is_named(site: Site, folder: Path) -> None:
    planted = new_secret()
    text = f"# hookonce asked for a secret at 2026-01-01T00:00:00Z. x\n{planted}\n# complete\n"
    name = ".secrets.0123456789abcdef.draft"
    as_service(folder, "sh", "-c", 'printf %s "$1" > "$2"', "sh", text, name)
    secret, result = create(site, folder / "secrets")
    assert secret_lines((folder / "secrets").read_text()) == (secret,)
    assert repr(str(folder / name)) in result.errors
    assert (folder / name).read_text() == text


def test_a_draft_of_the_caller_s_own_with_the_same_text_is_taken_up(
    site: Site, folder: Path
) -> None:
    before = new_secret()
    text = f"# hookonce asked for a secret at 2026-01-01T00:00:00Z. x\n{before}\n# complete\n##"
    (folder / ".secrets.0123456789abcdef.draft").write_text(text)
    secret, result = create(site, folder / "secrets")
    assert secret_lines((folder / "secrets").read_text()) == (secret, before)
    assert "now has the secret that a killed command was given" in result.errors
    assert os.listdir(folder) == ["secrets"]


def test_a_secret_that_cannot_be_taken_up_stays_in_the_draft_that_the_message_names(
    site: Site, folder: Path
) -> None:
    name = ".secrets.0123456789abcdef.draft"
    text = f"# hookonce asked for a secret at …\n{new_secret()}\n# complete\n##"
    (folder / name).write_text(text)
    (folder / "secrets").write_bytes(b"# cl\xe9s\n")
    _, result = create(site, folder / "secrets")
    result.says("is not UTF-8 text", f"The new secret is in {str(folder / name)!r}", status=2)
    assert (folder / name).read_text() == text
    assert site.asked == []


def test_a_hard_link_to_a_file_of_root_s_is_no_draft(site: Site, folder: Path) -> None:
    other = folder.parent / "other"
    other.write_text(f"# hookonce asked for a secret at …\n{new_secret()}\n# complete\n")
    os.link(other, folder / ".secrets.0123456789abcdef.draft")
    secret, result = create(site, folder / "secrets")
    assert secret_lines((folder / "secrets").read_text()) == (secret,)
    assert "is left alone and not read" in result.errors


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_planted_link_for_the_file_or_its_folder_is_refused_before_anything_is_asked(
    site: Site, folder: Path, victim: Path, kind: str
) -> None:
    if kind == "file":
        as_service(folder, "ln", "-s", str(victim), "secrets")
        file = folder / "secrets"
    else:
        as_service(folder, "ln", "-s", str(victim.parent), "conf")
        file = folder / "conf" / "victim"
    _, result = create(site, file)
    result.says("a link in a folder where others may write is not followed", status=2)
    assert untouched(victim)
    assert site.asked == []


def test_a_planted_pipe_is_refused_and_nobody_waits(site: Site, folder: Path) -> None:
    as_service(folder, "mkfifo", "secrets")
    _, result = create(site, folder / "secrets")
    result.says("is not a regular file", status=2)
    assert site.asked == []


def test_links_that_root_has_made_are_followed(site: Site, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "shortcut").symlink_to("service")
    (tmp_path / "secrets").symlink_to(tmp_path / "shortcut" / "real")
    secret, result = create(site, tmp_path / "secrets")
    assert result.status == 0, result
    assert (tmp_path / "secrets").is_symlink()
    assert secret_lines((folder / "real").read_text()) == (secret,)
    with SecretsFile(tmp_path / "secrets").held():
        pass


def test_links_that_lead_in_a_circle_end(site: Site, tmp_path: Path) -> None:
    (tmp_path / "secrets").symlink_to("secrets")
    _, result = create(site, tmp_path / "secrets")
    result.says("Too many levels of symbolic links", status=2)


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


# What the command runs under, as the service's user: it says who a file belongs to at each step.
_WATCHED = """
import os, sys
from hookonce.cli.secrets_file import SecretsFile
from pathlib import Path

owners = []
real_rename, real_chown = os.rename, os.fchown

def fchown(file, *owner):
    owners.append(("given", os.fstat(file).st_size > 0))
    real_chown(file, *owner)

def rename(source, target, **folders):
    owners.append(("placed", os.stat(source, dir_fd=folders["src_dir_fd"]).st_uid))
    real_rename(source, target, **folders)

os.fchown, os.rename = fchown, rename
file = SecretsFile(Path("secrets"))
with file.held():
    file.renew(sys.argv[1])
print(owners)
"""


def test_the_owner_changes_by_descriptor_just_before_the_file_takes_its_place(
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
with file.held():
    print([*file.take_up()])
    with file.asking("") as keep:
        print("asked")
"""


def test_another_user_neither_takes_the_file_from_its_owner_nor_reads_the_owner_s_draft() -> None:
    with TemporaryDirectory() as path:
        folder = Path(path)
        folder.chmod(0o777)
        (folder / "secrets").write_text(f"{new_secret()}\n")
        (folder / "secrets").chmod(0o644)
        (folder / (name := ".secrets.0123456789abcdef.draft")).write_text("# hookonce asked\n")
        done = subprocess.run(
            [sys.executable, "-c", _AS_SERVICE, str(folder / "secrets")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"it is no file that user {SERVICE} has written, and belongs to user 0" in (
            done.stdout
        )
        assert "it belongs to user 0; run this as that user, or as root" in done.stderr
        assert "asked" not in done.stdout.splitlines()
        assert sorted(os.listdir(folder)) == [name, "secrets"]
