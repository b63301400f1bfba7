"""``hookonce worker``: handles what a receiver has stored, in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import click

from hookonce import Receiver
from hookonce.logs import get_logger

from .collecting import collect_rarely
from .ending import end_seconds_of, end_with_its_threads, ended_by_signals
from .loading import factory_option, load_receivers
from .logs import log_options, start_logging
from .statuses import CannotBegin
from .stores import run
from .supervisor import Member, processes_option, supervised

_log = get_logger("hookonce")


@click.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
@processes_option
@log_options
@factory_option
def worker(
    receiver: str, processes: int, log_level: str, log_format: str, *, factory: bool
) -> None:
    """Handle what waits in the inbox of MODULE:RECEIVER, until SIGTERM or Ctrl-C.

    Where several receivers are named, by MODULE:APP or MODULE:RECEIVERS, it works for all of them
    that have an inbox.

    Start as many as you like, on one machine with SQLite, on many with Redis. At the first signal
    it takes nothing more, lets running handlers end within the receiver's Limits.drain_seconds, and
    releases the rest. At the second it ends at once; what it was at is free when its lease is over.
    With --processes signals reach all of them; what cannot start, or dies again and again, ends the
    command with its message.

    For example: hookonce worker app.hooks:receiver
    """
    start_logging(log_level, log_format)
    member = None
    if processes > 1:
        member = supervised(processes, f"{receiver} at work")
    targets = [one for one in load_receivers(receiver, factory=factory) if one.has_inbox]
    if not targets:
        raise CannotBegin(
            f"{receiver} has no inbox to work on: it handles events inside the request; create it"
            " with Receiver(inbox=Inbox(embedded=False), …)"
        )
    start_logging(log_level, log_format)  # again: the module may have its own way
    collect_rarely()
    run(_work(targets, receiver, member))
    end_with_its_threads()


async def _work(receivers: Sequence[Receiver], name: str, member: Member | None) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    with ended_by_signals(lambda: loop.call_soon_threadsafe(asked.set), at_once=member is None):
        stacks: list[AsyncExitStack] = []
        try:
            for receiver in receivers:
                stack = AsyncExitStack()
                await stack.enter_async_context(receiver.working())
                stacks.append(stack)
                names = ", ".join(handler.name for handler in receiver.handlers) or "none"
                _log.info("%s at endpoint %s, handlers: %s", name, receiver.endpoint, names)
            if member is not None:
                member.is_at_work(max(end_seconds_of(one.limits) for one in receivers))
            await asked.wait()
            if member is None:
                _log.info("ending: running handlers may finish; a second signal ends at once")
        finally:  # at the same time: one that drains must not keep the next at work
            await asyncio.gather(*(stack.aclose() for stack in stacks))
