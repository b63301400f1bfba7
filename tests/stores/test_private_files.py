"""Only the owner can read files that hold bodies, even if the process's umask allows more."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookonce.errors import StoreError
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Delivery, Token

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:  # noqa: ARG001 - after umask 0o777, tmp_path would be unusable
    """Set the umask of the test's process."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes_in(folder: Path) -> dict[str, int]:
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()}


async def modes_beside(path: Path, folder: Path) -> dict[str, int]:
    """Return the permissions of every file in a folder while a store is open and holds a body."""
    store = SQLiteStore(path)
    await store.open()
    try:
        await store.enqueue(Delivery("default", "evt_1", None, 0.0, b"{}"), Token("enqueue"))
        return modes_in(folder)
    finally:
        await store.aclose()


PRIVATE = {f"hookonce.db{end}": 0o600 for end in ("", "-wal", "-shm")}


@pytest.mark.usefixtures("umask")
async def test_only_the_owner_can_read_a_new_database_and_its_log(
    tmp_path: Path,
) -> None:
    assert await modes_beside(tmp_path / "hookonce.db", tmp_path) == PRIVATE


@pytest.mark.usefixtures("umask")
async def test_a_new_database_behind_a_symbolic_link_is_for_its_owner_alone(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o700)
    (tmp_path / "link.db").symlink_to(volume / "hookonce.db")
    assert await modes_beside(tmp_path / "link.db", volume) == PRIVATE


async def test_an_existing_database_keeps_its_permissions(
    tmp_path: Path,
) -> None:
    path = tmp_path / "hookonce.db"
    await modes_beside(path, tmp_path)
    path.chmod(0o660)
    assert set((await modes_beside(path, tmp_path)).values()) == {0o660}


async def test_a_link_planted_between_the_check_and_the_opening_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the link were followed, the folder's owner could make root write to another file."""
    path, other = tmp_path / "hookonce.db", tmp_path / "other"

    def swap(_: str) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(other)

    monkeypatch.setattr("hookonce.stores.sqlite.file.check_alone", swap)
    with pytest.raises(StoreError, match="cannot be opened"):
        await SQLiteStore(path).open()
    assert not other.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
async def test_a_link_that_another_user_has_planted_makes_no_file(tmp_path: Path) -> None:
    link, elsewhere = tmp_path / "hookonce.db", tmp_path / "elsewhere"
    link.symlink_to(elsewhere)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(StoreError, match="a link of another user"):
        await SQLiteStore(link).open()
    assert not elsewhere.exists()
    elsewhere.touch()
    store = SQLiteStore(link)  # the target exists, so the link cannot create a file
    await store.open()
    await store.aclose()
