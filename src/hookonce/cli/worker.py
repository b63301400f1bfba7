"""``hookonce worker``: handles the events in a receiver's inbox, outside the web server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext

import click

from hookonce import Receiver
from hookonce.logs import get_logger

from .collecting import collect_rarely
from .ending import end_seconds_of, end_with_its_threads, ended_by_signals
from .listeners import bound, url_of
from .loading import factory_option, load_receivers, logged_fault
from .logs import log_options, start_logging
from .metrics import metrics_address_option, serving_metrics, supervised_with_metrics
from .statuses import CannotBegin
from .stores import run
from .supervisor import Member, processes_option, supervised

_log = get_logger("hookonce")


@click.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
@processes_option
@metrics_address_option
@log_options
@factory_option
def worker(
    receiver: str,
    processes: int,
    metrics_address: tuple[str, int] | None,
    log_level: str,
    log_format: str,
    *,
    log_tracebacks: bool,
    factory: bool,
) -> None:
    """Handle the events in the inbox of MODULE:RECEIVER until SIGTERM or Ctrl-C.

    MODULE:APP, or MODULE:RECEIVERS, names several receivers; the worker serves each that has an
    inbox.

    You can run several workers: on one machine with SQLite, on many with PostgreSQL or Redis. At
    the first SIGTERM or Ctrl-C the worker fetches no more events, lets running handlers finish
    within the receiver's Limits.drain_seconds, and releases the rest. The second signal kills it;
    the events that it was handling are free again when their leases end.

    With --processes, signals reach all processes. A process that cannot start, or that dies again
    and again, ends the command.

    For example: hookonce worker app.hooks:receiver
    """
    start_logging(log_level, log_format, every_traceback=log_tracebacks)
    listeners = bound(*metrics_address) if metrics_address is not None else []
    if listeners:
        for listener in listeners:
            listener.listen()  # a client of the announced address waits instead of being refused
        _log.info("metrics at %s/metrics", url_of(listeners))
    member = None
    if processes > 1:
        begin = supervised_with_metrics if listeners else supervised
        member = begin(processes, f"{receiver} working", listeners)
    targets = [one for one in load_receivers(receiver, factory=factory) if one.has_inbox]
    if not targets:
        raise CannotBegin(
            f"{receiver} has no inbox: it handles events inside the request. For a worker, create"
            " it with Receiver(inbox=Inbox(embedded=False), …)"
        )
    # Configure the log again, because the imported module may have changed it.
    start_logging(log_level, log_format, every_traceback=log_tracebacks)
    collect_rarely()
    run(_work(targets, receiver, member, listeners))
    end_with_its_threads()


async def _work(
    receivers: Sequence[Receiver],
    name: str,
    member: Member | None,
    listeners: Sequence[socket.socket],
) -> None:
    is_ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    metrics = serving_metrics(receivers, listeners) if listeners else nullcontext()
    with ended_by_signals(
        lambda: loop.call_soon_threadsafe(is_ending.set), kills_at_second=member is None
    ):
        async with metrics:
            stacks: list[AsyncExitStack] = []
            try:
                for receiver in receivers:
                    stack = AsyncExitStack()
                    try:
                        await stack.enter_async_context(receiver.working())
                    except Exception as error:
                        raise CannotBegin(f"{name} cannot start: {logged_fault(error)}") from error
                    stacks.append(stack)
                    names = ", ".join(handler.name for handler in receiver.handlers) or "none"
                    _log.info("%s at endpoint %s, handlers: %s", name, receiver.endpoint, names)
                if member is not None:
                    member.report_ready(max(end_seconds_of(one.limits) for one in receivers))
                await is_ending.wait()
                if member is None:
                    _log.info(
                        "shutting down: running handlers may finish; a second signal kills them"
                    )
            # Close all receivers at once: otherwise some would fetch events while another drains.
            finally:
                await asyncio.gather(*(stack.aclose() for stack in stacks))
