"""The source code of this package's public names, read with ``ast``.

No module is imported, so that an extra that is not installed has definitions too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Class(NamedTuple):
    """The definition of a class.

    Attributes:
        module: the module that defines it, where the names in its body have their meaning.
        node: its source.
    """

    module: str
    node: ast.ClassDef

    @property
    def bases(self) -> set[str]:
        """The names of the direct base classes, without type arguments."""
        return {
            ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]
            for base in self.node.bases
        }

    @property
    def is_protocol(self) -> bool:
        """Whether the class itself is a ``Protocol``; False if it only implements a protocol."""
        return "Protocol" in self.bases

    @property
    def ancestors(self) -> Iterator[Class]:
        """The classes of this package that the class inherits from."""
        for name in map(ast.unparse, self.node.bases):
            try:
                parent = definition(self.module, name.partition("[")[0])
            except LookupError:
                continue
            if isinstance(parent.node, ast.ClassDef):
                ancestor = Class(parent.module, parent.node)
                yield ancestor
                yield from ancestor.ancestors

    @property
    def functions(self) -> Iterator[Function]:
        """The functions in the class's own body, without overloads and setters."""
        for part in self.node.body:
            if isinstance(part, Function) and not any(
                mark == "overload" or mark.endswith(".setter") for mark in decorators(part)
            ):
                yield part

    def function(self, name: str) -> Function | None:
        """Return the function of this name in the class's own body."""
        return next((part for part in self.functions if part.name == name), None)


class Definition(NamedTuple):
    """The definition of a name.

    Attributes:
        module: the module that defines it, where the names in its signature have their meaning.
        node: its source.
        doc: the docstring, or the text below a constant; may be empty.
    """

    module: str
    node: ast.stmt
    doc: str


@cache
def definition(module: str, name: str) -> Definition:
    """Return the definition of a name that a module defines or imports.

    Raises:
        LookupError: the module neither defines nor imports the name.
    """
    if module.partition(".")[0] != "hookonce":
        raise LookupError(f"{module} is another package's")
    body = _tree(module).body
    found: Definition | None = None
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | Function):
            if node.name == name:  # the last overload has the docstring
                found = Definition(module, node, ast.get_docstring(node) or "")
        elif name in targets(node):
            found = Definition(module, node, _text(after))
    if found is not None:
        return found
    if name in (imported := _imports(module)):
        return definition(*imported[name])
    raise LookupError(f"{module} does not define {name}")


def exported(module: str) -> list[str]:
    """Return the ``__all__`` of a module."""
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and "__all__" in targets(node):
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise LookupError(f"{module} has no __all__")


def targets(node: ast.stmt) -> set[str]:
    """Return the names that a statement assigns."""
    assigned: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        assigned = node.targets
    elif isinstance(node, ast.AnnAssign):
        assigned = [node.target]
    return {target.id for target in assigned if isinstance(target, ast.Name)}


def decorators(node: Function) -> set[str]:
    """Return the decorators of a function, without their arguments."""
    return {ast.unparse(one).partition("(")[0] for one in node.decorator_list}


@cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """Return the module and the name behind each name that a module imports."""
    return {
        alias.asname or alias.name: (_absolute(module, node), alias.name)
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@cache
def _tree(module: str) -> ast.Module:
    folder = files("hookonce").joinpath(*module.split(".")[1:])
    file = folder / "__init__.py"
    if not file.is_file():
        *parents, last = module.split(".")[1:]
        file = files("hookonce").joinpath(*parents, f"{last}.py")
    return ast.parse(file.read_text("utf-8"))


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    is_folder = files("hookonce").joinpath(*module.split(".")[1:]).is_dir()
    package = module.split(".") if is_folder else module.split(".")[:-1]
    start = package[: len(package) - node.level + 1]
    return ".".join([*start, *([node.module] if node.module else [])])


def _text(node: ast.stmt | None) -> str:
    """Return the text of the string literal below a constant."""
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return node.value.value
    return ""
