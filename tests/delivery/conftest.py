"""A fixture for every test of attempts."""

from collections.abc import Iterator

import pytest
from support.progress import PROGRESS, Progress, record_progress


@pytest.fixture(autouse=True)
def progress(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Progress]]:
    """Record the progress of attempts in a test; the docstring of `Attempt` must list it."""
    seen = record_progress(monkeypatch)
    yield seen
    assert seen <= PROGRESS
