"""``hookonce worker``: handles what a receiver has stored, in a process of its own."""

from __future__ import annotations

import asyncio
import logging.config

import click

from hookonce import Receiver
from hookonce.verification.loggers import get_logger

from .collecting import collect_rarely
from .ending import end_with_its_threads, ended_by_signals
from .loading import load_receiver
from .logs import LOG_CONFIG
from .stores import run

__all__ = ["worker"]

_log = get_logger("hookonce")


@click.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
def worker(receiver: str) -> None:
    """Handle what waits in the inbox of MODULE:RECEIVER, until SIGTERM or Ctrl-C.

    Start as many as you like, on one machine with SQLite, on many with Redis. At the first signal
    it takes nothing more, lets running handlers end within the receiver's Limits.drain_seconds, and
    releases the rest. At the second it ends at once; what it was at is free when its lease is over.

    For example: hookonce worker app.hooks:receiver
    """
    target = load_receiver(receiver)
    if not hasattr(target, "inbox"):
        raise click.ClickException(
            f"{receiver} has no inbox to work on: it handles events inside the request; create it"
            " with Receiver(inbox=Inbox(embedded=False), …)"
        )
    logging.config.dictConfig(LOG_CONFIG)
    collect_rarely()
    run(_work(target, receiver))
    end_with_its_threads()


async def _work(receiver: Receiver, name: str) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    with ended_by_signals(lambda: loop.call_soon_threadsafe(asked.set)):
        async with receiver.working():
            names = ", ".join(handler.name for handler in receiver.handlers) or "none"
            _log.info("%s at endpoint %s, handlers: %s", name, receiver.endpoint, names)
            await asked.wait()
            _log.info("ending: running handlers may finish; a second signal ends at once")
