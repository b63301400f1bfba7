"""Async handlers that block the event loop, as their source shows."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from ...delivery.handler import Handler
from .findings import Finding, warning
from .sources import nodes_within, source_of

# What waits without `await`, by package; of most packages everything that can be called as such.
_BLOCKING: dict[str, frozenset[str] | None] = {
    "time": frozenset({"sleep"}),
    "os": frozenset({"system", "popen", "wait", "waitpid"}),
    "subprocess": frozenset({"run", "call", "check_call", "check_output"}),
    "urllib": frozenset({"urlopen", "urlretrieve"}),
    "socket": frozenset({"create_connection", "getaddrinfo", "gethostbyname"}),
    "sqlite3": frozenset({"connect"}),
    "smtplib": frozenset({"SMTP", "SMTP_SSL"}),
    "psycopg": frozenset({"connect"}),
    "psycopg2": frozenset({"connect"}),
    "httpx": frozenset({"get", "post", "put", "patch", "delete", "head", "request", "Client"}),
    "httpx2": frozenset({"get", "post", "put", "patch", "delete", "head", "request", "Client"}),
    "requests": None,
}
# Where the interpreter says a function is from that is reached by another module's name.
_ALIASES = {"posix": "os", "nt": "os", "_socket": "socket", "_sqlite3": "sqlite3"}


def blocking_findings(handlers: Sequence[Handler]) -> list[Finding]:
    """Return the async handlers that call what waits without ``await``, each with the line."""
    return [
        warning(
            "handlers.blocking",
            f"the async handler {handler.name} calls {found[0]} (line {found[1]}), which blocks the"
            " event loop: every other delivery waits meanwhile, and leases run out",
            "make it a plain function, which runs in a thread, or await what it waits for",
        )
        for handler in handlers
        if handler.is_async and (found := _blocking_call(handler.function)) is not None
    ]


def _blocking_call(function: Callable[..., Any]) -> tuple[str, int] | None:
    """Return what is called that blocks, and the line; None where the source shows nothing."""
    source = source_of(function)
    if source is None:
        return None
    tree, first = source
    names = _names_in(inspect.unwrap(function))
    for node in nodes_within([tree]):
        if isinstance(node, ast.Call):
            called = _resolved(node.func, names)
            module = str(getattr(called, "__module__", None) or "").partition(".")[0]
            module = _ALIASES.get(module, module)
            name = str(getattr(called, "__qualname__", ""))
            blocking = _BLOCKING.get(module, frozenset())
            if blocking is None or name in blocking:
                return f"{module}.{name}", first + node.lineno - 1
    return None


def _names_in(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what the names of a function stand for that are not its own."""
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, FunctionType):
        plain = type(function).__dict__.get("__call__")
    if not isinstance(plain, FunctionType):
        return {}
    found = inspect.getclosurevars(plain)
    return {**found.globals, **found.nonlocals}


def _resolved(expression: ast.expr, names: dict[str, Any]) -> Any:
    """Return what a name with attributes stands for; None where that is not known."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute):
        return getattr(_resolved(expression.value, names), expression.attr, None)
    return None
