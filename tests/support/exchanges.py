"""Raw HTTP exchanges, written by hand from the interface and not through our models.

A file of ``tests/interface/exchanges`` is a conversation in order: its subject, the workspace in
which it begins (``tests/interface/workspaces``), and the exchanges. Each exchange has the line of
the interface that it follows (``line``), its ``request`` (method, path or url, query, headers, and
json, text or base64), and the ``response`` (status, some of its headers, json). ``before`` is a
step before the request: ``seconds`` that pass, or a method of the service and its arguments. A
request to a ``url`` carries no key.

The workspace is at noon of 21 November 2026, UTC; the key has the role ``role``, admin by default.
``varies`` lists the places in a response whose value is the service's own. A string in such a place
represents that value in all later paths, queries, bodies and responses. The text ``…`` matches any
text for people; ``error.hint`` and ``error.details`` may be left out.

The exchanges check both sides: the emulator must give these answers, and a client that gets these
answers must send these requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

__all__ = ["NOON", "SOME_TEXT", "Exchange", "Script", "scripts", "workspace_file"]

# Use PyYAML's C parser if it is there: it is ten times as fast.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ROOT = Path(__file__).parents[1] / "interface"

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
"""The time at which every conversation begins, in Unix seconds."""

SOME_TEXT = "…"


@dataclass(frozen=True)
class Exchange:
    """A request and its answer, as text."""

    line: str
    request: dict[str, Any]
    response: dict[str, Any]
    before: dict[str, Any]

    @property
    def varies(self) -> list[str]:
        return list(self.response.get("varies", []))


@dataclass(frozen=True)
class Script:
    """The exchanges of one file."""

    name: str
    about: str
    workspace: str
    role: str
    exchanges: tuple[Exchange, ...]


def workspace_file(name: str) -> Path:
    return _ROOT / "workspaces" / f"{name}.yaml"


@cache
def scripts() -> tuple[Script, ...]:
    """Return every script."""
    return tuple(_script(path) for path in sorted((_ROOT / "exchanges").glob("*.yaml")))


def _script(path: Path) -> Script:
    # Parse only JSON's scalars: times must stay strings.
    written = yaml.load(path.read_text("utf-8"), _Loader)
    return Script(
        name=path.stem,
        about=written["about"],
        workspace=written["workspace"],
        role=written.get("role", "admin"),
        exchanges=tuple(
            Exchange(one["line"], one["request"], one["response"], one.get("before", {}))
            for one in written["exchanges"]
        ),
    )
