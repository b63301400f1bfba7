"""The list of public names with signatures and first lines, parsed from the source.

It imports no module, so that it also lists the names of an extra that is not installed.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

MODULES: dict[str, tuple[str, ...]] = {
    "hookonce": (),
    "hookonce.errors": (),
    "hookonce.events": (),
    "hookonce.resources": (),
    "hookonce.testing": (),
    "hookonce.operations": (),
    "hookonce.operations.prometheus": (),
    "hookonce.operations.opentelemetry": (),
    "hookonce.operations.inspector": (),
    "hookonce.operations.doctor": (),
    "hookonce.http.guard": ("StatusGuard",),
    "hookonce.integrations.fastapi": (),
    "hookonce.integrations.django": (),
    "hookonce.integrations.flask": (),
    "hookonce.integrations.litestar": (),
    "hookonce.integrations.wsgi": (),
    "hookonce.integrations.aws_lambda": (),
    "hookonce.testing.pytest_plugin": (),
    "hookonce.client": (),
    "hookonce.clock": ("Clock", "system_clock"),
    "hookonce.routing": (),
    "hookonce.receiver": (),
    "hookonce.effects": (),
    "hookonce.effects.sqlalchemy": ("SQLAlchemyLedger", "SyncSQLAlchemyLedger", "ledger_tables"),
    "hookonce.effects.psycopg": ("PsycopgLedger", "SyncPsycopgLedger"),
    "hookonce.effects.asyncpg": ("AsyncpgLedger",),
    "hookonce.effects.django": ("DjangoLedger", "create_table", "drop_table"),
    "hookonce.effects.sqlite": ("SQLiteLedger",),
    "hookonce.effects.aiosqlite": ("AioSQLiteLedger",),
    "hookonce.effects.contract": (),
    "hookonce.emulator": (),
    "hookonce.simulation": (),
    "hookonce.stores": (),
    "hookonce.stores.contract": (),
    "hookonce.stores.memory": (),
    "hookonce.stores.sqlite": (),
    "hookonce.stores.redis": (),
    "hookonce.verification": (),
    "hookonce.verification.secrets": ("new_secret",),
    "hookonce.guide": (),
}
"""The public modules, and their public names; an empty tuple stands for ``__all__``."""

MADE_HERE = {
    *("Channels", "Comments", "Listing", "MediaLibrary", "Posts", "Webhooks"),
    *("ApiError", "ConflictError", "InternalError", "LimitError", "NotFoundError"),
    *("PermissionDeniedError", "PlatformError", "ValidationFailedError"),
    *("App", "DeadLetters", "Expectation", "FaultInjection", "WaitingEvents"),
}
"""Classes whose objects only this package makes: their constructors are not public."""

_WIDTH = 96
_INDENT = "    "
_ENUMS = {"Enum", "StrEnum", "IntEnum"}


@dataclass(frozen=True, slots=True)
class Name:
    """A public name, or a public member of one.

    Attributes:
        path: the name, or ``Class.member``.
        signature: the parameters; the values of an enumeration; empty for a constant.
        doc: the docstring, or the text below a constant; may be empty.
        home: the module that defines it, where the names in its signature have their meaning.
        is_member: whether the name belongs to a class.
    """

    path: str
    signature: str
    doc: str
    home: str
    is_member: bool = False

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, as one line."""
        return " ".join(self.doc.partition("\n\n")[0].split())


def reference() -> str:
    """Return Markdown: each public name with its signature and its first line."""
    text = (
        "# Every public name\n\n"
        "A name that is not listed here is not public: it may change in any version.\n"
        "The docstrings, which an editor shows, say more.\n"
    )
    for module in MODULES:
        entries = [_entry(name) for name in public_names(module)]
        text += f"\n## {module}\n\n" + "\n".join(entries)
    return text


def public_names(module: str) -> Iterator[Name]:
    """Yield the public names of a module, each class followed by its public members.

    Args:
        module: a key of ``MODULES``.
    """
    for name in MODULES[module] or _exported(module):
        home, node, doc = definition(module, name)
        yield Name(name, _signature(home, node), doc, home)
        if isinstance(node, ast.ClassDef):
            yield from _members(name, home, node)


def _entry(name: Name) -> str:
    indent = _INDENT * (2 if name.is_member else 1)
    call = name.path.rpartition(".")[2] if name.is_member else name.path
    lines = textwrap.wrap(
        call + name.signature, _WIDTH - len(indent), subsequent_indent=_INDENT * 2
    )
    lines += [_INDENT + line for line in textwrap.wrap(name.summary, _WIDTH - len(indent) - 4)]
    return "".join(f"{indent}{line}\n" for line in lines)


@cache
def _tree(module: str) -> ast.Module:
    folder = files("hookonce").joinpath(*module.split(".")[1:])
    file = folder / "__init__.py"
    if not file.is_file():
        *parents, last = module.split(".")[1:]
        file = files("hookonce").joinpath(*parents, f"{last}.py")
    return ast.parse(file.read_text("utf-8"))


def _exported(module: str) -> list[str]:
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and "__all__" in _targets(node):
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise LookupError(f"{module} has no __all__")


def definition(module: str, name: str) -> tuple[str, ast.stmt, str]:
    """Return the module that defines a name, its definition, and its documentation.

    Raises:
        LookupError: the module neither defines nor imports the name.
    """
    if module.partition(".")[0] != "hookonce":
        raise LookupError(f"{module} is another package's")
    body = _tree(module).body
    found: tuple[str, ast.stmt, str] | None = None
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == name:  # the last overload has the docstring
                found = (module, node, ast.get_docstring(node) or "")
        elif name in _targets(node):
            found = (module, node, _text(after))
    if found is not None:
        return found
    for imported in ast.walk(_tree(module)):
        if isinstance(imported, ast.ImportFrom):
            for alias in imported.names:
                if name == (alias.asname or alias.name):
                    return definition(_absolute(module, imported), alias.name)
    raise LookupError(f"{module} does not define {name}")


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    is_folder = files("hookonce").joinpath(*module.split(".")[1:]).is_dir()
    package = module.split(".") if is_folder else module.split(".")[:-1]
    start = package[: len(package) - node.level + 1]
    return ".".join([*start, *([node.module] if node.module else [])])


def _targets(node: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _text(node: ast.stmt | None) -> str:
    """Return the text of the string below a constant."""
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return node.value.value
    return ""


def _signature(module: str, node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _call(node)
    if not isinstance(node, ast.ClassDef):
        return ""
    if _ENUMS & _bases(node):
        return ": " + ", ".join(_values(node))
    if node.name in MADE_HERE:
        return ""
    fields: dict[str, str] = {}
    for _, parent in reversed([(module, node), *_ancestors(module, node)]):
        for part in parent.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                fields = {"": _call(part, method=True, returns=False)}
            elif isinstance(part, ast.AnnAssign) and "" not in fields:
                fields |= _field(part)
    if "" in fields:
        return fields[""]
    shown = list(fields.values())
    if shown and "kw_only=True" in "".join(map(ast.unparse, node.decorator_list)):
        shown.insert(0, "*")
    return f"({', '.join(shown)})" if shown else ""


def _field(node: ast.AnnAssign) -> dict[str, str]:
    if ast.unparse(node.annotation).startswith("ClassVar"):
        return {}
    return {name: ast.unparse(node) for name in _targets(node) if not name.startswith("_")}


def _ancestors(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes of this package that a class inherits from, and their modules."""
    for base in node.bases:
        own = base.value if isinstance(base, ast.Subscript) else base
        if not isinstance(own, ast.Name):
            continue
        try:
            home, parent, _ = definition(module, own.id)
        except LookupError:
            continue
        if isinstance(parent, ast.ClassDef):
            yield home, parent
            yield from _ancestors(home, parent)


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).rpartition(".")[2] for base in node.bases}


def _values(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant):
            yield str(part.value.value)


def _call(
    node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool = False, returns: bool = True
) -> str:
    arguments = ast.unparse(node.args)
    if method:
        arguments = arguments.partition(", ")[2]
    answer = f" -> {ast.unparse(node.returns)}" if returns and node.returns else ""
    return f"({arguments}){answer}"


def _members(path: str, module: str, node: ast.ClassDef) -> Iterator[Name]:
    """Yield the public methods and properties of a class, its own before inherited ones."""
    seen: set[str] = set()
    for home, owner in [(module, node), *_ancestors(module, node)]:
        for part in owner.body:
            if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if part.name.startswith("_") or part.name in seen:
                continue
            marks = {ast.unparse(one).partition("(")[0] for one in part.decorator_list}
            if any(one.endswith(".setter") for one in marks) or "overload" in marks:
                continue
            seen.add(part.name)
            doc = ast.get_docstring(part) or ""
            if marks & {"property", "cached_property"}:
                answer = ast.unparse(part.returns) if part.returns else ""
                signature = f": {answer}"
            else:
                signature = _call(part, method="staticmethod" not in marks)
            yield Name(f"{path}.{part.name}", signature, doc, home, is_member=True)
