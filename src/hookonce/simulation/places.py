"""The place in the user's own code where an error was raised."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_FOREIGN = tuple(
    {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")} | {_PACKAGE}
)


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback that belong to the user's own code."""
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
        and not any(Path(frame.filename).is_relative_to(folder) for folder in _FOREIGN)
    ]


def raised(error: BaseException) -> str:
    """Return an error's class and message, with the last line of the user's own code."""
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = own_frames(error)
    if not frames:
        return text
    last = frames[-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno}: {last.line})"
