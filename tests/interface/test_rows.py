"""A test or an exchange names each row of six parts of the interface.

``rows.yaml`` has a copy of the document's rows. These tests count the rows of each group, so that
the copy lacks none. A test names a row in its docstring, and an exchange names a row in its line.
The name must be complete, and only punctuation may stand beside it.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from support.exchanges import scripts

HERE = Path(__file__).parent
TESTS = HERE.parent

COUNTS = {
    "Endpoints": {
        "introduction": 3,
        "Account": 2,
        "Channels": 2,
        "Posts": 10,
        "Media": 6,
        "Comments": 3,
        "Webhooks": 5,
        "Pagination": 4,
    },
    "States and transitions": {"states": 5, "transitions": 19},
    "Errors": {"sentences": 2, "fields": 5, "statuses": 8, "codes": 11},
    "Limits": {"limits": 21, "rules": 4},
    "Authentication": {"rules": 10},
    "Versioning": {"rules": 7},
}
"""What the document has in each part: rows of its tables, numbered rules, and sentences beside."""


@cache
def parts() -> dict[str, dict[str, list[str | dict[str, list[str]]]]]:
    written: Any = yaml.safe_load((HERE / "rows.yaml").read_text("utf-8"))
    return dict(written)


def names() -> Iterator[str]:
    """Yield the words that name each row."""
    for groups in parts().values():
        for rows in groups.values():
            for row in rows:
                if isinstance(row, str):
                    yield row
                else:
                    [named] = row.values()
                    yield from named


@cache
def checks() -> tuple[str, ...]:
    """Return the docstring of every test, and the line of every exchange."""
    docs = [
        ast.get_docstring(node) or ""
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]
    lines = [exchange.line for script in scripts() for exchange in script.exchanges]
    return tuple(re.sub(r"[`\s]+", " ", text) for text in [*docs, *lines] if text)


def is_named(name: str) -> bool:
    """Return whether a test names exactly this row, not only a longer text."""
    whole = re.compile(rf'(?:^|["(;:,.|])\s*{re.escape(name)}\s*(?:$|["(;:),.|])')
    return any(name in text and whole.search(text) for text in checks())


def test_the_copy_of_the_interface_has_every_row() -> None:
    assert {
        part: {group: len(rows) for group, rows in groups.items()}
        for part, groups in parts().items()
    } == COUNTS


def test_no_name_fits_two_rows() -> None:
    found = list(names())
    assert sorted(found) == sorted(set(found))


def test_every_row_is_named_by_a_test() -> None:
    assert [name for name in names() if not is_named(name)] == []
    partial = ["Authentication", "Authentication 11", "yet published | delete"]
    assert [name for name in partial if is_named(name)] == [], "only a whole name counts"
