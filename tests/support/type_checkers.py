"""What type checkers say of a snippet, by the lines they complain about."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hookonce

__all__ = ["lines_marked_wrong", "lines_mypy_refuses", "lines_pyright_refuses"]


def lines_marked_wrong(snippet: str) -> list[int]:
    """Return the lines, from 0, that say ``# WRONG``."""
    return [number for number, line in enumerate(snippet.splitlines()) if "# WRONG" in line]


def lines_mypy_refuses(snippet: str, folder: Path, config: pytest.Config) -> list[int]:
    """Return the lines, from 0, at which strict mypy finds an error."""
    (folder / "snippet.py").write_text(snippet)
    kept = getattr(config, "cache", None)  # None where pytest was told to keep none
    cache = kept.mkdir("mypy") if kept else folder / "cache"
    arguments = ["--strict", "--config-file=", f"--cache-dir={cache}", "--no-error-summary"]
    said = _run(["-m", "mypy", *arguments, "snippet.py"], folder)
    errors = re.findall(r"snippet\.py:(\d+): error: ", said)
    return sorted({int(line) - 1 for line in errors})


def lines_pyright_refuses(snippet: str, folder: Path) -> list[int]:
    """Return the lines, from 0, at which pyright finds an error by its standard rules."""
    pytest.importorskip("basedpyright", reason="basedpyright is not installed")
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
