"""What a shell is offered for MODULE:NAME, and for the URL of a store.

Modules are read and not imported: to press a key must not run anybody's code. Nothing is said of
what cannot be read, for it would be taken for an offer.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click
from click.shell_completion import CompletionItem

MOST_OFFERED = 50
"""More is no help to a person."""

_MOST_FILES = 500
_MOST_FILE_BYTES = 256 * 1024
_DEPTH = 3
_NOT_MODULES = {"build", "dist", "node_modules", "site", "test", "tests", "venv"}

# What makes a receiver, or an application that one can be mounted in.
_MAKERS = {"Receiver", "FastAPI", "Flask", "Litestar", "Starlette"}


def complete_targets(
    context: click.Context, _: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Offer the receivers and applications of the modules in this folder."""
    found = targets_here(typed, factories=bool(context.params.get("factory")))
    return [CompletionItem(name) for name in islice(found, MOST_OFFERED)]


def targets_here(typed: str, *, factories: bool = False) -> Iterator[str]:
    """Yield what MODULE:NAME can be here and begins so.

    Args:
        typed: its beginning.
        factories: yield functions that may make an application, in place of what is made.

    """
    for name, file in islice(_modules(Path(), ""), _MOST_FILES):
        if not (name.startswith(typed) or typed.startswith(f"{name}:")):
            continue
        tree = _read(file)
        attributes = _functions(tree) if factories else _makings(tree)
        yield from (full for one in attributes if (full := f"{name}:{one}").startswith(typed))


def stores_here(typed: str) -> Iterator[str]:
    """Yield the URLs of the SQLite files in this folder that begin so."""
    urls = (f"sqlite:///{file.name}" for file in sorted(Path().glob("*.db")))
    return (url for url in urls if url.startswith(typed))


def _modules(folder: Path, prefix: str, depth: int = _DEPTH) -> Iterator[tuple[str, Path]]:
    """Yield the modules below a folder by their dotted names."""
    try:
        entries = sorted(os.scandir(folder), key=lambda one: one.name)
    except OSError:
        return
    for entry in entries:
        stem, suffix = os.path.splitext(entry.name)
        if not stem.isidentifier() or stem in _NOT_MODULES:
            continue
        if suffix == ".py":
            name = prefix.removesuffix(".") if stem == "__init__" else f"{prefix}{stem}"
            if name:
                yield name, Path(entry.path)
        elif depth and not suffix and entry.is_dir():
            yield from _modules(Path(entry.path), f"{prefix}{stem}.", depth - 1)


def _read(file: Path) -> ast.Module:
    """Return what a module says; nothing where it cannot be read."""
    try:
        if file.stat().st_size <= _MOST_FILE_BYTES:
            return ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        pass
    return ast.Module([], [])


def _makings(tree: ast.Module) -> Iterator[str]:
    """Yield the names a module gives to receivers, to several of them, and to applications."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if _makes(value):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _makes(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        made = value.func
        name = made.id if isinstance(made, ast.Name) else getattr(made, "attr", "")
        return name in _MAKERS or name.startswith("create_")
    if isinstance(value, ast.Dict):
        return any(map(_makes, value.values))
    if isinstance(value, ast.List | ast.Tuple):
        return any(map(_makes, value.elts))
    if isinstance(value, ast.DictComp):
        return _makes(value.value)
    return isinstance(value, ast.ListComp) and _makes(value.elt)


def _functions(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the plain functions of a module that take no arguments."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
            taken = statement.args
            if not (taken.posonlyargs or taken.args or taken.kwonlyargs):
                yield statement.name
