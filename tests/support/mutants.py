"""Under mutmut the fastest tests run first, because most mutants also fail a fast test."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

__all__ = ["pytest_collection_modifyitems"]

_STATS = Path("mutmut-stats.json")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("MUTANT_UNDER_TEST") and _STATS.exists():
        seconds = json.loads(_STATS.read_text())["duration_by_test"]
        items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
