"""``hookonce demo``: the main job on real input, in a few seconds.

A real server on a free loopback port with a SQLite store, and a sender that signs with the
reference library ``standardwebhooks`` (not with our own code) and posts over HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import httpx2
import uvicorn
from standardwebhooks import Webhook

from hookonce import Context, Event, Receiver, Refusal
from hookonce.events import EVENT_CLASSES
from hookonce.outcome import Reason
from hookonce.samples import event_body, new_event_id
from hookonce.secrets import new_secret

from .output import Output, json_option
from .serve import service_app

__all__ = ["demo"]

_PATH = "/webhooks"
_HANDLED = (HTTPStatus.OK, Reason.HANDLED)


@click.command()
@click.option("--keep", is_flag=True, help="Keep serving afterwards, for deliveries of your own.")
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="The loopback port to serve on; a free one by default.",
)
@json_option
def demo(port: int, *, keep: bool, as_json: bool) -> None:
    """Show the main job: real signed deliveries to a real server, and what became of each.

    Exits 0 only if every outcome was the right one.
    """
    output = Output(as_json=as_json)
    # The library's own log would tell the same story in between.
    logging.getLogger("hookonce").setLevel(logging.CRITICAL + 1)
    with _terminated_as_interrupted(), TemporaryDirectory(prefix="hookonce-demo-") as folder:
        try:
            right = asyncio.run(_demonstrate(Path(folder), port, output, keep=keep))
        except OSError as error:
            raise click.ClickException(f"cannot serve on port {port}: {error.strerror}") from error
    if not right:
        raise SystemExit(1)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that it leaves no folder with a secret behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def _demonstrate(folder: Path, port: int, output: Output, *, keep: bool) -> bool:
    secret, old_secret = new_secret(), new_secret()
    runs: Counter[str] = Counter()
    receiver = _receiver(folder, [secret, old_secret], runs)
    async with (
        _serving(receiver, port) as (base_url, stopped),
        # A proxy in the environment is for the way out of the machine.
        httpx2.AsyncClient(base_url=base_url, timeout=10.0, trust_env=False) as client,
    ):
        output.say(f"receiver  {base_url}{_PATH}, store SQLite (WAL, synchronous=FULL)")
        output.say("sender    signs with standardwebhooks, posts over HTTP")
        output.say()
        output.say(_Sender.heading, "bold")
        sender = _Sender(client, output, secret, old_secret)
        await _play(sender, runs)
        right = await _summarise(sender, receiver, runs, output)
        if keep:
            (folder / "secret").write_text(secret, encoding="utf-8")
            _announce(base_url, folder / "secret", output)
            with suppress(asyncio.CancelledError):  # Ctrl-C, the way to end it
                await stopped.wait()
    return right


def _receiver(folder: Path, secrets: list[str], runs: Counter[str]) -> Receiver:
    receiver = Receiver(secrets=secrets, store=f"sqlite:///{folder / 'demo.db'}")

    async def handle(event: Event[object], context: Context) -> None:
        runs[event.id] += 1
        if event.id.endswith("flaky") and context.attempt == 1:
            raise ConnectionError("the handler's own database is away")
        if event.id.endswith("slow"):
            await asyncio.sleep(0.2)

    receiver.on(*EVENT_CLASSES, name="demo")(handle)
    return receiver


@asynccontextmanager
async def _serving(receiver: Receiver, port: int) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Serve on the loopback interface; give the base URL, and an event for the server's end."""
    # Named as TCP, or asyncio does not switch off Nagle's algorithm, which costs 40 ms an answer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        config = uvicorn.Config(service_app(receiver, _PATH), log_config=None, access_log=False)
        server = uvicorn.Server(config)
        stopped = asyncio.Event()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        serving.add_done_callback(lambda _: stopped.set())
        while not server.started:
            await asyncio.sleep(0.01)
            if serving.done():
                await serving
                raise click.ClickException("the server did not start")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", stopped
        finally:
            server.should_exit = True
            await serving


