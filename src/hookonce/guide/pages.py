"""Finds, reads, searches and formats the pages of the guide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from .reference import reference

INDEX = "README"
"""The page that lists the others."""

_REFERENCE = "api"
_REPOSITORY = ("../", "examples/", "tests/")


@dataclass(frozen=True, slots=True)
class GuidePage:
    """One page of the guide.

    Attributes:
        topic: the name of its file without ``.md``, and its name in ``hookonce guide TOPIC``.
        text: the Markdown of the file.
    """

    topic: str
    text: str

    @property
    def title(self) -> str:
        """The title: the heading in the first line."""
        return self.text.partition("\n")[0].removeprefix("# ")

    @property
    def printed(self) -> str:
        """The text for a terminal: links become commands; pictures and comments are removed."""
        text = re.sub(r"<!--.*?-->\n?", "", self.text, flags=re.DOTALL)
        text = re.sub(r"!\[[^\]]*\]\([^)]*\)\n*", "", text)
        return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", _named, text)


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that a search found.

    Attributes:
        topic: the page.
        heading: the heading above the line.
        line: the line, without white space around it.
    """

    topic: str
    heading: str
    line: str


def topics() -> list[str]:
    """Return all topics in the order of the index; topics that the index lacks come last."""
    folder = files(__package__)
    there = {
        file.name.removesuffix(".md") for file in folder.iterdir() if file.name.endswith(".md")
    }
    index = (folder / f"{INDEX}.md").read_text("utf-8")
    ordered = dict.fromkeys(re.findall(r"\]\(([\w-]+)\.md\)", index))
    return [
        *(topic for topic in ordered if topic in there),
        *sorted(there - set(ordered) - {INDEX}),
    ]


def pages() -> list[GuidePage]:
    """Return every page, in the order of the index."""
    return [page(topic) for topic in topics()]


def page(topic: str) -> GuidePage:
    """Return the page of a topic: ``README`` is the index, ``api`` lists all public names.

    Raises:
        LookupError: the guide has no such page.
    """
    if topic == _REFERENCE:
        return GuidePage(topic, reference())
    if topic != INDEX and topic not in topics():
        raise LookupError(f"the guide has no page {topic!r}")
    return GuidePage(topic, (files(__package__) / f"{topic}.md").read_text("utf-8"))


def search(words: str) -> list[Hit]:
    """Return the lines that contain all of these words, ignoring case; headings first."""
    wanted = words.casefold().split()
    hits = [
        hit
        for one in [*pages(), page(_REFERENCE)]
        for hit in _lines(one)
        if all(word in f"{hit.heading} {hit.line}".casefold() for word in wanted)
        and any(word in hit.line.casefold() for word in wanted)
    ]
    return sorted(hits, key=lambda hit: hit.line != hit.heading)


def _lines(one: GuidePage) -> Iterator[Hit]:
    heading = one.title
    fenced = False
    for line in one.printed.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            heading = line.lstrip("# ")
            yield Hit(one.topic, heading, heading)
        elif line.strip(" `-|"):
            yield Hit(one.topic, heading, line.strip())


def _named(link: re.Match[str]) -> str:
    """Return a link as text: its words and its target (a command, an address or a file)."""
    text, target = link.groups()
    if found := re.fullmatch(r"([\w-]+)\.md(?:#.*)?", target):
        topic = found[1]
        return text if topic == INDEX else f"{text} (`hookonce guide {topic}`)"
    if target.startswith("#"):
        return text
    if target.startswith(_REPOSITORY):
        target = re.sub(r"^(\.\./)+", "", target) + " in the repository"
    return text if text == target else f"{text} ({target})"
