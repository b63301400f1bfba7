"""What `serve` and `worker` log, and how."""

from __future__ import annotations

__all__ = ["LOG_CONFIG"]

# uvicorn's own, with the library's lines in the same form. Its access log is off: the receiver
# writes a line for each delivery that says more.
LOG_CONFIG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "hookonce": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "uvicorn": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "uvicorn.access": {"level": "WARNING"},
    },
}