@dataclass(slots=True)
class _Sender:
    """Signs and posts deliveries, prints a line for each, and counts the wrong outcomes."""

    client: httpx2.AsyncClient
    output: Output
    secret: str
    old_secret: str
    deliveries: int = 0
    events: set[str] = field(default_factory=set)
    wrong: int = 0

    heading = (
        f"{'time':12}  {'type':22}  {'id':14}  {'try':3}  {'verdict':8}  {'outcome':22}"
        f"  {'status':6}  {'ms':>6}"
    )

    async def deliver(
        self,
        body: bytes,
        expected: tuple[HTTPStatus, str],
        *,
        event_type: str,
        event_id: str,
        attempt: int = 1,
        age: float = 0.0,
        rotating: bool = False,
        tampered: bool = False,
    ) -> None:
        """Deliver once and check the outcome."""
        headers = self._headers(event_id, event_type, body, attempt, age, rotating=rotating)
        sent = body.replace(b"walnut", b"peanut") if tampered else body
        started = time.perf_counter()
        response = await self.client.post(_PATH, content=sent, headers=headers)
        milliseconds = (time.perf_counter() - started) * 1000
        self.deliveries += 1
        self.events.add(event_id)
        self._print(event_type, event_id, attempt, response, expected, milliseconds)

    def _headers(
        self,
        event_id: str,
        event_type: str,
        body: bytes,
        attempt: int,
        age: float,
        *,
        rotating: bool,
    ) -> dict[str, str]:
        signed_at = datetime.fromtimestamp(time.time() - age, UTC)
        secrets = [self.secret, self.old_secret] if rotating else [self.secret]
        return {
            "content-type": "application/json",
            "user-agent": "example-webhooks/1.0 (+https://docs.example/webhooks)",
            "webhook-id": event_id,
            "webhook-timestamp": str(int(signed_at.timestamp())),
            "webhook-signature": " ".join(
                Webhook(secret).sign(event_id, signed_at, body.decode()) for secret in secrets
            ),
            "example-event-type": event_type,
            "example-delivery-attempt": str(attempt),
        }

    def _print(
        self,
        event_type: str,
        event_id: str,
        attempt: int,
        response: httpx2.Response,
        expected: tuple[HTTPStatus, str],
        milliseconds: float,
    ) -> None:
        reason = response.json()["reason"]
        verdict = "refused" if reason in set(Refusal) else "genuine"
        right = (response.status_code, reason) == expected
        now = datetime.now(UTC)
        record = {
            "time": now.isoformat(timespec="milliseconds"),
            "type": event_type,
            "id": event_id,
            "attempt": attempt,
            "verdict": verdict,
            "outcome": reason,
            "status": response.status_code,
            "milliseconds": round(milliseconds, 1),
            "right": right,
        }
        line = (
            f"{now:%H:%M:%S}.{now.microsecond // 1000:03}  {event_type:22}  {_short(event_id):14}"
            f"  {attempt:3}  {verdict:8}  {reason:22}  {response.status_code:6}"
            f"  {milliseconds:6.1f}"
        )
        if not right:
            self.wrong += 1
            line += f"  WRONG: expected {int(expected[0])} {expected[1]}"
        style = "bold red" if not right else "green" if response.is_success else "yellow"
        self.output.record(record, line, style)


def _short(event_id: str) -> str:
    return event_id if len(event_id) <= 14 else f"{event_id[:13]}…"


