"""``hookonce guide``: the pages of the guide, on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click
from rich.console import Console
from rich.markdown import Markdown

from hookonce.guide import INDEX, GuidePage, Hit, page, pages, search

from .statuses import Nothing

_WIDEST = 100
"""The largest width of text, in columns: longer lines are hard to read."""


@click.command()
@click.argument("topic", required=False)
@click.option(
    "--search", "words", metavar="WORDS", help="Show the lines that contain all these words."
)
def guide(topic: str | None, words: str | None) -> None:
    """Show a page of the guide, or its index.

    A terminal shows the page formatted, and a long page in a pager ($PAGER); elsewhere the command
    prints Markdown. The page "api" lists every public name with its signature. With TOPIC and
    --search, only that page is searched.

    For example: hookonce guide stores
    """
    chosen = None if topic is None else _page(topic)
    if words is not None:
        hits = [hit for hit in search(words) if chosen is None or hit.topic == chosen.topic]
        if not hits:
            raise Nothing(f"the guide does not mention {words!r}")
        _print_hits(hits)
        return
    _print_page(chosen or page(INDEX))


def _page(topic: str) -> GuidePage:
    try:
        return page(topic.removesuffix(".md"))
    except LookupError:
        known = [*(one.topic for one in pages()), "api"]
        near = get_close_matches(topic, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the pages are {', '.join(known)}"
        raise click.BadParameter(
            f"the guide has no page {topic!r}; {hint}", param_hint="TOPIC"
        ) from None


def _print_page(one: GuidePage) -> None:
    console = Console()
    if not console.is_terminal:
        click.echo(one.printed, nl=False)
        return
    console.width = min(console.width, _WIDEST)
    with console.capture() as captured:
        console.print(Markdown(one.printed))
    text = captured.get()
    if text.count("\n") < console.height:
        click.echo(text, nl=False, color=True)
    else:
        click.echo_via_pager(text, color=True)


def _print_hits(hits: Iterable[Hit]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for hit in hits:
        console.print(f"{hit.topic}: {hit.heading}", style="bold", markup=False)
        if hit.line != hit.heading:
            console.print(f"    {hit.line}", markup=False)
