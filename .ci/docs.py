"""Build the site of the documentation: ``python .ci/docs.py FOLDER``.

The site has the pages of the guide, a page of reference for each public module, made from its
docstrings, and a search. Every warning, such as a broken link, ends the build with status 1.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from sphinx.cmd.build import main as sphinx_build
from sphinx.ext.napoleon import Config, GoogleDocstring

from hookonce import __version__
from hookonce.guide.definitions import Function, definition
from hookonce.guide.reference import MODULES, Name, public_names

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "src" / "hookonce" / "guide"
HOOKS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["metadata"]
REPOSITORY = HOOKS["hooks"]["custom"]["repository"].rstrip("/")

SETTINGS = f"""\
project = "hookonce"
version = release = "{__version__}"
html_title = "hookonce {__version__}"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
extensions = ["myst_parser"]
myst_heading_anchors = 6
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
"""

Places: TypeAlias = dict[tuple[str, str], str]
"""The module that first lists an object, by the module that defines it and its name."""

_DOCSTRINGS = Config(napoleon_use_ivar=True)


def write_pages(folder: Path) -> None:
    """Copy the guide; links that leave it lead to the repository, and pictures come along."""

    def inside(link: re.Match[str]) -> str:
        image, text, path = link.groups()
        if image:
            shutil.copy(GUIDE / path, folder)
            return f"![{text}]({Path(path).name})"
        target = path.removeprefix("../../../")
        return f"[{text}]({REPOSITORY}/blob/main/{target})" if REPOSITORY else text

    for page in GUIDE.glob("*.md"):
        text = re.sub(r"(!?)\[([^\]]*)\]\((\.\./[^)\s]+)\)", inside, page.read_text("utf-8"))
        text = text.replace("](README.md", "](index.md")
        if page.stem == "README":
            text += contents(text)
        name = "index" if page.stem == "README" else page.stem
        (folder / f"{name}.md").write_text(text, "utf-8")


def contents(index: str) -> str:
    """Return the lists of pages for the margin: a list for each section of the index."""
    lists = {
        section.partition("\n")[0]: re.findall(r"\]\(([\w-]+)\.md\)", section)
        for section in index.split("\n## ")[1:]
    }
    lists["Reference"] = [f"api/{module}" for module in MODULES]
    return "".join(
        "\n".join(["\n```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```\n"])
        for title, pages in lists.items()
    )


def write_reference(folder: Path) -> None:
    """Write a page for each public module; a name has its entry where it is listed first."""
    folder.mkdir()
    names = {module: list(public_names(module)) for module in MODULES}
    listed_in: Places = {}
    for module in MODULES:
        for name in names[module]:
            listed_in.setdefault((name.home, name.path), module)
    for module in MODULES:
        title = f"{module}\n{'=' * len(module)}\n\n.. py:module:: {module}\n\n"
        entries = "\n".join(entries_of(module, names[module], listed_in))
        (folder / f"{module}.rst").write_text(title + entries, "utf-8")


def entries_of(module: str, names: list[Name], listed_in: Places) -> Iterator[str]:
    first = module
    for name in names:
        if not name.is_member:
            first = listed_in[name.home, name.path]
        if first == module:
            yield entry(module, name, listed_in)
        elif not name.is_member:
            yield f"``{name.path}``: see :py:obj:`{first}.{name.path}`.\n"


def entry(module: str, name: Name, listed_in: Places) -> str:
    """Return the entry of a name: its signature and its docstring."""
    lines = list(GoogleDocstring(name.doc, _DOCSTRINGS).lines())
    if name.contracts:
        lines += ["", f"It also has the members of {', '.join(name.contracts)}."]
    head = directive(module, name, exact(name, listed_in))
    return ".. " + "\n   ".join([*head, "", *lines]) + "\n"


def exact(name: Name, listed_in: Places) -> str:
    """Return a name's signature; a class whose name two modules have gets its module's name."""
    paths = Counter(path for _, path in listed_in)

    def qualified(word: re.Match[str]) -> str:
        if paths[word[0]] < 2:
            return word[0]
        home = definition(name.home, word[0]).module
        return f"{listed_in[home, word[0]]}.{word[0]}"

    return re.sub(r"\b[A-Z]\w+", qualified, name.signature)


def directive(module: str, name: Name, signature: str) -> list[str]:
    """Return the first line of an entry, and its options."""
    awaited = [":async:"] if name.is_async else []
    if name.is_member:
        if signature.startswith(":"):
            return [f"py:property:: {name.path}", f":type: {signature.removeprefix(': ')}"]
        return [f"py:method:: {name.path}{signature}", *awaited]
    _, node, _ = definition(module, name.path)
    if isinstance(node, ast.ClassDef):
        if signature.startswith(":"):  # an enumeration
            return [f"py:class:: {name.path}", "", f"Values: {signature.removeprefix(': ')}."]
        return [f"py:class:: {name.path}{signature}"]
    if isinstance(node, Function):
        return [f"py:function:: {name.path}{signature}", *awaited]
    value = [f":value: {signature.removeprefix(' = ')}"] if signature else []
    return [f"py:data:: {name.path}", *value]


def main() -> int:
    with tempfile.TemporaryDirectory() as source:
        folder = Path(source)
        (folder / "conf.py").write_text(SETTINGS, "utf-8")
        write_pages(folder)
        write_reference(folder / "api")
        return sphinx_build(["--quiet", "--fail-on-warning", "--keep-going", source, sys.argv[1]])


if __name__ == "__main__":
    sys.exit(main())
