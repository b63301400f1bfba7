"""The option ``--sender`` of the commands that sign or verify without a receiver.

Commands that load ``MODULE:RECEIVER`` do not have this option: they use the receiver's sender.
"""

from __future__ import annotations

from difflib import get_close_matches

import click

from hookonce.senders import Sender
from hookonce.senders.built_in import BUILT_IN

from .loading import NotFound, imported, stand_in_secrets
from .output import Option

_NAMES = ", ".join(BUILT_IN)


def _named(_: click.Context, __: click.Parameter, text: str) -> Sender:
    """Return the sender of a name or of ``MODULE:NAME``, or exit with a usage error."""
    if text in BUILT_IN:
        return BUILT_IN[text]
    module, _colon, attribute = text.partition(":")
    if not (all(module.split(".")) and all(attribute.split("."))):
        likely = get_close_matches(text.lower(), BUILT_IN, n=1)
        hint = f" (did you mean {likely[0]!r}?)" if likely else ""
        raise click.BadParameter(f"{text!r} is no sender{hint}; write {_NAMES}, or MODULE:NAME")
    try:
        with stand_in_secrets():
            named = imported(text)
    except NotFound as error:
        raise click.BadParameter(f"{error}; built in are {_NAMES}") from None
    if isinstance(named, Sender):
        return named
    has_one = isinstance(getattr(named, "sender", None), Sender)
    fix = f"write {text}.sender" if has_one else f"built in are {_NAMES}"
    raise click.BadParameter(f"{text} is of type {type(named).__name__}, not a Sender; {fix}")


def _names(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    return [name for name in BUILT_IN if name.startswith(begun)]


sender_option: Option = click.option(
    "--sender",
    default="publishing",
    show_default=True,
    metavar="SENDER",
    callback=_named,
    shell_complete=_names,
    help=f"Who sends: {_NAMES}, or MODULE:NAME for a sender of your own, such as app:acme or"
    " app:receiver.sender.",
)
