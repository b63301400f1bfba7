"""``hookonce guide`` shows the pages, and searches them."""

from pathlib import Path

import pytest

from cli.running import invoke, on_a_terminal
from hookonce.guide import page, reference

pytestmark = pytest.mark.sample(4, of="file")


def test_without_a_topic_the_index_is_shown_and_names_the_command_of_each_page() -> None:
    result = invoke("guide")
    assert (result.status, result.errors) == (0, "")
    assert "(`hookonce guide stores`)" in result.output
    assert ".md)" not in result.output


@pytest.mark.parametrize("topic", ["stores", "stores.md"])
def test_a_topic_shows_its_page(topic: str) -> None:
    result = invoke("guide", topic)
    assert (result.status, result.output) == (0, page("stores").printed)


def test_api_lists_every_public_name() -> None:
    result = invoke("guide", "api")
    assert (result.status, result.output) == (0, reference())


def test_an_unknown_topic_is_answered_with_the_nearest_one() -> None:
    invoke("guide", "store").says("no page 'store'; did you mean 'stores'?", status=2)


def test_a_search_shows_lines_with_their_page_and_heading() -> None:
    result = invoke("guide", "--search", "SYNCHRONOUS full")
    assert result.status == 0
    assert result.output.startswith("stores: ")
    assert "synchronous=FULL" in result.output


def test_a_search_can_cover_one_page() -> None:
    assert invoke("guide", "stores", "--search", "synchronous full").status == 0
    invoke("guide", "handlers", "--search", "synchronous full").says("does not mention")


def test_a_search_without_a_hit_says_so() -> None:
    invoke("guide", "--search", "no such words").says("does not mention 'no such words'")


def test_on_a_terminal_a_long_page_goes_through_a_pager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged\ncat\n")
    pager.chmod(0o755)
    monkeypatch.setenv("PAGER", str(pager))
    printed = on_a_terminal("guide", "stores", here=tmp_path)
    assert printed.startswith("paged")
    assert "\x1b[1" in printed, "it is formatted"
    assert "```" not in printed
