"""What `serve` and `worker` log, and how: text by default, on a terminal and elsewhere."""

from __future__ import annotations

import json
import logging
import logging.config
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from hookonce.logs import printable

from .output import together

_LEVELS = ("debug", "info", "warning", "error")

# What every record has; what a line adds to that is its `extra`.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

log_options: Callable[[Any], Any] = together(
    click.option(
        "--log-level",
        default="info",
        show_default=True,
        type=click.Choice(_LEVELS, case_sensitive=False),
        help="Log this and what is worse.",
    ),
    click.option(
        "--log-format",
        default="text",
        show_default=True,
        type=click.Choice(["text", "json"]),
        help="A line of text, or a JSON object with its parts, for each record.",
    ),
)


class JsonLines(logging.Formatter):
    """A JSON object for each record: time, level, logger, message, and what is in ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line of ASCII."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        line |= {name: one for name, one in vars(record).items() if name not in _USUAL}
        line.pop("color_message", None)  # uvicorn's, the same with escapes
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_settings(level: str = "info", form: str = "text") -> dict[str, Any]:
    """Return the settings for ``logging.config``: uvicorn's lines and the library's in one form.

    The access log is off: the receiver writes a line for each delivery that says more.
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
    """Log so in this process."""
    logging.config.dictConfig(log_settings(level, form))
