"""Reads the project's documents: blocks of code, links, headings, words formatted as code.

A comment before a block says how it is compared: ``<!-- test: figures vary, any order -->``.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "src" / "hookonce" / "guide"
RULES = {"figures vary", "any order"}

DOCUMENTS = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "src").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "tests").rglob("*.md"),
    ]
)

IN_SDIST = (ROOT / "PKG-INFO").exists()
"""Whether the tests run in an unpacked source distribution, and not in the repository."""

_BUILT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
NOT_IN_SDIST = [ROOT / name for name in _BUILT["targets"]["sdist"]["exclude"]]


def name_of(path: Path) -> str:
    """Return a document's name for the output of tests."""
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).as_posix()


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        language: the word after the opening fence.
        text: its lines.
        line: the number of its first line in the document, from 1.
        rules: how its output is compared, some of ``RULES``.

    """

    language: str
    text: str
    line: int
    rules: frozenset[str] = frozenset()

    @property
    def file(self) -> str | None:
        """The name of the file, from the block's first line."""
        found = re.match(r"# ([\w/.-]+\.\w+)\n", self.text)
        return found[1] if found else None


@dataclass(frozen=True)
class Link:
    text: str
    target: str
    line: int


@dataclass(frozen=True)
class Span:
    """Words formatted as code within a sentence, a table or a heading."""

    text: str
    line: int


@cache
def _tokens(path: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text("utf-8"))


def blocks(path: Path) -> list[Block]:
    found = []
    rules: frozenset[str] = frozenset()
    for token in _tokens(path):
        if token.type == "html_block":
            note = re.search(r"<!-- test: (.*?) -->", token.content)
            rules = frozenset(note[1].split(", ")) if note else frozenset()
            assert rules <= RULES, f"{name_of(path)}: there is no rule {rules - RULES}"
        elif token.type == "fence" and token.map:
            found.append(Block(token.info.strip(), token.content, token.map[0] + 2, rules))
            rules = frozenset()
    return found


def _inline(path: Path) -> Iterator[tuple[Token, int]]:
    line = 1
    for token in _tokens(path):
        line = token.map[0] + 1 if token.map else line
        for child in token.children or []:
            yield child, line


def links(path: Path) -> list[Link]:
    found = []
    target = None
    text = ""
    for token, line in _inline(path):
        if token.type == "link_open":
            target, text = str(token.attrs["href"]), ""
        elif token.type == "link_close" and target is not None:
            found.append(Link(text, target, line))
            target = None
        elif token.type == "image":
            found.append(Link(token.content, str(token.attrs["src"]), line))
        elif target is not None:
            text += token.content
    return found


def spans(path: Path) -> list[Span]:
    return [
        Span(token.content, line) for token, line in _inline(path) if token.type == "code_inline"
    ]


def headings(path: Path) -> list[tuple[int, str]]:
    """Return level and text of each heading."""
    found = []
    for token, after in pairwise(_tokens(path)):
        if token.type == "heading_open":
            found.append((int(token.tag[1:]), "".join(one.content for one in after.children or [])))
    return found


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page, as repository browsers derive them from its headings."""
    found: set[str] = set()
    for _, text in headings(path):
        plain = re.sub(r"[^\w\- ]", "", text.casefold()).replace(" ", "-")
        number, anchor = 0, plain
        while anchor in found:
            number += 1
            anchor = f"{plain}-{number}"
        found.add(anchor)
    return found


def commands(block: Block) -> list[str]:
    """Return the commands of a ``console`` or ``sh`` block, each with its continued lines."""
    joined = block.text.replace("\\\n", " ")
    if block.language == "console":
        return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
