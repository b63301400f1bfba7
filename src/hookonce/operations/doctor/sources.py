"""What the source of a handler shows."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def source_of(function: Callable[..., Any]) -> tuple[ast.stmt, int] | None:
    """Return a function's own source as a tree, and its first line; None where there is none."""
    function = inspect.unwrap(function)
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        lines, first = inspect.getsourcelines(function)
        [tree] = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return tree, first


def nodes_within(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield what runs as a part of these statements: not what is only defined there."""
    for statement in statements:
        yield statement
        for child in ast.iter_child_nodes(statement):
            if not isinstance(child, _INNER):
                yield from nodes_within([child])
