"""The log of ``serve`` and ``worker``: lines of text, or of JSON."""

from __future__ import annotations

import json
import logging
import logging.config
from collections.abc import Callable
from typing import Any

import click

from hookonce.clock import utc
from hookonce.logs import printable

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
)


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message, and its ``extra`` fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON in ASCII."""
        line: dict[str, Any] = {
            "time": utc(record.created).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        line |= {name: one for name, one in vars(record).items() if name not in _STANDARD}
        line.pop("color_message", None)  # uvicorn's copy of the message with colours
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_settings(level: str, form: str) -> dict[str, Any]:
    """Return settings for ``logging.config``, with one format for uvicorn and hookonce.

    The access log is off: the receiver logs more about each delivery.
    """
    own = {"handlers": ["stderr"], "level": level.upper(), "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "text": {"format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s"},
            "json": {"()": JsonLines},
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": form}},
        "loggers": {"hookonce": own, "uvicorn": own, "uvicorn.access": {"level": "WARNING"}},
    }


def start_logging(level: str, form: str) -> None:
    logging.config.dictConfig(log_settings(level, form))
