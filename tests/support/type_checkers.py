"""The messages of type checkers about a snippet, by line."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hookonce

from .needs import missing

__all__ = [
    "lines_marked_wrong",
    "lines_mypy_refuses",
    "lines_pyright_refuses",
    "mypy_cache",
    "need_pyright",
]


def lines_marked_wrong(snippet: str) -> list[int]:
    """Return the lines, from 0, with the comment ``# WRONG``."""
    return [number for number, line in enumerate(snippet.splitlines()) if "# WRONG" in line]


def mypy_cache(config: pytest.Config, folder: Path) -> Path:
    """Return a folder for mypy's cache: in pytest's cache, or in ``folder`` if there is none."""
    kept = getattr(config, "cache", None)  # None if pytest runs without its cache
    if kept is None or not os.access(config.rootpath, os.W_OK):
        return folder / "cache"
    return Path(kept.mkdir("mypy"))


def lines_mypy_refuses(snippet: str, folder: Path, config: pytest.Config) -> list[int]:
    """Return the lines, from 0, at which strict mypy finds an error."""
    (folder / "snippet.py").write_text(snippet)
    cache = mypy_cache(config, folder)
    arguments = ["--strict", "--config-file=", f"--cache-dir={cache}", "--no-error-summary"]
    said = _run(["-m", "mypy", *arguments, "snippet.py"], folder)
    errors = re.findall(r"snippet\.py:(\d+): error: ", said)
    return sorted({int(line) - 1 for line in errors})


def need_pyright() -> None:
    """Skip the test if pyright is not installed: it is too large to require it of everybody."""
    if find_spec("basedpyright") is None:
        missing("basedpyright is not installed", "pip install basedpyright")


def lines_pyright_refuses(snippet: str, folder: Path) -> list[int]:
    """Return the lines, from 0, at which pyright's standard rules find an error."""
    need_pyright()
    (folder / "snippet.py").write_text(snippet)
    source = str(Path(hookonce.__file__ or "").parents[1])
    settings = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [source]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    said = _run(["-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "."], folder)
    errors = [one for one in json.loads(said)["generalDiagnostics"] if one["severity"] == "error"]
    return sorted({one["range"]["start"]["line"] for one in errors})


def _run(arguments: list[str], folder: Path) -> str:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    ).stdout
