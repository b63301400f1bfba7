"""``hookonce demo``: delivers to a real server with a real store, and checks every outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import TypeAlias

import click

from hookonce import Context, Event, Inbox, Receiver, Refusal, Reject
from hookonce.emulator.over_http import OverHttp
from hookonce.emulator.records import OutgoingEvent
from hookonce.emulator.signing import delivery_headers
from hookonce.emulator.transport import OutgoingRequest
from hookonce.events import EVENT_CLASSES
from hookonce.outcome import Reason
from hookonce.samples.events import event_body
from hookonce.senders import publishing
from hookonce.stores.protocols import Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.verification.secrets import new_secret

from .application import service_app
from .ending import terminated_as_interrupted
from .output import Output, json_option
from .serve import serving
from .statuses import Status
from .stores import chosen_url, named_store, run, store_file_option

_PATH = "/webhooks"

_Answer: TypeAlias = tuple[int, str]
"""Status and reason of an answer; 0 and an error text if no answer came."""

_DUPLICATE: _Answer = (200, Reason.DUPLICATE)
# An answer with one of these reasons means that the handler runs for the event, now or later.
_REACHES_HANDLER = {Reason.HANDLED, Reason.STORED, Reason.REJECTED, Reason.HANDLER_FAILED}

# For these event ids, the handler fails, takes long or rejects the event.
_FLAKY, _SLOW, _POISON, _UNWANTED = "evt_flaky", "evt_slow", "evt_poison", "evt_unwanted"
_UNREADABLE = "evt_unreadable"

_MAX_ATTEMPTS = 3
_ATTEMPTS = {
    _FLAKY: ["failed", "succeeded"],
    _POISON: ["failed"] * _MAX_ATTEMPTS,
    _UNWANTED: ["rejected", "succeeded"],  # the second attempt is a replay
}
"""The expected outcomes of attempts at these events; any other event succeeds at once."""

# How long to wait for the inbox worker, which needs a second or two on an idle machine.
_INBOX_SECONDS, _POLL_SECONDS = 20.0, 0.02

_Row: TypeAlias = tuple[str, str, int, str, str, int | None]
_COLUMNS = ("type", "id", "attempt", "verdict", "outcome", "status")
_LINE = "{:12}  {:22}  {:14}  {:>3}  {:8}  {:22}  {:>6}  {:>6}"


@click.command()
@click.option("--inbox", "with_inbox", is_flag=True, help="Store deliveries for a worker.")
@click.option(
    "--store",
    "store_url",
    metavar="STORE_URL",
    help="Use a new endpoint in this store, such as redis://localhost:6379/0 or"
    " postgresql://localhost/hooks. By default the demo"
    " uses SQLite in a temporary folder.",
)
@store_file_option
@json_option
def demo(
    store_url: str | None, store_file: Path | None, *, with_inbox: bool, as_json: bool
) -> None:
    """Send signed deliveries to a real server, and show the outcome of each.

    With --inbox the demo also shows the worker's attempts: retries, dead letters, and a replay.

    Exits 0 only if every outcome was right.
    """
    url = chosen_url(store_url, store_file)
    # Log nothing, because the demo prints the outcomes.
    logging.getLogger("hookonce").setLevel(logging.CRITICAL + 1)
    with terminated_as_interrupted(), TemporaryDirectory(prefix="hookonce-demo-") as folder:
        store = named_store(url or f"sqlite:///{folder}/demo.db")
        if not run(_Demonstration(store, Output(as_json=as_json), with_inbox=with_inbox).run()):
            raise SystemExit(Status.FOUND)


class _Demonstration:
    """A receiver, a sender, and the log of the deliveries between them."""

    def __init__(self, store: Store, output: Output, *, with_inbox: bool) -> None:
        self._output = output
        self._secrets = [new_secret(), new_secret()]  # newest first
        self._receiver = Receiver(
            secrets=self._secrets,
            store=store,
            # Use a new name, because the store may know the event ids of an earlier demo.
            endpoint=f"demo-{token_hex(4)}",
            inbox=Inbox(max_attempts=_MAX_ATTEMPTS, backoff=0.2) if with_inbox else None,
        )
        self._receiver.on(*EVENT_CLASSES, name="demo")(self._handle)
        self._with_inbox = with_inbox
        self._http = OverHttp()
        self._url = ""
        self._signing_secrets = self._secrets[1:]
        self._deliveries = 0
        self._expected_attempts: dict[str, list[str]] = {}
        self._attempts: defaultdict[str, list[str]] = defaultdict(list)
        self._is_repaired = False
        self._wrong = 0

    async def run(self) -> bool:
        """Serve, deliver and check; return whether every outcome was right."""
        receiver = self._receiver
        async with receiver.opened():  # a store that cannot be used ends the command here
            try:
                async with serving(service_app(receiver, _PATH), 0) as base_url, self._http:
                    self._url = f"{base_url}{_PATH}"
                    self._introduce()
                    await self._deliver_all()
                    for event_id, expected in self._expected_attempts.items():
                        found = self._attempts[event_id]
                        self._check(f"the attempts at {event_id}", found, expected)
                    await self._summarise()
            finally:
                await self._discard_all()
        return self._wrong == 0

    def _introduce(self) -> None:
        store = self._receiver.store
        is_sqlite = isinstance(store, SQLiteStore)
        kind = type(store).__name__.removesuffix("Store")
        name = "SQLite (WAL, synchronous=FULL)" if is_sqlite else kind
        self._output.say(f"receiver  {self._url}, store {name}")
        self._output.say("sender    signs with standardwebhooks, posts over HTTP")
        self._output.say(f"endpoint  {self._receiver.endpoint}")
        heading = _LINE.format("time", "type", "id", "try", "verdict", "outcome", "status", "ms")
        self._output.say(f"\n{heading}", "bold")

    async def _deliver_all(self) -> None:
        deliver, begin = self._deliver, self._begin
        accepted = (202, Reason.STORED) if self._with_inbox else (200, Reason.HANDLED)
        await begin("every type of event")
        for event_type in EVENT_CLASSES:
            await deliver(_event(event_type), accepted)
        await begin("a duplicate: not handled again")
        comment = _event("comment.received")
        await deliver(comment, accepted)
        await deliver(comment, _DUPLICATE)
        await begin("two copies at the same time: handled once")
        slow = _event("message.received", _SLOW)
        async with asyncio.TaskGroup() as group:
            copies = [group.create_task(deliver(slow, accepted, _DUPLICATE)) for _ in range(2)]
        answers = sorted(copy.result() for copy in copies)
        self._check("the answers to the copies", answers, sorted([accepted, _DUPLICATE]))
        await begin("a forgery: the body was changed; then a replay: the signature is too old")
        forged = (401, Refusal.NO_MATCHING_SIGNATURE)
        await deliver(_event("comment.received"), forged, is_changed=True)
        too_old = (401, Refusal.TIMESTAMP_TOO_OLD)
        await deliver(_event("comment.received"), too_old, age_seconds=302)
        await begin("the secret is rotated: two signatures from now on")
        self._signing_secrets = self._secrets
        await deliver(_event("channel.unhealthy"), accepted)
        await begin("an event of an unknown type: ignored")
        await deliver(_event("post.target.boosted"), (200, Reason.UNKNOWN_TYPE))
        await begin("an unreadable body: a dead letter")
        cut_off = OutgoingEvent(_UNREADABLE, "comment.received", b'{"id":"evt_unrea')
        await deliver(cut_off, (202, Reason.QUARANTINED))
        dead = {_UNREADABLE: "unreadable"}
        flaky = _event("post.target.failed", _FLAKY)
        if self._with_inbox:
            await begin("the handler fails once: the worker retries, without the sender")
            await deliver(flaky, accepted)
            await begin(f"the handler fails {_MAX_ATTEMPTS} times: a dead letter")
            await deliver(_event("channel.disconnected", _POISON), accepted)
            dead[_POISON] = "exhausted"
        else:
            await begin("the handler fails once: the sender's retry is not a duplicate")
            await deliver(flaky, (500, Reason.HANDLER_FAILED))
            await deliver(flaky, accepted, attempt=2)
        await begin("the handler rejects an event: a dead letter")
        unwanted = _event("comment.received", _UNWANTED)
        await deliver(unwanted, accepted if self._with_inbox else (202, Reason.REJECTED))
        await begin("the sender's retry changes nothing; a replay reaches the repaired handler")
        await deliver(unwanted, (202, Reason.ALREADY_DEAD), attempt=2)
        await self._check_dead_letters({**dead, _UNWANTED: "rejected"})
        self._is_repaired = True
        with suppress(LookupError):  # if there is no dead letter, the check above has reported that
            await self._receiver.dead.replay(_UNWANTED)
        await self._check_dead_letters(dead)

    async def _begin(self, title: str) -> None:
        """Wait until the inbox is empty, then print the title of the next deliveries."""
        deadline = time.monotonic() + _INBOX_SECONDS
        while (depth := (await self._receiver.stats()).depth) and time.monotonic() < deadline:  # noqa: ASYNC110 - poll, because a store cannot signal that the inbox is empty
            await asyncio.sleep(_POLL_SECONDS)
        self._check("the events left in the inbox", depth, 0)
        self._output.say(title, "dim")

    async def _deliver(
        self,
        event: OutgoingEvent,
        *expected: _Answer,
        attempt: int = 1,
        age_seconds: float = 0.0,
        is_changed: bool = False,
    ) -> _Answer:
        """Sign an event, post it, and print the answer, which must be one of ``expected``."""
        reaches_handler = expected[0][1] in _REACHES_HANDLER
        attempts = _ATTEMPTS.get(event.id, ["succeeded"]) if reaches_handler else []
        self._expected_attempts.setdefault(event.id, attempts)
        signed_at = time.time() - age_seconds
        headers = delivery_headers(
            event,
            self._signing_secrets,
            attempt=attempt,
            signed_at=signed_at,
            sender=publishing,
            service="example",
        )
        body = event.body + b" " if is_changed else event.body
        started = time.perf_counter()
        try:
            async with asyncio.timeout(publishing.rules.patience_seconds):
                response = await self._http.post(OutgoingRequest(self._url, headers, body))
            status, reason = response.status, response.reason
        except (TimeoutError, ConnectionError) as error:
            status, reason = 0, str(error) or type(error).__name__
        self._deliveries += 1
        verdict = "refused" if reason in set(Refusal) else "genuine"
        row = (event.type, event.id, attempt, verdict, reason, status or None)
        wanted = "" if (status, reason) in expected else "{} {}".format(*expected[0])
        self._print(row, started, "green" if 200 <= status < 300 else "yellow", wanted)
        return status, reason

    async def _handle(self, event: Event[object], context: Context) -> None:
        started, outcome = time.perf_counter(), "failed"
        try:
            if event.id == _FLAKY and context.attempt == 1:
                raise ConnectionError("the handler's own database is away")
            if event.id == _POISON:
                raise ZeroDivisionError("a fault in the handler")
            if event.id == _UNWANTED and not self._is_repaired:
                outcome = "rejected"
                raise Reject("the handler cannot use it")
            if event.id == _SLOW:
                await asyncio.sleep(0.2)  # a copy of the delivery arrives during this time
            outcome = "succeeded"
        finally:
            attempts = self._attempts[event.id]
            attempts.append(outcome)
            # An inline attempt needs no line of its own: the line of its answer shows the outcome.
            if self._with_inbox or context.is_replay:
                expected = self._expected_attempts.get(event.id, attempts)
                wanted = "" if attempts == expected[: len(attempts)] else f"attempts {expected}"
                row = (event.type, event.id, context.attempt, "handler", outcome, None)
                style = "cyan" if outcome == "succeeded" else "yellow"
                self._print(row, started, style, wanted)

    async def _check_dead_letters(self, expected: dict[str, str]) -> None:
        dead_letters = await self._receiver.dead.list()
        found = {one.delivery.event_id: str(one.reason) for one in dead_letters}
        self._check("the dead letters", found, expected)

    def _check(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self._wrong += 1
            fault = f"{what}: {found}, not {expected}"
            self._output.record({"fault": fault, "right": False}, f"WRONG: {fault}", "bold red")

    def _print(self, row: _Row, started: float, style: str, wanted: str) -> None:
        """Print a delivery or an attempt; mark it as wrong if ``wanted`` names another outcome."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        milliseconds = round((time.perf_counter() - started) * 1000, 1)
        *shown, status = row
        line = _LINE.format(now[11:23], *shown, status or "", milliseconds)
        if wanted:
            self._wrong += 1
            line, style = f"{line}  WRONG: expected {wanted}", "bold red"
        named = dict(zip(_COLUMNS, row, strict=True))
        record = {"time": now, **named, "milliseconds": milliseconds, "right": not wanted}
        self._output.record(record, line, style)

    async def _summarise(self) -> None:
        stats = await self._receiver.stats()
        counts = {
            "deliveries": self._deliveries,
            "events": len(self._expected_attempts),
            "handled": sum("succeeded" in attempts for attempts in self._attempts.values()),
            "handler_calls": sum(map(len, self._attempts.values())),
            "waiting": stats.depth,
            "dead_letters": stats.dead,
            "wrong_outcomes": self._wrong,
        }
        line = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items())
        right = self._wrong == 0
        style = "bold green" if right else "bold red"
        self._output.record({**counts, "right": right}, f"\n{line}", style)

    async def _discard_all(self) -> None:
        """Discard all dead letters of the demo; the store removes other records after a time."""
        for one in await self._receiver.dead.list():
            await self._receiver.dead.discard(one.delivery.event_id)


def _event(event_type: str, event_id: str | None = None) -> OutgoingEvent:
    event_id = event_id or f"evt_{token_hex(5)}"  # short enough for the column of ids
    return OutgoingEvent(event_id, event_type, event_body(event_type, event_id=event_id))
