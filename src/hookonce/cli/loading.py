"""What commands are given: receivers by name, secrets by environment or file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

import click

from hookonce import Receiver
from hookonce.errors import SecretError
from hookonce.verification.providers import (
    SECRETS_VARIABLE,
    EnvironmentSecrets,
    FileSecrets,
    read_environment,
)
from hookonce.verification.secrets import new_secret, secret_lines

from .output import system_fault

__all__ = [
    "import_named",
    "load_receiver",
    "load_secrets",
    "secrets_option",
    "stand_in_secrets",
    "unchecked_secrets",
]

secrets_option = click.option(
    "--secrets-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"Read the secrets from this file, one a line, instead of from ${SECRETS_VARIABLE}.",
)


def load_secrets(path: Path | None) -> tuple[str, ...]:
    """Return the configured secrets, newest first, or end with what is wrong."""
    try:
        return (EnvironmentSecrets() if path is None else FileSecrets(path)).current()
    except SecretError as error:
        raise click.ClickException(str(error)) from None


def unchecked_secrets(path: Path | None) -> tuple[str, ...]:
    """Return the configured secrets as they are, usable or not."""
    if path is None:
        return read_environment()
    # What is not UTF-8 becomes a secret that cannot be used, and the diagnosis says so.
    return secret_lines(path.read_text("utf-8", "replace"))


@contextmanager
def stand_in_secrets() -> Iterator[None]:
    """Let a module be imported that takes its secrets from the environment, where none are needed.

    Those that are set stay.
    """
    before = os.environ.get(SECRETS_VARIABLE)
    if before:
        yield
        return
    os.environ[SECRETS_VARIABLE] = new_secret()
    try:
        yield
    finally:
        del os.environ[SECRETS_VARIABLE]
        if before is not None:
            os.environ[SECRETS_VARIABLE] = before


def load_receiver(name: str) -> Receiver:
    """Return the receiver that ``MODULE:NAME`` names, or end with what is wrong."""
    try:
        receiver = import_named(name)
    except LookupError as error:
        raise click.ClickException(str(error.args[0])) from None
    except SecretError as error:
        raise click.ClickException(f"{name.partition(':')[0]} cannot start: {error}") from None
    except OSError as error:
        module_name = name.partition(":")[0]
        raise click.ClickException(
            f"{module_name} cannot start: {system_fault(error)}; python -c 'import {module_name}'"
            " shows where it comes from"
        ) from error
    if isinstance(receiver, Receiver):
        return receiver
    module_name, _, attribute = name.partition(":")
    raise click.ClickException(
        f"{attribute!r} in {module_name} is of the type {type(receiver).__name__}, not Receiver"
    )


def import_named(name: str) -> object:
    """Return what ``MODULE:NAME`` names; what the module raises passes.

    Modules are looked for in the current folder too, as ``python -m`` does, and as there not where
    ``PYTHONSAFEPATH`` is set: a folder that is written to is no place for them.

    Raises:
        LookupError: there is nothing of that name; the text says so.

    """
    module_name, colon, attribute = name.partition(":")
    if not (all(module_name.split(".")) and colon and attribute):
        raise LookupError(
            f"{name!r} does not name a receiver; write MODULE:NAME, for example app.hooks:receiver"
        )
    with suppress(FileNotFoundError):  # somebody has removed it
        if not sys.flags.safe_path and (folder := os.getcwd()) not in sys.path:
            sys.path.insert(0, folder)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise LookupError(f"there is no module {module_name!r} here") from None
    named: object = getattr(module, attribute, None)
    if named is None:
        raise LookupError(f"there is no {attribute!r} in {module_name}")
    return named
