"""The project's page on PyPI has no relative link."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_TARGET = re.compile(r"\]\(([^)\s]+)\)")


def _metadata(**config: str) -> dict[str, Any]:
    hook = runpy.run_path(str(_ROOT / ".ci" / "metadata.py"))["ProjectMetadata"]
    metadata: dict[str, Any] = {"name": "hookonce", "version": "0.1.0"}
    hook(str(_ROOT), config).update(metadata)
    return metadata


def test_links_of_the_readme_lead_to_the_tag_of_the_version() -> None:
    metadata = _metadata(repository="https://git.example/hookonce/", author="The Authors")
    text = metadata["readme"]["text"]
    readme = (_ROOT / "README.md").read_text()
    targets = _TARGET.findall(text)
    assert len(targets) == len(_TARGET.findall(readme)) > 50
    assert all(target.startswith("https://") for target in targets)
    assert "https://git.example/hookonce/blob/v0.1.0/CHANGELOG.md" in targets
    assert "![Deliveries in the inspector](https://git.example/hookonce/raw/v0.1.0/" in text
    assert metadata["urls"]["Source"] == "https://git.example/hookonce"
    assert metadata["authors"] == [{"name": "The Authors"}]


@pytest.mark.parametrize("config", [{}, {"repository": "", "author": ""}])
def test_without_a_repository_url_links_become_plain_text(config: dict[str, str]) -> None:
    metadata = _metadata(**config)
    text = metadata["readme"]["text"]
    assert _TARGET.findall(text) == ["https://www.standardwebhooks.com"]
    assert "Continue with your first receiver, in five minutes." in text
    assert "inspector.png" not in text
    assert "urls" not in metadata
    assert "authors" not in metadata
