"""``hookonce secret``: a new secret, or a new key pair."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from hookonce.errors import SecretError
from hookonce.verification.secrets import KeyPair, new_key_pair, new_secret, secret_lines

from .output import system_fault
from .statuses import CannotBegin


@click.command()
@click.option(
    "--private-key",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a new private key (whsk_…) into this file, which only its owner can read, and print"
    " its public key (whpk_…). If the file has a private key already, print its public key.",
)
def secret(file: Path | None) -> None:
    """Print a new signing secret (whsec_…), or the public key of a key pair (whpk_…)."""
    click.echo(new_secret() if file is None else _public_key(file))


def _public_key(file: Path) -> str:
    """Return the public key of the private key in a file; make a key pair if there is no file."""
    try:
        if not file.exists():
            pair = new_key_pair()
            with open(file, "x", opener=partial(os.open, mode=0o600)) as new:
                new.write(f"{pair.private}\n")
            return pair.public
        keys = secret_lines(file.read_text("utf-8", "replace"))
        if len(keys) != 1:
            raise CannotBegin(f"{str(file)!r} must hold one private key (whsk_…), and nothing else")
        return KeyPair.of(keys[0]).public
    except SecretError as error:
        raise CannotBegin(f"{str(file)!r}: {error}") from None
    except OSError as error:
        raise CannotBegin(f"{str(file)!r}: {system_fault(error)}") from None
