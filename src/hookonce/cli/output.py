"""How commands print: styled on a terminal, plain lines elsewhere, NDJSON with ``--json``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import IO, Any, TypeAlias

import click
from rich.console import Console
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column, Table
from rich.text import Text

from hookonce.logs import printable

# The smallest width of the last column, which usually shows an error.
_LEAST_LAST = 16

LAYOUT = "\n\t"
"""Control characters that are printed as they are, not escaped."""

_RECORDS = f"{__name__}.records"
"""The key in a click context's ``meta`` for the output file of JSON records."""


@contextmanager
def _apart() -> Iterator[IO[str]]:
    """Yield standard output for records; redirect all other output to standard error.

    User modules and handlers may print. If standard output has a file descriptor, the output of the
    programs that they start goes to standard error too.
    """
    own = sys.stdout
    with ExitStack() as stack:
        try:
            number, other = own.fileno(), sys.stderr.fileno()
        except (OSError, AttributeError):  # standard output has no file descriptor
            stack.enter_context(redirect_stdout(sys.stderr))
            yield own
            return
        own.flush()
        kept = os.dup(number)
        stack.callback(os.close, kept)
        records = stack.enter_context(open(kept, "w", encoding="ascii", closefd=False))
        stack.callback(os.dup2, kept, number)
        os.dup2(other, number)
        stack.callback(own.flush)
        stack.enter_context(redirect_stdout(sys.stderr))
        yield records


def _for_programs(context: click.Context, _: click.Parameter, as_json: bool) -> bool:
    if as_json and not context.resilient_parsing:
        context.meta[_RECORDS] = context.with_resource(_apart())
    return as_json


Option: TypeAlias = Callable[[Any], Any]
"""A decorator that adds an option to a command."""

json_option: Option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    callback=_for_programs,
    help="Print one JSON object per line, for programs.",
)


def together(*options: Option) -> Option:
    """Return one decorator that adds several options to a command."""

    def decorated(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


class Output:
    """Prints records: styled lines for people, or NDJSON for programs.

    It prints no control characters but tabs and line ends, whatever a sender wrote.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        context = click.get_current_context(silent=True)
        self._file: IO[str] | None = None if context is None else context.meta.get(_RECORDS)
        self._console = _Console(highlight=False, soft_wrap=True)

    def record(self, record: Mapping[str, Any], line: str | None, style: str = "") -> None:
        """Print the record if ``--json`` is set, else the line; do not print a line of None."""
        if self._as_json:
            self._print_json(record)
        elif line is not None:
            self._print(line, style)

    def say(self, line: str = "", style: str = "") -> None:
        """Print a line of text; ``--json`` suppresses it."""
        if not self._as_json:
            self._print(line, style)

    def table(
        self, records: Sequence[Mapping[str, Any]], columns: Mapping[str, str], nothing: str
    ) -> None:
        """Print records as a table, or as one JSON object per line.

        Args:
            columns: the heading of each column by the name of its field.
            nothing: the line for people if there are no records.
        """
        if not records:
            self.say(nothing)
            return
        if self._as_json:
            for record in records:
                self._print_json(record)
            return
        if not self._console.is_terminal:
            for record in records:
                click.echo("\t".join(one_line(record[name]) for name in columns))
            return
        rows = [{name: one_line(record[name]) for name in columns} for record in records]
        widths = [max(len(row[name]) for row in rows) for name in columns]
        if sum(widths[:-1]) + 2 * len(widths) + _LEAST_LAST > self._console.width:
            self._stack(rows, columns)
            return
        # Only the last column may wrap.
        headings = (
            Column(heading, overflow="fold", no_wrap=name != [*columns][-1])
            for name, heading in columns.items()
        )
        table = Table(*headings, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(value) for value in row.values()))
        self._console.print(table)

    def _stack(self, rows: Sequence[Mapping[str, str]], columns: Mapping[str, str]) -> None:
        """Print rows that are too wide for a table, each on several lines."""
        first = next(iter(columns))
        for row in rows:
            head = [value for name in (first, "id", "type") if (value := row.get(name))]
            self._console.print(Text("  ".join(head)), soft_wrap=False)
            rest = Text()
            for name, heading in columns.items():
                if name not in {first, "id", "type"} and row[name]:
                    rest.append(f"{heading} ", "bold").append(f"{row[name]}  ")
            self._console.print(Padding(rest, (0, 0, 0, 4)), soft_wrap=False)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[int, int | None], None] | None]:
        """Show a progress bar during the block if standard output is a terminal.

        Yields a function that takes the finished and the total count (None if unknown), or None
        if there is no bar. Lines that are printed in the block appear above the bar.
        """
        if self._as_json or not self._console.is_terminal:
            yield None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(
            *columns, TimeElapsedColumn(), console=self._console, transient=True
        ) as progress:
            task = progress.add_task(what, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    def _print_json(self, record: Mapping[str, Any]) -> None:
        # ASCII only: json escapes every character that could end a line or move the cursor.
        click.echo(json.dumps(record, default=str), file=self._file)

    def _print(self, line: str, style: str) -> None:
        self._console.print(Text(printable(line, keep=LAYOUT), style=style))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error again: otherwise rich would end the process in the middle of a task."""
        raise  # noqa: PLE0704 - rich calls this in its except block


def one_line(value: object) -> str:
    """Return a value as one line of printable text."""
    text = "" if value is None else str(value)
    return "".join(char if char.isprintable() else " " for char in text)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def system_fault(error: OSError) -> str:
    """Return the message of a system error, with the file's name."""
    what = error.strerror or type(error).__name__
    return what if error.filename is None else f"{what}: {str(error.filename)!r}"


def size_text(count: int) -> str:
    """Return a number of bytes in the largest fitting unit."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB"]
    unit = units.pop(0)
    while size >= 1024 and units:
        size, unit = size / 1024, units.pop(0)
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
