"""How commands print: rich on a terminal, plain lines elsewhere, NDJSON on demand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Output", "json_option"]

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line, for programs."
)


class Output:
    """Prints records: styled lines for people, or NDJSON for programs.

    Args:
        as_json: print NDJSON.

    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)

    def record(self, record: Mapping[str, Any], line: str, style: str = "") -> None:
        """Print one record: as JSON, or as the line that says the same to a person."""
        if self._as_json:
            click.echo(json.dumps(record, ensure_ascii=False, default=str))
        else:
            self._console.print(Text(line, style=style))

    def say(self, line: str = "", style: str = "") -> None:
        """Print a line for people; programs do not get it."""
        if not self._as_json:
            self._console.print(Text(line, style=style))

    def table(self, records: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
        """Print records as a table, or one JSON object a line.

        Args:
            records: what to print.
            columns: the heading of each column by the name of its field.

        """
        if self._as_json:
            for record in records:
                click.echo(json.dumps(record, ensure_ascii=False, default=str))
            return
        if not self._console.is_terminal:
            for record in records:
                click.echo("\t".join(_cell(record[name]) for name in columns))
            return
        table = Table(*columns.values(), box=None, pad_edge=False)
        for record in records:
            table.add_row(*(Text(_cell(record[name])) for name in columns))
        self._console.print(table)


def _cell(value: object) -> str:
    """Return text for one cell; what a sender wrote cannot move the cursor or add lines."""
    text = "" if value is None else str(value)
    return "".join(char if char.isprintable() else " " for char in text)
