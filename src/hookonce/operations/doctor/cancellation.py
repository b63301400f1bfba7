"""Handlers that do not end when they are cancelled, as their source shows."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from ...delivery.handler import Handler
from .findings import Finding, warning
from .sources import nodes_within, source_of

_BROAD = {"BaseException", "CancelledError"}
_WAITING = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def cancellation_findings(handlers: Sequence[Handler]) -> list[Finding]:
    """Return the async handlers that swallow their own cancellation, each with the line."""
    return [
        warning(
            "handlers.cancellation",
            f"the handler {handler.name} may swallow its cancellation (line {line}): it outlives"
            " its time limit, and holds up a shutdown",
            "catch Exception there, or raise the CancelledError again",
        )
        for handler in handlers
        if handler.is_async and (line := _swallowing_line(handler.function)) is not None
    ]


def _swallowing_line(function: Callable[..., Any]) -> int | None:
    """Return where a cancellation is caught for good; None where the source shows no such place."""
    source = source_of(function)
    if source is None:
        return None
    tree, first = source
    nodes = list(nodes_within([tree]))
    # To wait for the end of a task that one has cancelled oneself is no such place.
    cancelled = {
        ast.dump(node.func.value)
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "cancel"
    }
    for node in nodes:
        if isinstance(node, ast.Try | ast.With) and any(
            isinstance(inner, _WAITING)
            and not (isinstance(inner, ast.Await) and ast.dump(inner.value) in cancelled)
            for inner in nodes_within(node.body)
        ):
            line = _line_that_swallows(node)
            if line is not None:
                return first + line - 1
    return None


def _line_that_swallows(node: ast.Try | ast.With) -> int | None:
    if isinstance(node, ast.With):
        calls = [item.context_expr for item in node.items]
        suppressed = [
            caught
            for call in calls
            if isinstance(call, ast.Call) and _name(call.func) == "suppress"
            for caught in call.args
        ]
        return node.lineno if any(map(_is_broad, suppressed)) else None
    clause = next((clause for clause in node.handlers if _is_broad(clause.type)), None)
    if clause is None or any(isinstance(inner, ast.Raise) for inner in nodes_within(clause.body)):
        return None
    return clause.lineno


def _is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(_is_broad(one) for one in caught.elts)
    return caught is None or _name(caught) in _BROAD


def _name(expression: ast.expr) -> str | None:
    return getattr(expression, "attr", None) or getattr(expression, "id", None)
