"""Two versions of hookonce, each installed from its wheel into an environment of its own.

The old version is a wheel or a commit that ``HOOKONCE_OLD_RELEASE`` names, or else this checkout.
The later version is this checkout. While both know the same formats of stores, the later version's
wheel gets one format more, whose records are the same.
"""

from __future__ import annotations

import atexit
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["OLD_RELEASE", "Release", "two_releases"]

OLD_RELEASE = "HOOKONCE_OLD_RELEASE"
_ROOT = Path(__file__).parents[2]
_SOURCES = ("src", ".ci", "pyproject.toml", "README.md", "LICENSE")
_FORMATS = re.compile(r"^(FORMATS: tuple\[int, \.\.\.\] = \()(.*?),?\)$", re.MULTILINE)
_FILES_WITH_FORMATS = ("sqlite/schema.py", "redis/codec.py", "postgres/schema.py")
_READ_FORMATS = "from hookonce.stores.sqlite import SQLiteStore; print(*SQLiteStore.formats)"


@dataclass(frozen=True)
class Release:
    """An installed version: its interpreter, and the formats of stores that it knows."""

    python: str
    formats: tuple[int, ...]


@cache
def two_releases() -> tuple[Release, Release]:
    """Build and install the old and the later version; delete them when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="hookonce-releases-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    given = os.environ.get(OLD_RELEASE, "")
    if given.endswith(".whl"):
        wheel = Path(given).absolute()
    else:
        wheel = _built(_sources(folder / "old source", given))
    old = _installed(wheel, folder / "old")
    source = _sources(folder / "later source")
    if _formats_in(source) == old.formats:
        _add_format(source, old.formats[-1] + 1)
    return old, _installed(_built(source), folder / "later")


def _sources(folder: Path, commit: str = "") -> Path:
    """Copy the sources of a wheel, from a commit or from this checkout."""
    folder.mkdir()
    if commit:
        archive = _run("git", "-C", str(_ROOT), "archive", commit, *_SOURCES)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        return folder
    for name in _SOURCES:
        if (_ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(_ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(_ROOT / name, folder / name)
    return folder


def _formats_in(source: Path) -> tuple[int, ...]:
    text = (source / "src/hookonce/stores" / _FILES_WITH_FORMATS[0]).read_text("utf-8")
    (found,) = _FORMATS.finditer(text)
    return tuple(int(number) for number in found[2].split(","))


def _add_format(source: Path, number: int) -> None:
    for name in _FILES_WITH_FORMATS:
        path = source / "src/hookonce/stores" / name
        text, count = _FORMATS.subn(rf"\g<1>\g<2>, {number})", path.read_text("utf-8"))
        assert count == 1, f"{name} does not say which formats it knows"
        path.write_text(text, "utf-8")


def _built(source: Path) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", cwd=source)
    (wheel,) = (source / "dist").glob("*.whl")
    return wheel


def _installed(wheel: Path, folder: Path) -> Release:
    """Install a wheel into a new environment, which uses this environment's dependencies."""
    venv.create(folder, symlinks=True)
    python = str(folder / "bin" / "python")
    (packages,) = folder.glob("lib/python*/site-packages")
    # Python ignores *.pth files in these folders, so it cannot import this checkout by accident.
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(others), "utf-8")
    pip = (sys.executable, "-m", "pip", "--python", python)
    _run(*pip, "install", "-q", "--no-deps", "--no-index", str(wheel))
    place = _run(python, "-c", "import hookonce; print(hookonce.__file__)").decode()
    assert place.startswith(str(packages)), f"imported {place}"
    formats = _run(python, "-c", _READ_FORMATS).split()
    return Release(python, tuple(map(int, formats)))


def _run(*command: str, cwd: Path | None = None) -> bytes:
    ended = subprocess.run(command, cwd=cwd, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout
