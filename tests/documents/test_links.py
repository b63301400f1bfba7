"""Every link leads somewhere, and every page can be found from the index."""

from pathlib import Path

import pytest

from documents.reading import (
    DOCUMENTS,
    GUIDE,
    IN_SDIST,
    NOT_IN_SDIST,
    ROOT,
    anchors,
    headings,
    links,
    name_of,
)
from hookonce.guide import INDEX, page, pages, topics

PAGES = [path for path in sorted(GUIDE.glob("*.md")) if path.stem != INDEX]
INDEXES = [GUIDE / "README.md", GUIDE / "llms.txt"]


@pytest.mark.parametrize("path", [*DOCUMENTS, GUIDE / "llms.txt"], ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(path: Path) -> None:
    for link in links(path):
        if link.target.startswith("https://"):
            continue
        where = f"{name_of(path)}:{link.line}: {link.target}"
        file, _, anchor = link.target.partition("#")
        target = (path.parent / file).resolve() if file else path
        if IN_SDIST and any(target.is_relative_to(one) for one in NOT_IN_SDIST):
            continue
        assert target.exists(), where
        assert ROOT in [target, *target.parents], f"{where} leads out of the repository"
        if anchor:
            assert anchor in anchors(target), f"{where}: there is no such heading"


@pytest.mark.parametrize("path", NOT_IN_SDIST, ids=name_of)
def test_files_that_the_sdist_leaves_out_are_in_the_repository(path: Path) -> None:
    assert path.exists() is not IN_SDIST


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_begins_with_its_title_and_says_at_once_what_it_is_for(path: Path) -> None:
    first, blank, says = path.read_text("utf-8").split("\n")[:3]
    assert first.startswith("# ")
    assert blank == ""
    assert says, "a sentence about the page comes first"
    assert not says.startswith(("#", "```", "- ", "|"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_headings_skip_no_level(path: Path) -> None:
    level = 0
    for deeper, text in headings(path):
        assert deeper <= level + 1, f"{name_of(path)}: {text}"
        level = deeper


@pytest.mark.parametrize("index", INDEXES, ids=name_of)
def test_an_index_names_every_page_once_by_its_title(index: Path) -> None:
    """A new page needs a line in both indexes: README.md for people, llms.txt for programs."""
    named = [
        (link.text, link.target) for link in links(index) if (GUIDE / link.target).parent == GUIDE
    ]
    there = [(page(path.stem).title, path.name) for path in PAGES]
    assert sorted(named) == sorted(there)


def test_both_indexes_describe_each_page_in_the_same_words() -> None:
    people, programs = (
        {line for line in index.read_text("utf-8").splitlines() if line.startswith("- [")}
        for index in INDEXES
    )
    assert people <= programs


def test_the_order_of_pages_is_that_of_the_index() -> None:
    named = [link.target.removesuffix(".md") for link in links(INDEXES[0])]
    assert topics() == [name for name in named if name in {path.stem for path in PAGES}]
    assert [one.topic for one in pages()] == topics()


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 220


def test_every_page_is_two_clicks_from_the_first_page_at_the_most() -> None:
    def reached(path: Path) -> set[Path]:
        found = {(path.parent / link.target.partition("#")[0]).resolve() for link in links(path)}
        return {file for file in found if file.suffix == ".md" and file.exists()}

    once = reached(ROOT / "README.md")
    twice = once.union(*(reached(path) for path in once))
    documents = {path for path in DOCUMENTS if path.name != "CHANGELOG.md"}
    assert documents - {ROOT / "README.md"} <= twice


@pytest.mark.parametrize(
    ("page_name", "heading"),
    [
        ("deployment", "deploy-on-kubernetes"),
        ("secrets", "rotate-a-secret-without-downtime"),
        ("stores", "choose-a-store"),
        ("stores", "restore-a-backup"),
        ("dead-letters", "replay-dead-letters"),
        ("testing", "test-that-an-event-is-handled-once"),
        ("troubleshooting", "find-out-why-a-signature-fails"),
    ],
)
def test_the_readme_links_to_the_most_wanted_pages(page_name: str, heading: str) -> None:
    targets = {link.target for link in links(ROOT / "README.md")}
    assert f"src/hookonce/guide/{page_name}.md#{heading}" in targets
