"""What ``hookonce demo`` delivers, what must become of it, and the live log of both."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from secrets import token_hex
from typing import TypeAlias

from hookonce import Context, Event, Inbox, Receiver, Refusal, Reject
from hookonce.emulator.over_http import OverHttp
from hookonce.emulator.records import OutgoingEvent
from hookonce.emulator.signing import delivery_headers
from hookonce.emulator.transport import OutgoingRequest
from hookonce.events import EVENT_CLASSES
from hookonce.outcome import Reason
from hookonce.samples.events import event_body
from hookonce.sender import ANSWER_SECONDS
from hookonce.stores.contract import Store
from hookonce.verification.secrets import new_secret

from .output import Output, cut

_Answer: TypeAlias = tuple[int, str]
"""Status and reason; or 0, and why there is no answer."""

_Row: TypeAlias = tuple[str, str, int, str, str, int | None]
"""What ``_COLUMNS`` names."""

_DUPLICATE: _Answer = (200, Reason.DUPLICATE)
# An event whose first delivery is answered so reaches the handler.
_HANDLER_RUNS = {Reason.HANDLED, Reason.STORED, Reason.REJECTED, Reason.HANDLER_FAILED}

# The handler treats the events with these ids in a special way.
_FLAKY, _SLOW, _POISON, _UNWANTED = "evt_flaky", "evt_slow", "evt_poison", "evt_unwanted"
_UNREADABLE = "evt_unreadable"

_MAX_ATTEMPTS = 3
_ATTEMPTS = {
    _FLAKY: ["failed", "succeeded"],
    _POISON: ["failed"] * _MAX_ATTEMPTS,
    _UNWANTED: ["rejected", "succeeded"],  # the second is a replay
}
"""How the handler's attempts must end; those at other events succeed at once."""

# The worker needs a second or two, and more on a busy machine.
_PATIENCE_SECONDS, _POLL_SECONDS = 20.0, 0.02

_COLUMNS = ("type", "id", "attempt", "verdict", "outcome", "status")
_ROW = "{:12}  {:22}  {:14}  {:>3}  {:8}  {:22}  {:>6}  {:>6}"


