"""Pyright knows the types of the package, and its strict rules pass on the examples and the guide.

The checker is basedpyright, which is pyright in a wheel, with pyright's own strict rules.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.type_checkers import need_pyright

from documents.reading import GUIDE, ROOT, blocks

# Functions of Django and pytest that have no annotations.
_UNTYPED = ('Type of "configure"', 'Type of "syspath_prepend"')


def found_in(folder: Path) -> list[dict[str, Any]]:
    """Return what pyright's strict rules find in the Python files of a folder."""
    need_pyright()
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT / "src"), "."],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "."]
    said = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False
    )
    found: list[dict[str, Any]] = json.loads(said.stdout)["generalDiagnostics"]
    return found


@pytest.mark.full("9 s")
def test_the_examples_check_under_pyright(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    found = found_in(tmp_path)
    assert [one for one in found if not one["message"].startswith(_UNTYPED)] == []


@pytest.mark.full("9 s")
def test_no_block_of_a_page_uses_a_deprecated_name(tmp_path: Path) -> None:
    """Blocks use names of the reader's own code, so other rules would find unknown names."""
    for page in (*GUIDE.glob("*.md"), ROOT / "README.md", ROOT / "examples" / "README.md"):
        code = [block.text for block in blocks(page) if block.language == "python"]
        name = f"{page.parent.name}_{page.stem}.py".replace("-", "_")
        (tmp_path / name).write_text("\n".join(code))
    found = found_in(tmp_path)
    assert [one for one in found if one.get("rule") == "reportDeprecated"] == []


@pytest.mark.full("25 s")
def test_pyright_knows_the_type_of_nearly_every_public_name() -> None:
    need_pyright()
    command = ["-m", "basedpyright", "--verifytypes", "hookonce", "--ignoreexternal"]
    said = subprocess.run(
        [sys.executable, *command, "--outputjson"],
        # For this check, pyright finds packages only by the `python` on the PATH.
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(said.stdout)["typeCompleteness"]
    assert found["completenessScore"] >= 0.99, [
        symbol["name"] for symbol in found["symbols"] if not symbol["isTypeKnown"]
    ]
