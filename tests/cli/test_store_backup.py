"""``hookonce store backup`` copies a store while it is in use."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest
from support.sqlite_processes import is_sound

from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Delivery, new_token

from .running import invoke


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    async def make() -> None:
        store = SQLiteStore(tmp_path / "hooks.db")
        await store.enqueue(Delivery("default", "evt_1", None, 1.0, b"body"), new_token())
        await store.aclose()

    anyio.run(make)
    monkeypatch.chdir(tmp_path)
    return "sqlite:///hooks.db"


def test_backup_writes_a_copy_that_commands_can_read(url: str, tmp_path: Path) -> None:
    result = invoke("store", "backup", url, "copy.db")
    assert (result.status, result.output.split(" (")[0]) == (0, "copied the store to copy.db")
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    assert is_sound(tmp_path / "copy.db")
    assert "depth: 1\n" in invoke("inbox", "stats", "sqlite:///copy.db").output


def test_a_program_reads_what_was_written(url: str, tmp_path: Path) -> None:
    record = json.loads(invoke("store", "backup", url, "copy.db", "--json").output)
    assert record == {"file": "copy.db", "bytes": (tmp_path / "copy.db").stat().st_size}


def test_the_store_may_come_from_the_environment(url: str) -> None:
    result = invoke("store", "backup", "copy.db", environment={"HOOKONCE_STORE": url})
    assert result.status == 0


def test_the_command_overwrites_a_file_only_on_request(url: str) -> None:
    assert invoke("store", "backup", url, "copy.db").status == 0
    again = invoke("store", "backup", url, "copy.db")
    assert again.status != 0
    assert "exists already" in again.errors
    assert invoke("store", "backup", url, "copy.db", "--overwrite").status == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sqlite:///hooks.db"], "one FILE"),
        (["sqlite:///hooks.db", "a", "b"], "one FILE"),
        (["sqlite:///hooks.db", "hooks.db"], "a file of the store itself"),
        (["sqlite:///nowhere.db", "copy.db"], "does its folder exist"),
        (["memory://", "copy.db"], "only its own process can see"),
        (["redis://localhost:1", "copy.db"], "back up PostgreSQL or Redis as its manual says"),
    ],
)
def test_a_store_that_cannot_be_copied_is_refused(
    url: str, arguments: list[str], says: str
) -> None:
    assert url
    result = invoke("store", "backup", *arguments)
    assert result.status != 0
    assert says in result.errors
    assert not Path("copy.db").exists()


def test_a_backup_is_restored_with_the_mode_and_owner_that_the_service_needs(
    url: str, tmp_path: Path
) -> None:
    invoke("store", "backup", url, "copy.db")
    folder = tmp_path / "data"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, 4321, 4321)
    (tmp_path / "copy.db").chmod(0o644)
    result = invoke("store", "restore", "sqlite:///data/hooks.db", "copy.db")
    assert (result.status, result.output.split(" (")[0]) == (
        0,
        f"restored {folder / 'hooks.db'} from copy.db",
    )
    status = (folder / "hooks.db").stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_uid == folder.stat().st_uid
    if os.geteuid() != 0:
        assert "depth: 1\n" in invoke("inbox", "stats", "sqlite:///data/hooks.db").output
    assert (tmp_path / "copy.db").exists()


def test_a_restore_moves_an_existing_store_aside_only_when_asked(url: str, tmp_path: Path) -> None:
    invoke("store", "backup", url, "copy.db")
    refused = invoke("store", "restore", url, "copy.db")
    refused.says("exists already")
    record = json.loads(invoke("store", "restore", url, "copy.db", "--overwrite", "--json").output)
    assert record["file"] == str(tmp_path / "hooks.db")
    old = Path(record["old"])
    assert is_sound(old)
    assert is_sound(tmp_path / "hooks.db")
    assert "depth: 1\n" in invoke("inbox", "stats", url).output


def test_a_restore_moves_the_log_of_the_old_store_aside_with_it(url: str, tmp_path: Path) -> None:
    invoke("store", "backup", url, "copy.db")
    (tmp_path / "hooks.db-wal").write_bytes(b"of a process that was killed")
    record = json.loads(invoke("store", "restore", url, "copy.db", "--overwrite", "--json").output)
    assert not (tmp_path / "hooks.db-wal").exists()
    assert Path(f"{record['old']}-wal").read_bytes() == b"of a process that was killed"


@pytest.mark.parametrize(
    ("file", "words"),
    [("missing.db", "there is no file"), ("hooks.db", "is the store itself"), ("text", "restore")],
)
def test_restore_refuses_a_file_that_is_no_backup_and_keeps_the_store(
    url: str, tmp_path: Path, file: str, words: str
) -> None:
    (tmp_path / "text").write_text("not a database" * 1000)
    before = (tmp_path / "hooks.db").read_bytes()
    result = invoke("store", "restore", url, file, "--overwrite")
    assert result.status == 2
    assert words in result.errors or "hooks.db.replaced-" in result.errors
    kept = [path for path in tmp_path.glob("hooks.db*") if path.read_bytes() == before]
    assert kept
