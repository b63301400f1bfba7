"""Raw HTTP exchanges, written by hand from the interface and not through our models.

A file of ``tests/interface/exchanges`` is a conversation in order: what it is about, the workspace
it begins in (``tests/interface/workspaces``), and the exchanges. Each names the line of the
interface it is written from (``line``), its ``request`` (method, path or url, query, headers, and
json, text or base64), and the ``response`` (status, some of its headers, json). ``before`` is what
happens before: ``seconds`` that pass, or a method of the service and its arguments. A request to a
``url`` carries no key.

The workspace is at noon of 21 November 2026, UTC; the key has the role ``role``, admin by default.
``varies`` lists the places in a response whose value is the service's own. A string there stands
for that value in all that follows: in later paths, queries, bodies and responses. A text of ``…``
is some text for people; ``error.hint`` and ``error.details`` may be left out.

Two sides are checked by them: the emulator has to answer as they say, and a client has to ask as
they say when it is answered so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

__all__ = ["NOON", "SOME_TEXT", "Exchange", "Script", "scripts", "workspace_file"]

# Written in C, where there is one: ten times as fast.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ROOT = Path(__file__).parents[1] / "interface"

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
"""When every conversation begins, in Unix seconds."""

SOME_TEXT = "…"


@dataclass(frozen=True)
class Exchange:
    """One request, and the answer to it, as they are written."""

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
    """Return every conversation there is."""
    return tuple(_script(path) for path in sorted((_ROOT / "exchanges").glob("*.yaml")))


def _script(path: Path) -> Script:
    # Every scalar of JSON is written as one: times are quoted, so that they stay strings.
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