class Demonstration:
    """A receiver, a sender, and the log of what happens between them."""

    def __init__(self, store: Store, endpoint: str, output: Output, *, with_inbox: bool) -> None:
        self.output = output
        self.secrets = [new_secret(), new_secret()]  # newest first
        inbox = Inbox(max_attempts=_MAX_ATTEMPTS, backoff=0.2) if with_inbox else None
        self.receiver = Receiver(secrets=self.secrets, store=store, endpoint=endpoint, inbox=inbox)
        self.receiver.on(*EVENT_CLASSES, name="demo")(self._handle)
        self._with_inbox = with_inbox
        self._http = OverHttp()
        self._url = ""
        self._signing_secrets = self.secrets[1:]
        self._deliveries = 0
        self._expected_attempts: dict[str, list[str]] = {}
        self._attempts: defaultdict[str, list[str]] = defaultdict(list)
        self._is_repaired = False
        self._wrong = 0

    async def run(self, url: str) -> bool:
        """Deliver everything to the receiver at ``url``; return whether every outcome was right."""
        self._url = url
        heading = _ROW.format("time", "type", "id", "try", "verdict", "outcome", "status", "ms")
        self.output.say(f"\n{heading}", "bold")
        async with self._http:
            await self._deliver_all()
        for event_id, expected in self._expected_attempts.items():
            self._check(f"the attempts at {event_id}", self._attempts[event_id], expected)
        return await self._summarise()

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
        await begin("a body changed on its way, and a recorded delivery that is sent again later")
        forged = (401, Refusal.NO_MATCHING_SIGNATURE)
        await deliver(_event("comment.received"), forged, is_changed=True)
        too_old = (401, Refusal.TIMESTAMP_TOO_OLD)
        await deliver(_event("comment.received"), too_old, age_seconds=302)
        await begin("the secret is rotated: two signatures from now on")
        self._signing_secrets = self.secrets
        await deliver(_event("channel.unhealthy"), accepted)
        await begin("an event of an unknown type: ignored")
        await deliver(_event("post.target.boosted"), (200, Reason.UNKNOWN_TYPE))
        await begin("a body that cannot be read: a dead letter")
        cut_off = OutgoingEvent(_UNREADABLE, "comment.received", b'{"id":"evt_unrea')
        await deliver(cut_off, (202, Reason.QUARANTINED))
        dead = {_UNREADABLE: "unreadable"}
        flaky = _event("post.target.failed", _FLAKY)
        if self._with_inbox:
            await begin("the handler fails once: the worker tries again, without the sender")
            await deliver(flaky, accepted)
            await begin(f"the handler fails {_MAX_ATTEMPTS} times: a dead letter")
            await deliver(_event("channel.disconnected", _POISON), accepted)
            dead[_POISON] = "exhausted"
        else:
            await begin("the handler fails once: the sender's retry is not taken for a duplicate")
            await deliver(flaky, (500, Reason.HANDLER_FAILED))
            await deliver(flaky, accepted, attempt=2)
        await begin("the handler rejects an event: a dead letter")
        unwanted = _event("comment.received", _UNWANTED)
        await deliver(unwanted, accepted if self._with_inbox else (202, Reason.REJECTED))
        await begin("the sender's retry changes nothing; the repaired handler gets a replay")
        await deliver(unwanted, (202, Reason.ALREADY_DEAD), attempt=2)
        await self._check_dead_letters({**dead, _UNWANTED: "rejected"})
        self._is_repaired = True
        with suppress(LookupError):  # the check has said that there is no such dead letter
            await self.receiver.dead.replay(_UNWANTED)
        await self._check_dead_letters(dead)

    async def _begin(self, title: str) -> None:
        """Let the worker finish, then print what the next lines are about."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (depth := (await self.receiver.stats()).depth) and time.monotonic() < deadline:  # noqa: ASYNC110 - a store has no event for it
            await asyncio.sleep(_POLL_SECONDS)
        self._check("the events left in the inbox", depth, 0)
        self.output.say(title, "dim")

    async def _deliver(
        self,
        event: OutgoingEvent,
        *expected: _Answer,
        attempt: int = 1,
        age_seconds: float = 0.0,
        is_changed: bool = False,
    ) -> _Answer:
        """Sign an event, post it, and print its answer; any of ``expected`` is right."""
        runs = expected[0][1] in _HANDLER_RUNS
        attempts = _ATTEMPTS.get(event.id, ["succeeded"]) if runs else []
        self._expected_attempts.setdefault(event.id, attempts)
        secrets, signed_at = self._signing_secrets, time.time() - age_seconds
        headers = delivery_headers(
            event, secrets, attempt=attempt, signed_at=signed_at, service="example"
        )
        body = event.body + b" " if is_changed else event.body
        started = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                response = await self._http.post(OutgoingRequest(self._url, headers, body))
            answer: _Answer = (response.status, response.reason)
        except (TimeoutError, ConnectionError) as error:
            answer = (0, str(error) or type(error).__name__)
        self._deliveries += 1
        status, reason = answer
        verdict = "refused" if reason in set(Refusal) else "genuine"
        row = (event.type, event.id, attempt, verdict, reason, status or None)
        wanted = "" if answer in expected else "{} {}".format(*expected[0])
        self._print(row, started, "green" if 200 <= status < 300 else "yellow", wanted)
        return answer

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
                await asyncio.sleep(0.2)  # while the other copy comes
            outcome = "succeeded"
        finally:
            attempts = self._attempts[event.id]
            attempts.append(outcome)
            if self._with_inbox or context.is_replay:  # else the answer says it
                row = (event.type, event.id, context.attempt, "handler", outcome, None)
                expected = self._expected_attempts.get(event.id, attempts)
                wanted = "" if attempts == expected[: len(attempts)] else f"attempts {expected}"
                style = "cyan" if outcome == "succeeded" else "yellow"
                self._print(row, started, style, wanted)

    async def _check_dead_letters(self, expected: dict[str, str]) -> None:
        letters = await self.receiver.dead.list()
        found = {letter.delivery.event_id: str(letter.reason) for letter in letters}
        self._check("the dead letters", found, expected)

    def _check(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self._wrong += 1
            fault = f"{what}: {found}, not {expected}"
            self.output.record({"fault": fault, "right": False}, f"WRONG: {fault}", "bold red")

    def _print(self, row: _Row, started: float, style: str, wanted: str) -> None:
        """Print a delivery or an attempt; ``wanted`` is the outcome that it should have had."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        milliseconds = round((time.perf_counter() - started) * 1000, 1)
        event_type, event_id, *middle, status = row
        line = _ROW.format(
            now[11:23], event_type, cut(event_id, 14), *middle, status or "", milliseconds
        )
        if wanted:
            self._wrong += 1
            line, style = f"{line}  WRONG: expected {wanted}", "bold red"
        named = dict(zip(_COLUMNS, row, strict=True))
        record = {"time": now, **named, "milliseconds": milliseconds, "right": not wanted}
        self.output.record(record, line, style)

    async def _summarise(self) -> bool:
        """Print the counts, and return whether all was right."""
        stats, right = await self.receiver.stats(), self._wrong == 0
        counts = {
            "deliveries": self._deliveries,
            "events": len(self._expected_attempts),
            "handled": sum("succeeded" in attempts for attempts in self._attempts.values()),
            "handler_runs": sum(map(len, self._attempts.values())),
            "waiting": stats.depth,
            "dead_letters": stats.dead,
            "wrong_outcomes": self._wrong,
        }
        line = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items())
        style = "bold green" if right else "bold red"
        self.output.record({**counts, "right": right}, f"\n{line}", style)
        return right


def _event(event_type: str, event_id: str | None = None) -> OutgoingEvent:
    event_id = event_id or f"evt_{token_hex(5)}"  # short enough for its column
    return OutgoingEvent(event_id, event_type, event_body(event_type, event_id=event_id))
