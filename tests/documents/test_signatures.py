"""Each of our types in a public signature is public: `hookonce guide api` lists it."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from hookonce.guide.definitions import definition
from hookonce.guide.reference import MODULES, Name, public_names


@cache
def listed() -> frozenset[tuple[str, str]]:
    """Return the defining module of each listed name, and the name in that module."""
    return frozenset(
        (name.home, name.path)
        for module in MODULES
        for name in public_names(module)
        if not name.is_member
    )


def types_of(name: Name) -> Iterator[str]:
    """Yield the names in the annotations of a signature."""
    for annotation in annotations(name):
        yield from names_in(annotation)


def annotations(name: Name) -> Iterator[ast.expr]:
    if name.signature.startswith(" = "):
        yield ast.parse(name.signature[3:], mode="eval").body
        return
    if name.signature.startswith(": "):
        if name.is_member:  # members include the values of an enumeration
            yield ast.parse(name.signature[2:], mode="eval").body
        return
    if not name.signature:
        return
    function = ast.parse(f"def _{in_any_order(name.signature)}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    for node in ast.walk(function.args):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.annotation
    if function.returns is not None:
        yield function.returns


def in_any_order(signature: str) -> str:
    """Make a model's fields keyword-only, so that a required field may follow an optional field."""
    has_fields = re.match(r"\(\w+:", signature) and not re.search(r", [*/]", signature)
    return f"(*, {signature[1:]}" if has_fields else signature


def names_in(annotation: ast.expr) -> Iterator[str]:
    if isinstance(annotation, ast.Subscript):
        generic = ast.unparse(annotation.value)
        if generic == "Literal":
            return
        if generic == "Annotated" and isinstance(annotation.slice, ast.Tuple):
            yield from names_in(annotation.slice.elts[0])
            return
    if isinstance(annotation, ast.Name):
        yield annotation.id
    elif isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from names_in(ast.parse(annotation.value, mode="eval").body)
    for child in ast.iter_child_nodes(annotation):
        if isinstance(child, ast.expr):
            yield from names_in(child)


def unlisted(home: str, name: str) -> set[str]:
    """Return the non-public types of hookonce to which a name in a module refers."""
    try:
        module, node, _ = definition(home, name)
    except LookupError:
        return set()  # a type of Python or of another package
    value = getattr(node, "value", None)
    if isinstance(value, ast.Call) and ast.unparse(value.func) in TYPE_VARIABLES:
        bounds = [*value.args[1:], *(one.value for one in value.keywords)]
        return {
            each for bound in bounds for one in names_in(bound) for each in unlisted(module, one)
        }
    return set() if (module, found(node, name)) in listed() else {f"{module}.{name}"}


TYPE_VARIABLES = {"TypeVar", "TypeVarWithDefault", "ParamSpec", "TypeVarTuple"}


def found(node: ast.stmt, name: str) -> str:
    return getattr(node, "name", name)


def missing(module: str) -> dict[str, set[str]]:
    """Return each type that is not public, with the public names of the module that use it."""
    needed: dict[str, set[str]] = {}
    for name in public_names(module):
        for kind in types_of(name):
            for one in unlisted(name.home, kind):
                needed.setdefault(one, set()).add(name.path)
    return needed


@pytest.mark.parametrize("module", MODULES)
def test_every_type_in_a_public_signature_is_public(module: str) -> None:
    assert missing(module) == {}
