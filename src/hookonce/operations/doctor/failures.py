"""What may be said of an exception that an application raised."""

from __future__ import annotations

import traceback
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


def told(error: BaseException) -> str:
    """Return what failed and where, without what it says: that may hold a password or a secret.

    Only the messages of this package are known to hold none.
    """
    if isinstance(error, SyntaxError):
        return f"SyntaxError in {Path(error.filename or '?').name}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    file = Path(frames[-1].filename)
    if file.is_relative_to(_PACKAGE):
        return f"{type(error).__name__}: {error}"
    return f"{type(error).__name__} in {file.name}, line {frames[-1].lineno}"
