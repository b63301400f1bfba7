"""The command group, and the small commands."""

from __future__ import annotations

import errno
import os
import sys
from http import HTTPStatus

import click
import httpx2

from hookonce import __version__
from hookonce.verification.loggers import printable
from hookonce.verification.secrets import new_secret

from .chaos import chaos
from .dead import dead
from .demo import demo
from .doctor import doctor
from .emulate import emulate
from .inbox import inbox
from .output import LAYOUT, Output, system_fault
from .send import send
from .serve import DEFAULT_PORT, serve
from .verify import explain, verify
from .worker import worker

__all__ = ["cli"]


class _Commands(click.Group):
    """Ends in one line where the system refuses something, and shows no text as it came."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Final, for it is not meant to change; but there is no other place for all of them.
            error.message = printable(error.message, keep=LAYOUT)  # type: ignore[misc]
            raise
        except (OSError, ExceptionGroup) as error:
            refused = _refused(error)
            if refused is None:
                raise
            if refused.errno == errno.EPIPE:  # nobody reads any more, which click knows how to end
                raise refused from None
            _forget_output()
            raise click.ClickException(printable(system_fault(refused), keep=LAYOUT)) from error


def _refused(error: Exception) -> OSError | None:
    """Return what the system has refused, where that is all there is; several tasks may print."""
    if isinstance(error, ExceptionGroup):
        refused = [_refused(one) for one in error.exceptions]
        return refused[0] if all(refused) else None
    return error if isinstance(error, OSError) else None


def _forget_output() -> None:
    """Let go what a full disk has not taken: the interpreter would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hookonce")
def cli() -> None:
    """Receive signed webhooks: every hook, once; none lost.

    Secrets come from the environment variable HOOKONCE_SECRETS (several with spaces between, newest
    first) or from a file with one a line, never from the command line. The URL of a store, which
    may have a password in it, can come from HOOKONCE_STORE or a file as well.
    """


@cli.command()
def secret() -> None:
    """Print a new signing secret (whsec_…)."""
    click.echo(new_secret())


@cli.command()
@click.argument("url", required=False)
def health(url: str | None) -> None:
    """Ask a running server for its health; exit 0 if it is well.

    URL is http://127.0.0.1:$PORT/livez by default, with port 8000 where PORT is not set. Made for a
    container's HEALTHCHECK.
    """
    url = url or f"http://127.0.0.1:{os.environ.get('PORT') or DEFAULT_PORT}/livez"
    try:
        # A proxy in the environment is for the way out of the machine.
        response = httpx2.get(url, timeout=3.0, trust_env=False)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise click.ClickException(f"{url} does not answer: {error}") from error
    Output(as_json=False).say(response.text)
    if response.status_code != HTTPStatus.OK:
        raise SystemExit(1)


for command in (chaos, dead, demo, doctor, emulate, explain, inbox, send, serve, verify, worker):
    cli.add_command(command)
