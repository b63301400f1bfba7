"""The list of public names, each with its signature and first line."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from .definitions import Class, Function, decorators, definition, exported
from .signatures import (
    alias_signature,
    call_signature,
    class_signature,
    is_async,
    protocol_call,
)

MODULES: dict[str, tuple[str, ...]] = {
    "hookonce": (),
    "hookonce.errors": (),
    "hookonce.events": (),
    "hookonce.events.openai": (),
    "hookonce.events.standard": (),
    "hookonce.resources": (),
    "hookonce.senders": (),
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
    "hookonce.stores.life": (
        "LIFE",
        "NEW",
        "Answer",
        "DeadLetterRecord",
        "InboxEntry",
        "State",
        "Step",
        "Then",
        "is_forgotten",
    ),
    "hookonce.stores.key_locks": ("FREE", "is_forgotten"),
    "hookonce.stores.contract": (),
    "hookonce.stores.memory": (),
    "hookonce.stores.sqlite": (),
    "hookonce.stores.postgres": (),
    "hookonce.stores.redis": (),
    "hookonce.verification": (),
    "hookonce.verification.secrets": ("KeyPair", "new_key_pair", "new_secret"),
    "hookonce.guide": (),
}
"""The public modules and their public names; an empty tuple stands for the module's ``__all__``."""

GET_FROM = "Get it from "
"""The first words of a docstring's paragraph that says where to get an object.

The constructor of such a class is not public.
"""

_WIDTH = 96
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Name:
    """A public name, or a public member of a public class.

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
        """The name; for a member, without its class."""
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

    The list shows a member of a listed base class only under that base class. The same is true for
    a contract of the package above: a listed ``Protocol`` whose calls the class has.

    Args:
        module: a key of ``MODULES``.
    """
    for name in _names(module):
        home, node, doc = definition(module, name)
        if isinstance(node, ast.ClassDef):
            yield from _class_and_members(module, name, Class(home, node), doc)
        elif isinstance(node, Function):
            yield Name(name, call_signature(node), doc, home, is_async=is_async(node))
        else:
            yield Name(name, alias_signature(node), doc, home)


def _names(module: str) -> Sequence[str]:
    return MODULES[module] or exported(module)


def _class_and_members(module: str, name: str, cls: Class, doc: str) -> Iterator[Name]:
    members = list(_members(name, cls))
    contracts = _contracts(module, cls, members)
    is_made_elsewhere = _origin(doc) or (
        cls.function("__init__") is None and any(one.function("__init__") for one in contracts)
    )
    yield Name(
        name,
        "" if is_made_elsewhere else class_signature(cls),
        doc,
        cls.module,
        contracts=tuple(contract.node.name for contract in contracts),
        is_async=is_async(protocol_call(cls)),
    )
    elsewhere = _listed_elsewhere(cls, contracts)
    yield from (member for member in members if member.name not in elsewhere)


def _members(path: str, cls: Class) -> Iterator[Name]:
    """Yield the public methods and properties of a class; the inherited members come last."""
    seen: set[str] = set()
    for owner in (cls, *cls.ancestors):
        for function in owner.functions:
            if function.name.startswith("_") or function.name in seen:
                continue
            seen.add(function.name)
            marks = decorators(function)
            if marks & {"property", "cached_property"}:
                signature = ": " + (ast.unparse(function.returns) if function.returns else "")
            else:
                signature = call_signature(function, method="staticmethod" not in marks)
            yield Name(
                f"{path}.{function.name}",
                signature,
                ast.get_docstring(function) or "",
                owner.module,
                is_async=is_async(function),
                is_member=True,
            )


@cache
def _listed_classes() -> frozenset[tuple[str, str]]:
    """Return the module and the name of each class that the list contains."""
    found = [definition(module, name) for module in MODULES for name in _names(module)]
    return frozenset(
        (one.module, one.node.name) for one in found if isinstance(one.node, ast.ClassDef)
    )


def _contracts(module: str, cls: Class, members: Iterable[Name]) -> list[Class]:
    """Return the listed protocols and bases of a class, without the bases of those bases."""
    found = [one for one in cls.ancestors if (one.module, one.node.name) in _listed_classes()]
    calls = {(member.name, member.is_async) for member in members}
    package = module.rpartition(".")[0]
    if package in MODULES and package != "hookonce":
        for contract in _protocols(package):
            asked = {
                (member.name, member.is_async)
                for member in _members("", contract)
                if member.signature.startswith("(")
            }
            if asked and asked <= calls and contract not in found:
                found.append(contract)
    bases = {base.node.name for one in found for base in one.ancestors}
    return [
        one
        for one in found
        if one.node.name not in bases and (one.function("__init__") or any(_members("", one)))
    ]


def _protocols(module: str) -> Iterator[Class]:
    for name in _names(module):
        home, node, _ = definition(module, name)
        if isinstance(node, ast.ClassDef) and Class(home, node).is_protocol:
            yield Class(home, node)


def _listed_elsewhere(cls: Class, contracts: Iterable[Class]) -> set[str]:
    """Return the members of a class that the list shows only under its protocol or base class.

    A class that implements a protocol or an abstract method adds nothing to its description. A
    class that overrides another method may.
    """
    own = {function.name for function in cls.functions}
    names: set[str] = set()
    for contract in contracts:
        for base in (contract, *contract.ancestors):
            own -= {one.name for one in base.functions if "abstractmethod" in decorators(one)}
        members = {member.name for member in _members("", contract)}
        is_implemented = contract.is_protocol and not cls.is_protocol
        names |= members if is_implemented else members - own
    return names


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
    """Return the paragraph that says where to get an object, as one line, if there is one."""
    return [" ".join(part.split()) for part in doc.split("\n\n") if part.startswith(GET_FROM)]
