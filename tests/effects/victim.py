"""The worker that the tests kill: it writes an effect per event, with or without a ledger."""

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# Under pytest, `pythonpath` allows the imports below. This program needs the same path.
sys.path.insert(0, str(Path(__file__).parents[1]))

from support.deliveries import receiver_on

from effects.benches import ON_POSTGRES, ON_SQLITE
from hookonce import Inbox, Receiver
from hookonce.effects.ledger import is_async_ledger
from hookonce.errors import LedgerError, StoreError
from hookonce.events import CommentReceived

_LONGEST_SECONDS = 0.004
"""A handler's longest pause after its effect, so that a kill may come before the record."""


def key_of(event: CommentReceived) -> str:
    return f"{event.id} {event.data.text}"


def channel_of(event: CommentReceived) -> str:
    return event.data.text.split()[1]


def handler_within(parts: dict[str, Any]) -> Callable[..., Any]:
    """Return a handler that lets the ledger commit."""

    async def work(event: CommentReceived, transaction: Any) -> None:
        await parts["write"](transaction, key_of(event))
        say("wrote")
        await asyncio.sleep(random.uniform(0, _LONGEST_SECONDS))

    def work_in_a_thread(event: CommentReceived, transaction: Any) -> None:
        parts["write"](transaction, key_of(event))
        say("wrote")
        time.sleep(random.uniform(0, _LONGEST_SECONDS))

    return work if is_async_ledger(parts["ledger"]) else work_in_a_thread


def handler_alone(parts: dict[str, Any]) -> Callable[..., Any]:
    """Return a handler that commits its own transaction, and writes no row of a ledger."""
    ledger = parts["ledger"]

    async def work(event: CommentReceived) -> None:
        async with ledger.transaction() as transaction:
            await parts["write"](transaction, key_of(event))
        say("wrote")
        await asyncio.sleep(random.uniform(0, _LONGEST_SECONDS))

    def work_in_a_thread(event: CommentReceived) -> None:
        with ledger.transaction() as transaction:
            parts["write"](transaction, key_of(event))
        say("wrote")
        time.sleep(random.uniform(0, _LONGEST_SECONDS))

    return work if is_async_ledger(ledger) else work_in_a_thread


async def main(name: str, how: str, database: str, store: str) -> None:
    """Handle events until the inbox is empty."""
    inbox = Inbox(concurrency=8, max_attempts=10_000, backoff=0.02, embedded=False)
    receiver = receiver_on(store, inbox=inbox, lease_seconds=1.0)
    register: Callable[..., Any] = receiver.on
    async with {**ON_POSTGRES, **ON_SQLITE}[name](database, time.time) as parts:
        if how == "alone":
            register(CommentReceived, name="book")(handler_alone(parts))
        else:
            options: dict[str, Any] = {"latest_by": channel_of} if how == "latest" else {}
            on = register(CommentReceived, name="book", within=parts["ledger"], **options)
            on(handler_within(parts))
        while await _left(receiver):
            # While the database is down, the worker's check at the start fails: try again.
            with suppress(LedgerError, StoreError):
                await asyncio.sleep(0.01)
                async with receiver.working():
                    say("ready")
                    while await _left(receiver):  # noqa: ASYNC110 - the store cannot notify this process
                        await asyncio.sleep(0.02)


async def _left(receiver: Receiver) -> int:
    while True:
        with suppress(StoreError):  # the store may be in the database that is down
            async with receiver.opened():
                return (await receiver.stats()).depth
        await asyncio.sleep(0.02)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def fork(arguments: Sequence[str]) -> None:
    """Fork a worker for each line of standard input; a forked worker needs no time for imports."""
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(main(*arguments))
            os._exit(0)
        say(f"pid {pid}")
        _, status = os.waitpid(pid, 0)
        say(f"ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    fork(sys.argv[1:])
