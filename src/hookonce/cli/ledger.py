"""``hookonce ledger``: the SQL for a ledger's tables in the user's own database."""

from __future__ import annotations

import click

from hookonce.effects import DIALECTS, TABLE, create_sql


@click.group()
def ledger() -> None:
    """Print the SQL for ledgers, which commit effects once in your own database."""


@ledger.command()
@click.option(
    "--dialect",
    type=click.Choice(DIALECTS),
    required=True,
    help="The SQL dialect; use mysql for MariaDB too.",
)
@click.option(
    "--table",
    default=TABLE,
    show_default=True,
    help="The name of the ledger's first table, as in its constructor.",
)
def sql(dialect: str, table: str) -> None:
    """Print the statements that create a ledger's tables, for a migration."""
    try:
        click.echo(create_sql(dialect, table), nl=False)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--table") from None
