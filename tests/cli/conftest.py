"""Fixtures for tests of commands."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    """Restore the library's logging after a command in this process."""
    log = logging.getLogger("hookonce")
    level, handlers, propagate = log.level, log.handlers[:], log.propagate
    yield
    log.level, log.handlers, log.propagate = level, handlers, propagate
    log.setLevel(level)  # this call also clears the cached levels of loggers


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Return the folder in which temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder
