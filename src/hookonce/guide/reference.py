"""The list of public names with signatures and first lines, parsed from the source.

It imports no module, so that it also lists the names of an extra that is not installed.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

GET_FROM = "Get it from "
"""Begins the paragraph of a docstring that says where to get an object of a class.

The constructor of such a class is not public.
"""

_WIDTH = 96
_INDENT = "    "
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_ENUMS = {"Enum", "StrEnum", "IntEnum"}


@dataclass(frozen=True, slots=True)
class Name:
    """A public name, or a public member of one.

    Attributes:
        path: the name, or ``Class.member``.
        signature: the parameters; the values of an enumeration; the type of an alias; empty for
            another constant.
        doc: the docstring, or the text below a constant; may be empty.
        home: the module that defines it, where the names in its signature have their meaning.
        contracts: the listed classes whose members a class also has; they are not listed again.
        is_async: whether a call must be awaited.
        is_member: whether the name belongs to a class.
    """

    path: str
    signature: str
    doc: str
    home: str
    contracts: tuple[str, ...] = ()
    is_async: bool = False
    is_member: bool = False

    @property
    def name(self) -> str:
        """The name of a member without its class."""
        return self.path.rpartition(".")[2]

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
    listed_in: dict[tuple[str, str], str] = {}
    for module in MODULES:
        entries, first = [], module
        for name in public_names(module):
            if not name.is_member:
                first = listed_in.setdefault((name.home, name.path), module)
            if first == module:
                entries.append(_entry(name))
            elif not name.is_member:
                entries.append(f"{_INDENT}{name.path}\n{_INDENT * 2}See {first}.\n")
        text += f"\n## {module}\n\n" + "\n".join(entries)
    return text


def public_names(module: str) -> Iterator[Name]:
    """Yield the public names of a module, each class followed by its public members.

    Members that a listed base class has, or a contract of the package above (a listed ``Protocol``
    whose calls the class has), are listed there alone.

    Args:
        module: a key of ``MODULES``.
    """
    for name in _names(module):
        home, node, doc = definition(module, name)
        if not isinstance(node, ast.ClassDef):
            yield Name(name, _signature(home, node), doc, home, is_async=_is_async(node))
            continue
        members = list(_members(name, home, node))
        contracts = _contracts(module, home, node, members)
        elsewhere = _listed_elsewhere(node, contracts.values())
        yield Name(
            name,
            _signature(home, node),
            doc,
            home,
            contracts=tuple(contracts),
            is_async=_is_async(_protocol_call(node)),
        )
        yield from (member for member in members if member.name not in elsewhere)


def _entry(name: Name) -> str:
    indent = _INDENT * (2 if name.is_member else 1)
    call = ("async " if name.is_async else "") + name.name + name.signature
    lines = textwrap.wrap(call, _WIDTH - len(indent), subsequent_indent=_INDENT * 2)
    texts = [name.summary, *_origin(name.doc)]
    if name.contracts:
        texts.append(f"It also has the members of {', '.join(name.contracts)}.")
    for text in texts:
        lines += [_INDENT + line for line in textwrap.wrap(text, _WIDTH - len(indent) - 4)]
    return "".join(f"{indent}{line}\n" for line in lines)


def _origin(doc: str) -> list[str]:
    """Return the paragraph that says where to get an object, if there is one, as one line."""
    return [" ".join(part.split()) for part in doc.split("\n\n") if part.startswith(GET_FROM)]


@cache
def _tree(module: str) -> ast.Module:
    folder = files("hookonce").joinpath(*module.split(".")[1:])
    file = folder / "__init__.py"
    if not file.is_file():
        *parents, last = module.split(".")[1:]
        file = files("hookonce").joinpath(*parents, f"{last}.py")
    return ast.parse(file.read_text("utf-8"))


def _names(module: str) -> Sequence[str]:
    return MODULES[module] or _exported(module)


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
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
        return f" = {_alias(node.value)}"
    if not isinstance(node, ast.ClassDef):
        return ""
    if _ENUMS & _bases(node):
        return ": " + ", ".join(_values(node))
    if _origin(ast.get_docstring(node) or ""):
        return ""
    fields: dict[str, str] = {}
    if (call := _protocol_call(node)) is not None:
        return _call(call, method=True)
    for home, owner in [(module, node), *_ancestors(module, node)]:
        if (constructor := _method(owner, "__init__")) is not None:
            is_listed_there = owner is not node and (home, owner.name) in _listed_classes()
            return "" if is_listed_there else _call(constructor, method=True, returns=False)
    for _, owner in reversed([(module, node), *_ancestors(module, node)]):
        for part in owner.body:
            if isinstance(part, ast.AnnAssign):
                fields |= _field(part, _type_arguments(module, node))
    shown = list(fields.values())
    if shown and "kw_only=True" in "".join(map(ast.unparse, node.decorator_list)):
        shown.insert(0, "*")
    return f"({', '.join(shown)})" if shown else ""


@cache
def _listed_classes() -> dict[tuple[str, str], str]:
    """Return the names of the listed classes, by the module and the name of their definition."""
    found = {}
    for module in MODULES:
        for name in _names(module):
            home, node, _ = definition(module, name)
            if isinstance(node, ast.ClassDef):
                found[home, node.name] = name
    return found


def _contracts(
    module: str, home: str, node: ast.ClassDef, members: Iterable[Name]
) -> dict[str, tuple[str, ast.ClassDef]]:
    """Return the listed classes whose members a class has, by name, without bases of others."""
    listed = _listed_classes()
    found = [base for base in _ancestors(home, node) if (base[0], base[1].name) in listed]
    package = module.rpartition(".")[0]
    if package in MODULES and package != "hookonce":
        calls = {(member.name, member.is_async) for member in members}
        for name in _names(package):
            contract_home, contract, _ = definition(package, name)
            if not (isinstance(contract, ast.ClassDef) and _is_protocol(contract)):
                continue
            asked = {
                (member.name, member.is_async)
                for member in _members("", contract_home, contract)
                if member.signature.startswith("(")
            }
            if asked and asked <= calls:
                found.append((contract_home, contract))
    bases = {base.name for one in found for _, base in _ancestors(*one)}
    return {
        base.name: (base_home, base)
        for base_home, base in found
        if base.name not in bases
        and (_method(base, "__init__") or any(_members("", base_home, base)))
    }


def _listed_elsewhere(
    node: ast.ClassDef, contracts: Iterable[tuple[str, ast.ClassDef]]
) -> set[str]:
    """Return the members of a class that are listed at its contracts.

    A class that implements a protocol says nothing new about its members. Another subclass may.
    """
    own = {part.name for part in node.body if isinstance(part, _FUNCTIONS)}
    names: set[str] = set()
    for home, contract in contracts:
        members = {member.name for member in _members("", home, contract)}
        is_implemented = _is_protocol(contract) and not _is_protocol(node)
        names |= members if is_implemented else members - own
    return names


def _alias(value: ast.expr | None) -> str:
    """Return the type that an alias stands for, without pydantic's metadata."""
    match value:
        case None:
            return ""
        case ast.Constant(value=str(text)):
            return text
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *_])):
            return ast.unparse(kind)
    return ast.unparse(value)


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for part in node.body:
        if isinstance(part, _FUNCTIONS) and part.name == name and "overload" not in _marks(part):
            return part
    return None


def _protocol_call(node: ast.ClassDef) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the call of a protocol that functions fulfil."""
    return _method(node, "__call__") if _is_protocol(node) else None


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(base.partition("[")[0] == "Protocol" for base in _bases(node))


def _is_async(node: ast.stmt | None) -> bool:
    """Return whether a call gives an awaitable: not if it gives a context manager."""
    if not isinstance(node, _FUNCTIONS) or "asynccontextmanager" in _marks(node):
        return False
    gives_coroutine = node.returns is not None and "Coroutine[" in ast.unparse(node.returns)
    return isinstance(node, ast.AsyncFunctionDef) or gives_coroutine


def _marks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(one).partition("(")[0] for one in node.decorator_list}


def _field(node: ast.AnnAssign, types: Mapping[str, str]) -> dict[str, str]:
    """Return the text of a field by its name; nothing for what the constructor does not take.

    Args:
        node: the definition.
        types: the types that stand for type variables.
    """
    annotation = ast.unparse(node.annotation)
    if annotation.startswith("ClassVar"):
        return {}
    text = f": {types.get(annotation, annotation)}" + _default(node.value)
    return {name: name + text for name in _targets(node) if not name.startswith("_")}


def _default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        options = {one.arg: ast.unparse(one.value) for one in value.keywords}
        if factory := options.get("default_factory"):
            return f" = {factory}()"
        return f" = {options['default']}" if "default" in options else ""
    return "" if value is None else f" = {ast.unparse(value)}"


def _type_arguments(module: str, node: ast.ClassDef) -> dict[str, str]:
    """Return the types that a class gives to the type variables of its generic bases."""
    types = {}
    for base in node.bases:
        if not isinstance(base, ast.Subscript):
            continue
        name = ast.unparse(base.value)
        parents = [parent for _, parent in _ancestors(module, node) if parent.name == name]
        for own in (one for parent in parents for one in parent.bases):
            if isinstance(own, ast.Subscript) and ast.unparse(own.value) == "Generic":
                types[ast.unparse(own.slice)] = ast.unparse(base.slice)
    return types


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
    return f"({arguments}) -> {_answer(node)}" if returns and node.returns else f"({arguments})"


def _answer(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the type of what a caller gets from the call, or from awaiting it."""
    answer = ast.unparse(node.returns) if node.returns else ""
    if _marks(node) & {"contextmanager", "asynccontextmanager"}:
        return re.sub(r"^(Async)?Iterator", r"Abstract\1ContextManager", answer)
    return re.sub(r"^Coroutine\[Any, Any, (.*)\]$", r"\1", answer)


def _members(path: str, module: str, node: ast.ClassDef) -> Iterator[Name]:
    """Yield the public methods and properties of a class, its own before inherited ones."""
    seen: set[str] = set()
    for home, owner in [(module, node), *_ancestors(module, node)]:
        for part in owner.body:
            if not isinstance(part, _FUNCTIONS):
                continue
            if part.name.startswith("_") or part.name in seen:
                continue
            marks = _marks(part)
            if any(one.endswith(".setter") for one in marks) or "overload" in marks:
                continue
            seen.add(part.name)
            doc = ast.get_docstring(part) or ""
            if marks & {"property", "cached_property"}:
                answer = ast.unparse(part.returns) if part.returns else ""
                signature = f": {answer}"
            else:
                signature = _call(part, method="staticmethod" not in marks)
            yield Name(
                f"{path}.{part.name}",
                signature,
                doc,
                home,
                is_async=_is_async(part),
                is_member=True,
            )
