"""What tests need of a machine: without it they are skipped and say why; in CI they fail."""

import os
import shutil
from typing import NoReturn

import pytest

__all__ = ["missing", "needed"]


def missing(what: str, remedy: str) -> NoReturn:
    """Skip where something cannot be had, but not in CI, where nobody would notice.

    Args:
        what: what is not there.
        remedy: the command or the setting that would enable the test.

    """
    reason = f"{what}; to enable: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def needed(*programs: str, package: str) -> str:
    """Return the path of the first of these programs that is installed; a Debian package has it."""
    for program in programs:
        if path := shutil.which(program):
            return path
    missing(f"{programs[0]} is not installed", f"apt-get install {package}")
