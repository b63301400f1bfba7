"""``hookonce worker``: handles what a receiver has stored, in a process of its own."""

from __future__ import annotations

import asyncio
import logging.config

import click

from hookonce import Receiver
from hookonce.verification.loggers import get_logger

from .collecting import collect_rarely
from .ending import end_seconds_of, end_with_its_threads, ended_by_signals
from .loading import load_receiver
from .logs import LOG_CONFIG
from .stores import run
from .supervisor import Member, supervised

__all__ = ["worker"]

_log = get_logger("hookonce")


@click.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
@click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="How many processes work; with more than one, another starts them again when they die.",
)
def worker(receiver: str, processes: int) -> None:
    """Handle what waits in the inbox of MODULE:RECEIVER, until SIGTERM or Ctrl-C.

    Start as many as you like, on one machine with SQLite, on many with Redis. At the first signal
    it takes nothing more, lets running handlers end within the receiver's Limits.drain_seconds, and
    releases the rest. At the second it ends at once; what it was at is free when its lease is over.
    With --processes signals reach all of them; what cannot start, or dies again and again, ends the
    command with its message.

    For example: hookonce worker app.hooks:receiver
    """
    member = None
    if processes > 1:
        logging.config.dictConfig(LOG_CONFIG)
        member = supervised(processes, f"{receiver} at work")
    target = load_receiver(receiver)
    if not hasattr(target, "inbox"):
        raise click.ClickException(
            f"{receiver} has no inbox to work on: it handles events inside the request; create it"
            " with Receiver(inbox=Inbox(embedded=False), …)"
        )
    logging.config.dictConfig(LOG_CONFIG)
    collect_rarely()
    run(_work(target, receiver, member))
    end_with_its_threads()


async def _work(receiver: Receiver, name: str, member: Member | None) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    with ended_by_signals(lambda: loop.call_soon_threadsafe(asked.set), at_once=member is None):
        async with receiver.working():
            if member is not None:
                member.is_at_work(end_seconds_of(receiver.limits))
            names = ", ".join(handler.name for handler in receiver.handlers) or "none"
            _log.info("%s at endpoint %s, handlers: %s", name, receiver.endpoint, names)
            await asked.wait()
            if member is None:
                _log.info("ending: running handlers may finish; a second signal ends at once")
