"""Fill in the parts of the package's metadata that depend on where the project lives.

PyPI shows the README without the repository around it. So this build hook makes each relative link
of the README an address in the repository, at the tag of the version. As long as pyproject.toml
names no repository, the page keeps the text of those links without an address.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# [text](target) or ![text](target), where the target is neither an address nor a heading.
_RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


class ProjectMetadata(MetadataHookInterface):
    """Sets the readme, the project's URLs and its authors."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what ``[tool.hatch.metadata.hooks.custom]`` of pyproject.toml says."""
        repository = self.config.get("repository", "").rstrip("/")
        author = self.config.get("author", "")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = page(readme, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if repository:
            metadata["urls"] = {
                "Source": repository,
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            }
        if author:
            metadata["authors"] = [{"name": author}]


def page(readme: str, repository: str, tag: str) -> str:
    """Return the README as PyPI shall show it: no link is relative."""

    def absolute(link: re.Match[str]) -> str:
        image, text, path = link.groups()
        if not repository:
            return "" if image else text
        kind = "raw" if image else "blob"
        return f"{image}[{text}]({repository}/{kind}/{tag}/{path})"

    return _RELATIVE_LINK.sub(absolute, readme)
