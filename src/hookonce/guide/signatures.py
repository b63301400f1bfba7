"""Signatures as text, for callers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from .definitions import Class, Function, decorators, targets

_ENUMS = {"Enum", "StrEnum", "IntEnum"}


def class_signature(cls: Class) -> str:
    """Return the parameters of a class, the values of an enumeration, or the call of a protocol."""
    if cls.bases & _ENUMS:
        return ": " + ", ".join(_values(cls.node))
    if (call := protocol_call(cls)) is not None:
        return call_signature(call, method=True)
    for owner in (cls, *cls.ancestors):
        if (constructor := owner.function("__init__")) is not None:
            return call_signature(constructor, method=True).partition(" -> ")[0]
    types = _type_arguments(cls)
    fields: dict[str, str] = {}
    for owner in reversed([cls, *cls.ancestors]):
        for part in owner.node.body:
            if isinstance(part, ast.AnnAssign):
                fields |= _field(part, types)
    shown = list(fields.values())
    if shown and "kw_only=True" in "".join(map(ast.unparse, cls.node.decorator_list)):
        shown.insert(0, "*")
    return f"({', '.join(shown)})" if shown else ""


def call_signature(function: Function, *, method: bool = False) -> str:
    """Return a function's parameters and result type as the guide shows them, without ``self``."""
    arguments = ast.unparse(function.args)
    if method:
        arguments = arguments.partition(", ")[2]
    result = ast.unparse(function.returns) if function.returns else ""
    if decorators(function) & {"contextmanager", "asynccontextmanager"}:
        result = re.sub(r"^(Async)?Iterator", r"Abstract\1ContextManager", result)
    result = re.sub(r"^Coroutine\[Any, Any, (.*)\]$", r"\1", result)
    return f"({arguments}) -> {result}" if result else f"({arguments})"


def alias_signature(node: ast.stmt) -> str:
    """Return the type of an alias, without pydantic's metadata; empty if there is no alias."""
    if not isinstance(node, ast.AnnAssign) or ast.unparse(node.annotation) != "TypeAlias":
        return ""
    match node.value:
        case None:
            return ""
        case ast.Constant(value=str(text)):
            return f" = {text}"
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *_])):
            return f" = {ast.unparse(kind)}"
    return f" = {ast.unparse(node.value)}"


def protocol_call(cls: Class) -> Function | None:
    """Return the ``__call__`` of a protocol; None for any other class."""
    return cls.function("__call__") if cls.is_protocol else None


def is_async(function: ast.stmt | None) -> bool:
    """Return whether callers await the function; False for an async context manager."""
    if not isinstance(function, Function) or "asynccontextmanager" in decorators(function):
        return False
    gives_coroutine = function.returns and "Coroutine[" in ast.unparse(function.returns)
    return isinstance(function, ast.AsyncFunctionDef) or bool(gives_coroutine)


def _values(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant):
            yield str(part.value.value)


def _field(node: ast.AnnAssign, types: Mapping[str, str]) -> dict[str, str]:
    """Return a field's name and text; empty if the constructor has no parameter for the field.

    Args:
        node: the definition.
        types: the types that stand for type variables.
    """
    annotation = ast.unparse(node.annotation)
    if annotation.startswith("ClassVar"):
        return {}
    text = f": {types.get(annotation, annotation)}" + _default(node.value)
    return {name: name + text for name in targets(node) if not name.startswith("_")}


def _default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        options = {one.arg: ast.unparse(one.value) for one in value.keywords}
        if factory := options.get("default_factory"):
            return f" = {factory}()"
        return f" = {options['default']}" if "default" in options else ""
    return "" if value is None else f" = {ast.unparse(value)}"


def _type_arguments(cls: Class) -> dict[str, str]:
    """Return the type that a class gives to each type variable of its generic bases."""
    types = {}
    parents = {parent.node.name: parent.node for parent in cls.ancestors}
    for base in cls.node.bases:
        if isinstance(base, ast.Subscript) and (parent := parents.get(ast.unparse(base.value))):
            for own in parent.bases:
                if isinstance(own, ast.Subscript) and ast.unparse(own.value) == "Generic":
                    types[ast.unparse(own.slice)] = ast.unparse(base.slice)
    return types
