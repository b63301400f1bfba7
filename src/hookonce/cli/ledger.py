"""``hookonce ledger``: the tables of a ledger in the user's own database."""

from __future__ import annotations

import click

from hookonce.effects import DIALECTS, TABLE, create_sql


@click.group()
def ledger() -> None:
    """Help with ledgers: effects committed once, in your own database."""


@ledger.command()
@click.option(
    "--dialect",
    type=click.Choice(DIALECTS),
    required=True,
    help="The dialect of SQL; mysql is MariaDB's too.",
)
@click.option(
    "--table",
    default=TABLE,
    show_default=True,
    help="The name of the first, as the ledger is given it.",
)
def sql(dialect: str, table: str) -> None:
    """Print the statements that make a ledger's tables, for a migration."""
    try:
        click.echo(create_sql(dialect, table), nl=False)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--table") from None
