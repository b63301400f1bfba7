"""What tests of commands share."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    """Give the library's log back after a command in this process."""
    log = logging.getLogger("hookonce")
    level, handlers, propagate = log.level, log.handlers[:], log.propagate
    yield
    log.level, log.handlers, log.propagate = level, handlers, propagate
    log.setLevel(level)  # also forgets which levels loggers had found enabled


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Return the folder that temporary folders are made in."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder
