"""The order of tests under mutmut."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.mutants import pytest_collection_modifyitems


@pytest.mark.parametrize(
    ("mutant", "order"),
    [("hookonce.delivery.attempt.x_go__mutmut_1", ["new", "b", "a"]), ("", ["a", "b", "new"])],
)
def test_the_quickest_come_first_where_a_mutant_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str, order: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUTANT_UNDER_TEST", mutant)
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in ("a", "b", "new")]
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["a", "b", "new"]
    stats = {"duration_by_test": {"a": 0.2, "b": 0.1}}
    (tmp_path / "mutmut-stats.json").write_text(json.dumps(stats))
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == order
