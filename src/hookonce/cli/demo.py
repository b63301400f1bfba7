"""``hookonce demo``: a real server and a real store, and real deliveries to them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

import click

from hookonce import Receiver
from hookonce.stores.sqlite import SQLiteStore

from .application import service_app
from .demonstration import Demonstration
from .ending import terminated_as_interrupted
from .listing import ids_of, keys_of
from .output import Output, json_option
from .serve import serving
from .statuses import Status
from .stores import chosen_url, named_store, run, store_file_option

_PATH = "/webhooks"


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
    """Send signed deliveries to a real server, and show what becomes of each.

    With --inbox the worker's attempts are shown too: retries, dead letters, and a replay.

    Exits 0 only if every outcome was the right one.
    """
    url = chosen_url(store_url, store_file)
    logging.getLogger("hookonce").setLevel(logging.CRITICAL + 1)  # it would tell everything twice
    with terminated_as_interrupted(), TemporaryDirectory(prefix="hookonce-demo-") as folder:
        store = named_store(url or f"sqlite:///{folder}/demo.db")
        endpoint = f"demo-{token_hex(4)}"  # its ids are new, also in a store that has seen demos
        output = Output(as_json=as_json)
        demonstration = Demonstration(store, endpoint, output, with_inbox=with_inbox)
        right = run(_show(demonstration, port, Path(folder, "secret") if keep else None))
    if not right:
        raise SystemExit(Status.FOUND)


async def _show(demonstration: Demonstration, port: int, secret_file: Path | None) -> bool:
    """Serve and deliver, and return whether every outcome was right."""
    receiver, output = demonstration.receiver, demonstration.output
    async with receiver.opened():  # a store that cannot be used ends the command here
        try:
            async with serving(service_app(receiver, _PATH), port) as (base_url, stopped):
                url = f"{base_url}{_PATH}"
                is_sqlite = isinstance(receiver.store, SQLiteStore)
                store = "SQLite (WAL, synchronous=FULL)" if is_sqlite else "Redis"
                output.say(f"receiver  {url}, store {store}")
                output.say("sender    signs with standardwebhooks, posts over HTTP")
                output.say(f"endpoint  {receiver.endpoint}")
                right = await demonstration.run(url)
                if secret_file is not None:
                    _announce(url, secret_file, demonstration.secrets[0], output)
                    with suppress(asyncio.CancelledError):  # Ctrl-C is the way to end it
                        await stopped.wait()
                return right
        finally:
            await _discard_all(receiver)


def _announce(url: str, secret_file: Path, secret: str, output: Output) -> None:
    """Say how to deliver to the server, and begin to print the library's log."""
    secret_file.touch(0o600)  # before the secret is in it
    secret_file.write_text(secret, "utf-8")
    output.record(
        {"url": url, "secrets_file": str(secret_file)},
        f"\nserving at {url} until Ctrl-C; deliver to it from another terminal:\n"
        f"  hookonce send comment.received --url {url} --secrets-file {secret_file}",
    )
    log = logging.getLogger("hookonce")
    log.setLevel(logging.INFO)
    log.addHandler(_LiveLog(output))
    log.propagate = False


class _LiveLog(logging.Handler):
    """Prints the library's line about each delivery."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self._output.record({"log": message}, message)


async def _discard_all(receiver: Receiver) -> None:
    """Leave no dead letters in somebody's store; the store forgets the rest in time."""
    keys = await keys_of(lambda after, limit: receiver.dead.list(after=after, limit=limit))
    for key in keys:
        await receiver.dead.discard(ids_of(key)[1])
