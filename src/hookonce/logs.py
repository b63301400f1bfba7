"""The loggers of the package, whose lines hold nothing that a terminal or a reader may act on.

Paths, ids, types, header values and the errors of handlers are written by anybody. A line break
among them would begin a line that is none of ours, and an escape sequence could hide one. So each
logger has a filter, which no call can go around.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable

LOGGERS = (
    "hookonce",
    "hookonce.activity",
    "hookonce.client",
    "hookonce.disabling",
    "hookonce.dispatch",
    "hookonce.effects",
    "hookonce.emulator",
    "hookonce.emulator.api",
    "hookonce.http",
    "hookonce.inspector",
    "hookonce.lease",
    "hookonce.metrics",
    "hookonce.observation",
    "hookonce.rotation",
    "hookonce.secrets",
    "hookonce.store",
    "hookonce.worker",
)
"""The name of every logger there is. A filter is not passed on to a logger's children."""


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text with an escape (``\x1b``, ``\u2028``) for each character that is not print.

    Args:
        text: written by anybody.
        keep: characters that stay all the same.

    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text
    )


def get_logger(name: str) -> logging.Logger:
    """Return the logger of one of the names in ``LOGGERS``."""
    return _loggers[name]


class _Printable(logging.Filter):
    """Lets every record pass, with its text made printable where it was not."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape what the record would show."""
        try:
            message = record.getMessage()
            error = record.exc_info[1] if record.exc_info else None
            text = None if error is None else _indented(error)
        except BaseException:  # noqa: BLE001 - errors of handlers are shown by code of theirs
            record.msg, record.args = f"{record.msg} (its parts cannot be shown)", None
            record.exc_info = None
            return True
        if not message.isprintable():
            record.msg, record.args = printable(message), None
        if text is not None:
            record.exc_text = text
        return True


def _indented(error: BaseException) -> str | None:
    """Return a traceback of which no line can pass for one of the log, or None if none can."""
    lines = "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
    if all(map(str.isprintable, lines)) and not any(map(_has_lines, _chain(error))):
        return None  # it is left to the formatter, which may be somebody's own
    return "\n".join(f"  {printable(line)}" for line in lines)


def _has_lines(error: BaseException) -> bool:
    """Return whether what an error says would begin lines of its own."""
    try:
        return "\n" in str(error) or bool(getattr(error, "__notes__", None))
    except BaseException:  # noqa: BLE001 - as above; a traceback then says that there is no text
        return False


def _chain(error: BaseException) -> Iterable[BaseException]:
    """Return an error with all that are shown with it."""
    found: dict[int, BaseException] = {}
    ahead: list[BaseException | None] = [error]
    while ahead:
        one = ahead.pop()
        if one is None or id(one) in found:
            continue
        found[id(one)] = one
        ahead += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            ahead += one.exceptions
    return found.values()


_filter = _Printable()
_loggers = {name: logging.getLogger(name) for name in LOGGERS}
for _logger in _loggers.values():
    _logger.addFilter(_filter)
