"""Requirements of tests. If a requirement is missing, the test is skipped; in CI it fails."""

import os
import shutil
from typing import NoReturn

import pytest

__all__ = ["missing", "needed"]


def missing(what: str, remedy: str) -> NoReturn:
    """Skip the test, or fail in CI, where nobody would notice the skip.

    Args:
        what: the missing requirement.
        remedy: the command or the setting that would enable the test.

    """
    reason = f"{what}; to enable: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def needed(*programs: str, package: str) -> str:
    """Return the path of the first of these programs that is installed, or skip the test."""
    for program in programs:
        if path := shutil.which(program):
            return path
    missing(f"{programs[0]} is not installed", f"apt-get install {package}")
