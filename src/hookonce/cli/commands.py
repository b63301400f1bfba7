"""The command group."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from keyword import iskeyword

import click

from hookonce import __version__
from hookonce.logs import printable

from .output import LAYOUT, system_fault
from .statuses import CannotBegin, Status

# Each module is imported when its command is called, because all imports together are slow.
_MODULES = (
    *("chaos", "dead", "demo", "doctor", "emulate", "endpoints", "guide", "handled", "handlers"),
    *(
        "health",
        "inbox",
        "ledger",
        "listen",
        "reconcile",
        "secret",
        "send",
        "serve",
        "store",
        "try",
        "verify",
        "worker",
    ),
)
"""The modules with the commands; each command has the name of its module.

The module and the function of ``try`` have an underscore after the name, which is a keyword."""


class _Commands(click.Group):
    """A command group that prints a system error as one line, and escapes control characters."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_MODULES])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(import_module(f".{name}", __package__), name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Escape control characters here, because every message of click passes through here.
            # The type: ignore is needed because click declares `message` final.
            error.message = printable(error.message, keep=LAYOUT)  # type: ignore[misc]
            raise
        except KeyboardInterrupt:
            raise SystemExit(Status.INTERRUPTED) from None
        except (OSError, ExceptionGroup) as error:
            refused = _refused(error)
            if refused is None:
                raise
            # click handles a closed pipe: it ends the command without a message.
            if refused.errno == errno.EPIPE:
                raise refused from None
            _forget_output()
            raise CannotBegin(printable(system_fault(refused), keep=LAYOUT)) from error


def _refused(error: Exception) -> OSError | None:
    """Return the system error, possibly from an exception group; None for any other error."""
    if isinstance(error, ExceptionGroup):
        refused = [_refused(one) for one in error.exceptions]
        return refused[0] if all(refused) else None
    return error if isinstance(error, OSError) else None


def _forget_output() -> None:
    """Drop output that a full disk rejected: the interpreter would write it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hookonce")
def cli() -> None:
    """Receive signed webhooks: every hook, once; none lost.

    Secrets come from the environment variable HOOKONCE_SECRETS (newest first, separated by spaces)
    or from a file (one per line), never from the command line. The URL of a store may contain a
    password, and can also come from HOOKONCE_STORE or from a file.
    """
