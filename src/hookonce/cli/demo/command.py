"""The command: a server, a sender, what they show, and a clean end."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import click

from hookonce import Receiver
from hookonce.verification.secrets import new_secret

from ..ending import terminated_as_interrupted
from ..output import Output, json_option
from ..selecting import pages_of
from ..serve import service_app, serving
from ..statuses import Status
from ..stores import chosen_url, named_store, run, store_file_option
from .inbox import InboxDemo
from .inline import InlineDemo
from .log import HEADING, Log
from .sender import PATH, Sender


@click.command()
@click.option("--inbox", "with_inbox", is_flag=True, help="Store deliveries for a worker.")
@click.option(
    "--store",
    "store_url",
    metavar="STORE_URL",
    help="Use this store, such as redis://localhost:6379/0, and an endpoint of its own in it."
    " By default SQLite in a temporary folder.",
)
@store_file_option
@click.option("--keep", is_flag=True, help="Keep serving afterwards, for deliveries of your own.")
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="The loopback port to serve on; a free one by default.",
)
@json_option
def demo(
    store_url: str | None,
    store_file: Path | None,
    port: int,
    *,
    with_inbox: bool,
    keep: bool,
    as_json: bool,
) -> None:
    """Show the main job: real signed deliveries to a real server, and what became of each.

    With --inbox also what the worker's attempts lead to: retries, dead letters, and a replay.

    Exits 0 only if every outcome was the right one.
    """
    store_url = chosen_url(store_url, store_file)
    output = Output(as_json=as_json)
    # The library's own log would tell the same story in between.
    logging.getLogger("hookonce").setLevel(logging.CRITICAL + 1)
    with terminated_as_interrupted(), TemporaryDirectory(prefix="hookonce-demo-") as folder:
        stage = _Stage(Path(folder), store_url, output, with_inbox=with_inbox)
        right = run(stage.demonstrate(port, keep=keep))
    if not right:
        raise SystemExit(Status.FOUND)


class _Stage:
    """What a demonstration needs: secrets, a store, and a receiver with its part of the play."""

    def __init__(
        self, folder: Path, store_url: str | None, output: Output, *, with_inbox: bool
    ) -> None:
        self._folder = folder
        self._output = output
        self._log = Log(output)
        self._secrets = secret, old_secret = new_secret(), new_secret()
        self._is_own_store = store_url is None
        url = store_url or f"sqlite:///{folder / 'demo.db'}"
        store = named_store(url)
        # Not split before it was accepted: the error for what cannot be split may quote a password.
        self._store_name = (
            "SQLite (WAL, synchronous=FULL)" if urlsplit(url).scheme == "sqlite" else "Redis"
        )
        # In a store that others use or an earlier demo has used, the same ids must be new.
        endpoint = "default" if self._is_own_store else f"demo-{token_hex(4)}"
        self._play: InboxDemo | InlineDemo = (
            InboxDemo([secret, old_secret], store, endpoint, self._log)
            if with_inbox
            else InlineDemo([secret, old_secret], store, endpoint)
        )

    async def demonstrate(self, port: int, *, keep: bool) -> bool:
        """Show everything, and return whether it was right."""
        receiver = self._play.receiver
        async with receiver.opened():
            pass  # a store that cannot be used shows here, in one line
        try:
            return await self._perform(port, keep=keep)
        finally:
            if not self._is_own_store:
                async with receiver.opened():
                    await _discard_all(receiver)

    async def _perform(self, port: int, *, keep: bool) -> bool:
        output, receiver = self._output, self._play.receiver
        async with (
            serving(service_app(receiver, PATH), port) as (base_url, stopped),
            Sender(f"{base_url}{PATH}", *self._secrets, self._log) as sender,
        ):
            output.say(f"receiver  {base_url}{PATH}, store {self._store_name}")
            output.say("sender    signs with standardwebhooks, posts over HTTP")
            if not self._is_own_store:
                output.say(f"endpoint  {receiver.endpoint}")
            output.say()
            output.say(HEADING, "bold")
            await self._play.play(sender)
            output.say()
            right = await self._play.summarise(sender, output)
            if keep:
                self._announce(base_url)
                with suppress(asyncio.CancelledError):  # Ctrl-C, the way to end it
                    await stopped.wait()
        return right

    def _announce(self, base_url: str) -> None:
        secret_file = self._folder / "secret"
        secret_file.touch()
        secret_file.chmod(0o600)  # while there is nothing in it
        secret_file.write_text(self._secrets[0], encoding="utf-8")
        self._output.record(
            {"url": f"{base_url}{PATH}", "secrets_file": str(secret_file)},
            f"\nserving at {base_url}{PATH} until Ctrl-C; deliver to it from another terminal:\n"
            f"  hookonce send comment.received --url {base_url}{PATH}"
            f" --secrets-file {secret_file}",
        )
        log = logging.getLogger("hookonce")
        log.setLevel(logging.INFO)
        log.addHandler(_LiveLog(self._output))
        log.propagate = False


async def _discard_all(receiver: Receiver) -> None:
    """Leave nothing for a person in somebody's store; what is done is forgotten in time."""
    async for page in pages_of(lambda after, limit: receiver.dead.list(after=after, limit=limit)):
        for event_id in page.ids:
            await receiver.dead.discard(event_id)


class _LiveLog(logging.Handler):
    """Prints the library's line about each delivery."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line for the record."""
        message = record.getMessage()
        self._output.record({"log": message}, message)
