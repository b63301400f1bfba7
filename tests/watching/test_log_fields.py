"""The log records of an event all have the same fields, so that a program finds them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import hookonce

PACKAGE = Path(hookonce.__file__).parent

# The files that handle an event.
FILES = [
    *sorted((PACKAGE / "delivery").glob("*.py")),
    *sorted((PACKAGE / "inbox").glob("*.py")),
    PACKAGE / "effects" / "once.py",
    PACKAGE / "operations" / "inspector" / "actions.py",
    PACKAGE / "receiver" / "lifetime.py",
    PACKAGE / "watching" / "log.py",
    PACKAGE / "watching" / "observers.py",
]

LEVELS = {"debug", "info", "warning", "error", "exception", "log"}

ABOUT_NO_EVENT = {
    "handlers still running after %g s: %d; their events are left to a retry",
    "the handler resists its end",
    "cannot note yet which event types are ignored: %s",
    "no delivery can be verified: %s",
    "cannot check whether the inbox has a worker: %s",
    "%s",  # the text says that the inbox has no worker
    "working on the inbox of %s as %s",
    "cannot work on the inbox, trying again: %s",
    "cannot work on the inbox, trying again: its store was cancelled",
    "cannot work on the inbox, trying again",
    "could not unregister this worker; its entry will expire: %s",
    # these lines are about several events
    "could not return %d prefetched events to the inbox of %s; their leases will run out: %s",
    "could not delete old rows of the ledger: %s",
}


def logged_without_fields() -> Iterator[str]:
    """Yield the text of each call of a logger that passes no fields."""
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LEVELS
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "_log"
                and not any(keyword.arg == "extra" for keyword in node.keywords)
            ):
                yield next(
                    one.value
                    for one in ast.walk(node)
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )


def test_every_record_about_an_event_has_its_fields() -> None:
    assert set(logged_without_fields()) == ABOUT_NO_EVENT
