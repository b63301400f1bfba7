"""The log of ``serve`` and ``worker``: lines of text, or of JSON."""

from __future__ import annotations

import json
import logging
import logging.config
import time
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import click

from hookonce.clock import utc
from hookonce.logs import printable
from hookonce.watching.process import process_name

from .output import together

_LEVELS = ("debug", "info", "warning", "error")

# The attributes that every log record has; other attributes come from `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

log_options: Callable[[Any], Any] = together(
    click.option(
        "--log-level",
        default="info",
        show_default=True,
        type=click.Choice(_LEVELS, case_sensitive=False),
        help="The lowest level that is logged.",
    ),
    click.option(
        "--log-format",
        default="text",
        show_default=True,
        type=click.Choice(["text", "json"]),
        help="Write each record as a line of text, or as a JSON object.",
    ),
    click.option(
        "--log-tracebacks",
        is_flag=True,
        help="Log every traceback; by default one per hour of each kind of error.",
    ),
)


_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_SILENT_SECONDS = 3600.0
_MOST_KINDS = 1000


class Tracebacks:
    """Decides which tracebacks are printed: the first of each kind of error in an hour.

    Errors are of one kind if they have the same class and were raised in the same line. A database
    that is away for an hour would otherwise print the same hundred lines at every retry.

    Args:
        every: whether all tracebacks are printed.
    """

    def __init__(self, *, every: bool) -> None:
        self._every = every
        self._printed_at: dict[tuple[object, ...], float] = {}

    def is_wanted(self, error: BaseException | None) -> bool:
        """Return whether to print the traceback of an error now."""
        if self._every or error is None:
            return True
        kind, now = tuple(_kinds(error)), time.monotonic()
        at = self._printed_at.get(kind)
        if at is not None and now < at + _SILENT_SECONDS:
            return False
        if len(self._printed_at) >= _MOST_KINDS:
            self._printed_at.clear()
        self._printed_at[kind] = now
        return True


def _kinds(error: BaseException) -> Iterator[tuple[object, ...]]:
    """Yield the class and the line of an error, or of each error in a group."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _kinds(one)
        return
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    yield (type(error), *((step.tb_frame.f_code, step.tb_lineno) if step else ()))


_OMITTED = " (this traceback was logged within the last hour; --log-tracebacks logs all)"


class TextLines(logging.Formatter):
    """Formats a record as a line of text, with a traceback only if ``tracebacks`` wants it.

    Args:
        form: the format of the line.
        tracebacks: decides which tracebacks are printed.
    """

    def __init__(self, form: str, tracebacks: Tracebacks) -> None:
        super().__init__(form)
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by its traceback if there is one to print."""
        if record.exc_info is None or self._tracebacks.is_wanted(record.exc_info[1]):
            return super().format(record)
        without = copy(record)  # change a copy, because other log handlers get the same record
        without.exc_info = without.exc_text = None
        return super().format(without) + _OMITTED


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, process, message, and ``extra``.

    Args:
        tracebacks: decides which tracebacks are printed.
    """

    def __init__(self, tracebacks: Tracebacks) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON in ASCII."""
        line: dict[str, Any] = {
            "time": utc(record.created).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": process_name(),
            "message": printable(record.getMessage()),
        }
        line |= {name: one for name, one in vars(record).items() if name not in _STANDARD}
        line.pop("color_message", None)  # uvicorn adds a copy of the message with colours
        if record.exc_info and self._tracebacks.is_wanted(record.exc_info[1]):
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_ABOUT_START = ("Started server process", "Waiting for application startup", "Application startup")


class _OwnStart(logging.Filter):
    """Drops uvicorn's lines about its start, because the command logs lines of its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to keep a record."""
        return not record.msg.startswith(_ABOUT_START)


def log_settings(level: str, form: str, *, every_traceback: bool) -> dict[str, Any]:
    """Return settings for ``logging.config``, with one format for uvicorn and hookonce.

    The access log is off: the receiver logs more about each delivery.
    """
    tracebacks = Tracebacks(every=every_traceback)
    own = {"handlers": ["stderr"], "level": level.upper(), "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "text": {"()": TextLines, "form": _TEXT, "tracebacks": tracebacks},
            "json": {"()": JsonLines, "tracebacks": tracebacks},
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": form}},
        "filters": {"own_start": {"()": _OwnStart}},
        "loggers": {
            "hookonce": own,
            "uvicorn": own,
            "uvicorn.error": {"filters": ["own_start"]},
            "uvicorn.access": {"level": "WARNING"},
        },
    }


def start_logging(level: str, form: str, *, every_traceback: bool) -> None:
    logging.config.dictConfig(log_settings(level, form, every_traceback=every_traceback))
