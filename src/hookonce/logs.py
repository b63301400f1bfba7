"""The loggers of the package, with a filter that escapes control characters.

Log lines contain text from outside: paths, ids, types, header values and errors of handlers. In
this text a line break could forge a log line, and an escape sequence could hide a log line on a
terminal. A filter on each logger escapes both.
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
    "hookonce.requests",
    "hookonce.rotation",
    "hookonce.secrets",
    "hookonce.store",
    "hookonce.worker",
)
"""The name of every logger. Each needs the filter, because child loggers do not inherit it."""


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text with an escape (``\x1b``, ``\u2028``) for each unprintable character.

    Args:
        keep: unprintable characters that are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text
    )


def event_fields(
    endpoint: str,
    event_id: str | None,
    event_type: str | None,
    *,
    attempt: int | None = None,
    handler: str | None = None,
) -> dict[str, object]:
    """Return the fields of an event for the ``extra`` of a log record; all records use these names.

    A value that is not known is None. Only a record about a handler has the field ``handler``.

    Args:
        endpoint: the name of the receiving endpoint.
        event_id: the webhook-id.
        event_type: the type in the signed body.
        attempt: the number of the attempt.
        handler: the name of the handler that the record is about.
    """
    fields: dict[str, object] = {
        "endpoint": endpoint,
        "event_id": event_id and printable(event_id),
        "type": event_type and printable(event_type),
        "attempt": attempt,
    }
    if handler is not None:
        fields["handler"] = printable(handler)
    return fields


def get_logger(name: str) -> logging.Logger:
    """Return a logger by its name in ``LOGGERS``."""
    return _loggers[name]


class _Printable(logging.Filter):
    """Escapes unprintable text in every record; drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the message and the traceback of a record."""
        try:
            message = record.getMessage()
            error = record.exc_info[1] if record.exc_info else None
            text = None if error is None else _indented(error)
        except BaseException:  # noqa: BLE001 - __str__ of a user's error may raise anything
            record.msg, record.args = f"{record.msg} (the details cannot be shown)", None
            record.exc_info = None
            return True
        if not message.isprintable():
            record.msg, record.args = printable(message), None
        if text is not None:
            record.exc_text = text
        return True


def _indented(error: BaseException) -> str | None:
    """Return a traceback with every line indented and escaped, or None if it needs no change.

    An indented line cannot look like a log line.
    """
    lines = "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
    if all(map(str.isprintable, lines)) and not any(map(_has_lines, _chain(error))):
        return None  # for None, the application's own formatter formats the traceback
    return "\n".join(f"  {printable(line)}" for line in lines)


def _has_lines(error: BaseException) -> bool:
    """Return whether the text of an error has more than one line."""
    try:
        return "\n" in str(error) or bool(getattr(error, "__notes__", None))
    except BaseException:  # noqa: BLE001 - __str__ may raise anything; the traceback then shows no text
        return False


def _chain(error: BaseException) -> Iterable[BaseException]:
    """Return an error with its causes, contexts and the members of its groups."""
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
