"""Handlers within a ledger: whether it can record, and what would hold its transactions long."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ...delivery.handler import Handler
from ...delivery.ledgers import OWN_FILE, check_ledger, ledgers_of, shared_file_fault
from ...errors import LedgerError
from .findings import Finding, fault, fine, warning

_SLOW = {
    *("aiohttp", "boto3", "botocore", "http", "httpx", "httpx2", "openai", "requests", "slack_sdk"),
    *("smtplib", "stripe", "subprocess", "urllib", "urllib3"),
}
"""Libraries whose calls leave the machine, or start programs."""

_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


async def ledger_findings(
    handlers: Sequence[Handler], store_retention: float | None, store_file: Path | None = None
) -> list[Finding]:
    """Try every ledger, in a transaction that is rolled back.

    Args:
        handlers: every handler of the receiver.
        store_retention: how long its store remembers a handled event, in seconds, if it says so.
        store_file: where its store is, if that is a file.

    """
    findings = []
    for ledger in ledgers_of(handlers):
        if (shared := shared_file_fault(ledger, store_file)) is not None:
            findings.append(fault("ledger", shared, OWN_FILE))
            continue
        name = type(ledger).__name__
        count = sum(handler.ledger is ledger for handler in handlers)
        try:
            await check_ledger(ledger, store_retention)
        except LedgerError as error:
            fix = "mend it; tables come by hookonce ledger sql, a migration, or create_table()"
            findings.append(fault("ledger", str(error), fix))
        else:
            findings.append(fine("ledger", f"{name} records the effects of handlers: {count}"))
    return findings


def transaction_findings(handlers: Sequence[Handler]) -> list[Finding]:
    """Return the handlers within a ledger whose source shows that they call another service.

    A linter does not find them: a call that is awaited is no fault outside of a transaction.
    """
    return [
        warning(
            "handlers.transaction",
            f"the handler {handler.name} calls {called} within its transaction (line {line}), which"
            " holds its locks and its connection until that answers",
            "call it in a handler of its own, outside of `within`",
        )
        for handler in handlers
        if handler.ledger is not None
        for called, line in _slow_calls(handler.function)
    ]


def _slow_calls(function: Callable[..., Any]) -> Iterator[tuple[str, int]]:
    """Yield the first call that leaves the machine or sleeps, and its line."""
    function = inspect.unwrap(function)
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):  # it has no source of its own
        return
    known = getattr(function, "__globals__", {})
    for node in _nodes_run(tree.body):
        if isinstance(node, ast.Call) and _is_slow(node.func, known):
            yield ast.unparse(node.func), first + node.lineno - 1
            return


def _nodes_run(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of these statements, without functions and classes defined in them."""
    for statement in statements:
        yield statement
        for child in ast.iter_child_nodes(statement):
            if not isinstance(child, _INNER):
                yield from _nodes_run([child])


def _is_slow(called: ast.expr, known: dict[str, Any]) -> bool:
    is_sleep = isinstance(called, ast.Name | ast.Attribute) and "sleep" in {
        getattr(called, "attr", None),
        getattr(called, "id", None),
    }
    while isinstance(called, ast.Attribute | ast.Call):
        called = called.value if isinstance(called, ast.Attribute) else called.func
    value = known.get(called.id) if isinstance(called, ast.Name) else None
    if value is None:
        return False
    home = value.__name__ if isinstance(value, ModuleType) else _home(value)
    root = home.partition(".")[0]
    return root in _SLOW or (is_sleep and root in {"asyncio", "time", "anyio"})


def _home(value: object) -> str:
    """Return the module that a function, or the class of an object, comes from."""
    home = getattr(value, "__module__", None) or type(value).__module__
    return home if isinstance(home, str) else ""
