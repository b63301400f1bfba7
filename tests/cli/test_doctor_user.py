"""As root, the doctor reports what the service's user may read and write.

A process of that user confirms each answer: it opens the same file.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hookonce.stores.sqlite import SQLiteStore

from .running import SECRET, Result, run

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
    pytest.mark.sample(1, of="file"),
]

SERVICE = 65534
"""The number of the service's user."""

APP = """
from hookonce import FileSecrets, Receiver
from hookonce.events import CommentReceived

receiver = Receiver(secrets=FileSecrets("private/secrets"), store="sqlite:///data/hookonce.db")


@receiver.on(CommentReceived)
async def handle(event: CommentReceived) -> None: ...
"""


@pytest.fixture
def here() -> Iterator[Path]:
    """Yield a folder with an application whose files belong to the service's user.

    It is not in pytest's own folder, which every run of pytest closes to other users.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        (folder / "app.py").write_text(APP)
        for private in ("private", "data"):
            (folder / private).mkdir(mode=0o700)
        secrets, database = folder / "private" / "secrets", folder / "data" / "hookonce.db"
        secrets.write_text(SECRET)
        secrets.chmod(0o600)
        asyncio.run(make_store(database))
        for path in (secrets, secrets.parent, database, database.parent):
            os.chown(path, SERVICE, SERVICE)
        yield folder


async def make_store(file: Path) -> None:
    store = SQLiteStore(file)
    await store.open()
    await store.aclose()


def about_the_user(here: Path, *options: str) -> tuple[Result, list[str]]:
    """Run the doctor, and return its findings about the service's user, one line each."""
    result = run("doctor", "app:receiver", *options, here=here)
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    return result, [
        f"{line} {after}" if after.startswith("fix:") else line
        for line, after in pairwise(lines)
        if line.split()[1] == "user"
    ]


@contextmanager
def opened_by_the_service(file: Path, flags: str) -> Iterator[tuple[int, bool]]:
    """Open a file as the service's user; yield the process id, and whether the file was opened."""
    code = f"import os, sys; os.open({str(file)!r}, os.{flags}); print('yes', flush=True); input()"
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", code],
        user=SERVICE,
        group=SERVICE,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline() == b"yes\n"


def can_open(file: Path, flags: str) -> bool:
    with opened_by_the_service(file, flags) as (_, can):
        return can


def test_the_doctor_accepts_a_user_with_all_rights(here: Path) -> None:
    result, [line] = about_the_user(here)
    assert line == (
        f"ok user the service's user nobody (the owner of {here / 'data'}) may read the secrets and"
        " write the store"
    )
    assert "0 faults" in result.output
    assert can_open(here / "private" / "secrets", "O_RDONLY")
    assert can_open(here / "data" / "hookonce.db", "O_RDWR")


def given_to_root(name: str) -> Callable[[Path], None]:
    def give(here: Path) -> None:
        os.chown(here / name, 0, 0)

    return give


def log_of_root(here: Path) -> None:
    (here / "data" / "hookonce.db-wal").touch(0o600)


@pytest.mark.parametrize(
    ("plant", "words", "name", "flags"),
    [
        (
            given_to_root("data/hookonce.db"),
            "may not read and write {}/data/hookonce.db: the store cannot be used",
            "data/hookonce.db",
            "O_RDWR",
        ),
        (
            log_of_root,
            "may not read and write {}/data/hookonce.db-wal: the store cannot be used",
            "data/hookonce.db-wal",
            "O_RDWR",
        ),
        (
            given_to_root("data"),
            "may not enter {}/data, and so cannot use {0}/data/hookonce.db",
            "data/hookonce.db-shm",
            "O_RDWR | os.O_CREAT",
        ),
        (
            given_to_root("private/secrets"),
            "may not read the secrets in {}/private/secrets",
            "private/secrets",
            "O_RDONLY",
        ),
        (
            given_to_root("private"),
            "may not enter {}/private, and so cannot use {0}/private/secrets",
            "private/secrets",
            "O_RDONLY",
        ),
    ],
)
def test_each_missing_right_of_the_user_is_a_fault(
    plant: Callable[[Path], None], words: str, name: str, flags: str, here: Path
) -> None:
    plant(here)
    result, [line] = about_the_user(here, "--user", "nobody")
    assert line.startswith("fault user the service's user nobody (named by --user) may not ")
    assert words.replace("{}", "{0}").format(here) in line
    assert " fix: " in line
    assert (result.status, "1 fault," in result.output) == (1, True)
    assert not can_open(here / name, flags)


def test_a_folder_that_the_user_may_not_write_to_is_a_fault(here: Path) -> None:
    os.chown(here / "data", 0, 0)
    (here / "data").chmod(0o755)
    _, [line] = about_the_user(here, "--user", str(SERVICE))
    assert f"may not write to {here / 'data'}, where SQLite makes the store's -wal" in line
    assert f"fix: chown nobody {here / 'data'}" in line
    assert not can_open(here / "data" / "hookonce.db-wal", "O_RDWR | os.O_CREAT")


def test_the_doctor_takes_the_user_of_the_process_that_has_the_store_open(here: Path) -> None:
    os.chown(here / "data", 0, 0)  # so the folder's owner does not reveal the service's user
    (here / "data").chmod(0o755)
    with opened_by_the_service(here / "data" / "hookonce.db", "O_RDWR") as (pid, can):
        assert can
        _, [line] = about_the_user(here)
    assert f"the service's user nobody (of process {pid}) may not write to" in line


def test_without_a_sign_of_the_user_the_doctor_names_the_option(here: Path) -> None:
    os.chown(here / "data", 0, 0)
    _, [line] = about_the_user(here)
    assert line.startswith("note user the doctor runs as root, and does not know which user runs")
    assert "--user" in line


def test_a_user_may_be_given_by_number(here: Path) -> None:
    result, lines = about_the_user(here, "--user", "54321")
    assert [line.partition(" may not enter ")[0] for line in lines] == [
        "fault user the service's user 54321 (named by --user)"
    ] * 2
    assert result.status == 1


def test_a_user_who_does_not_exist_is_a_usage_error(here: Path) -> None:
    result = run("doctor", "app:receiver", "--user", "nobody-here", here=here)
    result.says("there is no user 'nobody-here'", status=2)


def test_root_has_its_rights_back_after_the_check_of_the_user(here: Path) -> None:
    (here / "app.py").write_text(f"{APP}\nopen('private/of-root', 'w').close()\n")
    given_to_root("private")(here)
    result, _ = about_the_user(here, "--user", "nobody")
    assert "store.reachable       the store answers" in result.output
    assert (here / "private" / "of-root").stat().st_uid == 0


def test_only_root_may_name_another_user(here: Path) -> None:
    code = """
import os
from hookonce.cli import commands, doctor
os.setuid(65534)
commands.cli(["doctor", "app:receiver", "--user", "root"])
"""
    result = run("-c", code, here=here, command=[sys.executable])
    result.says("--user is for root", status=2)