async def _play(sender: _Sender, runs: Counter[str]) -> None:
    """Deliver everything a receiver must cope with, and state what each must lead to."""

    async def deliver(
        event_type: str,
        expected: tuple[HTTPStatus, str] = _HANDLED,
        *,
        event_id: str | None = None,
        body: bytes | None = None,
        attempt: int = 1,
        age: float = 0.0,
        rotating: bool = False,
        tampered: bool = False,
    ) -> None:
        event_id = event_id or new_event_id()
        await sender.deliver(
            event_body(event_type, event_id=event_id) if body is None else body,
            expected,
            event_type=event_type,
            event_id=event_id,
            attempt=attempt,
            age=age,
            rotating=rotating,
            tampered=tampered,
        )

    say, comment = sender.output.say, "comment.received"
    say("each type of event", "dim")
    for event_type in EVENT_CLASSES:
        await deliver(event_type)
    say("a duplicate: not handled again", "dim")
    event_id = new_event_id()
    await deliver(comment, event_id=event_id)
    await deliver(comment, (HTTPStatus.OK, Reason.DUPLICATE), event_id=event_id)
    say("a handler that fails: the retry is no duplicate", "dim")
    failed = (HTTPStatus.INTERNAL_SERVER_ERROR, Reason.HANDLER_FAILED)
    await deliver("post.target.failed", failed, event_id="evt_demo_flaky")
    await deliver("post.target.failed", event_id="evt_demo_flaky", attempt=2)
    say("two copies at the same time: one is handled, the other waits for it", "dim")
    duplicate = (HTTPStatus.OK, Reason.DUPLICATE)
    async with asyncio.TaskGroup() as copies:
        first = copies.create_task(deliver("message.received", event_id="evt_demo_slow"))
        # Which of the two comes first must be certain.
        while not (runs["evt_demo_slow"] or first.done()):  # noqa: ASYNC110 - runs are only counted
            await asyncio.sleep(0.005)
        await deliver("message.received", duplicate, event_id="evt_demo_slow")
    say("a body changed on its way, and a delivery recorded and replayed", "dim")
    forged = (HTTPStatus.UNAUTHORIZED, Refusal.NO_MATCHING_SIGNATURE)
    await deliver(comment, forged, tampered=True)
    await deliver(comment, (HTTPStatus.UNAUTHORIZED, Refusal.TIMESTAMP_TOO_OLD), age=302)
    say("a secret being rotated: two signatures", "dim")
    await deliver("channel.unhealthy", rotating=True)
    say("a type nobody knows yet, and a body nobody can read", "dim")
    await deliver("post.target.boosted", (HTTPStatus.OK, Reason.UNKNOWN_TYPE))
    quarantined = (HTTPStatus.ACCEPTED, Reason.QUARANTINED)
    await deliver(comment, quarantined, event_id="evt_demo_cut", body=b'{"id":"evt_demo_c')


async def _summarise(
    sender: _Sender, receiver: Receiver, runs: Counter[str], output: Output
) -> bool:
    letters = await receiver.dead.list()
    # The one that failed ran once more; every other event that was handled ran once.
    twice = [event_id for event_id, count in runs.items() if count != 1]
    right = sender.wrong == 0 and twice == ["evt_demo_flaky"] and len(letters) == 1
    output.say()
    output.record(
        {
            "deliveries": sender.deliveries,
            "events": len(sender.events),
            "handled": len(runs),
            "handler_runs": runs.total(),
            "dead_letters": len(letters),
            "wrong_outcomes": sender.wrong,
            "right": right,
        },
        f"{sender.deliveries} deliveries of {len(sender.events)} events: {len(runs)} handled in"
        f" {runs.total()} runs (one had failed first), {len(letters)} dead letter kept with its"
        f" bytes, {sender.wrong} wrong outcomes",
        "bold green" if right else "bold red",
    )
    return right


def _announce(base_url: str, secret_file: Path, output: Output) -> None:
    output.record(
        {"url": f"{base_url}{_PATH}", "secrets_file": str(secret_file)},
        f"\nserving at {base_url}{_PATH} until Ctrl-C; deliver to it from another terminal:\n"
        f"  hookonce send comment.received --url {base_url}{_PATH} --secrets-file {secret_file}",
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
        """Print the line for the record."""
        message = record.getMessage()
        self._output.record({"log": message}, message)
