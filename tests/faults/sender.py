"""Sends signed deliveries as the service does, and repeats each until its answer is 2xx."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, repeat

from hookonce import sign
from hookonce.samples.events import event_body
from hookonce.senders import Sender as Service
from hookonce.senders import publishing
from hookonce.verification.secrets import new_secret

from .program import FAILS_ONCE

__all__ = ["FORGED", "SPEED", "Sender"]

FORGED = "evt_forged_"
"""The prefix of the ids of forged events."""

SPEED = 4000.0
"""If there are several services, they retry this many times faster than their schedules."""

# With several services, a fifth of the answers to an event's first five attempts is lost.
_LOST, _LAST_LOST = 0.2, 5
_PLACEHOLDER = "evt_placeholder"
_CREATED = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
_CREATED_TEXT = b"2001-02-03T04:05:06.000Z"
_PAUSE_SECONDS = 0.05
_LATER_COPY = 100
_LANES = 16
_NO_MORE = object()
_STRANGER = new_secret()
_EVENTS = {"openai": ("response.completed", "id")}
"""The event type of a service, and a text field of its data; the default is a comment's text."""


def _template(text: str, service: Service) -> bytes:
    event_type, field = _EVENTS.get(service.name, ("comment.received", "text"))
    return event_body(
        event_type,
        event_id=_PLACEHOLDER,
        created_at=_CREATED,
        data={field: text},
        sender=service,
    )


@dataclass
class Sender:
    """Sends events over many connections at once, and some of the events twice.

    Attributes:
        port: where the web processes listen.
        secret: the secret that signs deliveries.
        chance: chooses the events that fail, and those that are delivered again.
        clock: returns Unix time in seconds.
        failing: the share of events that fail at the first attempt.
        duplicates: the probability that an event is delivered twice.
        services: the senders and their secrets. Each sends to its own endpoint at ``/<name>``, and
            retries by its own rules at ``SPEED``. By default only the publishing service sends, to
            ``/webhooks``, and retries at once.
        forging: the probability that a forgery follows a delivery.
        roams: use a new connection for each delivery, so that any web process may get it.
        acknowledged: the ids of the events that were answered 2xx.
        deliveries: the number of requests.
        answers: the number of answers by status and reason; status 0 means no answer.
        slowest_seconds: the longest wait for an answer.
        forgeries: the number of answers to forgeries, by status.
        latest: the highest number of an attempt, by the name of the service.
        given_up: the ids of the events whose last attempt has failed.
        disabled: the names of the services that would have disabled the endpoint.

    """

    port: int
    secret: str
    chance: random.Random
    clock: Callable[[], float] = time.time
    failing: float = 0.0
    duplicates: float = 0.25
    services: Mapping[Service, str] = field(default_factory=dict)
    forging: float = 0.0
    roams: bool = False
    acknowledged: set[str] = field(default_factory=set)
    deliveries: int = 0
    answers: Counter[tuple[int, str]] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    forgeries: Counter[int] = field(default_factory=Counter)
    latest: dict[str, int] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    disabled: set[str] = field(default_factory=set)
    _failing_since: dict[str, tuple[float, int]] = field(default_factory=dict)
    _copies: deque[tuple[int, str, bytes]] = field(default_factory=deque)
    _numbers: count[int] = field(default_factory=count)
    _stopping: bool = False

    def __post_init__(self) -> None:
        services = self._services = tuple(self.services) or (publishing,)
        self._ordinary = [_template("Is it open?", service) for service in services]
        self._failing = [_template(FAILS_ONCE, service) for service in services]
        self._run = f"{self.chance.getrandbits(32):08x}"
        self._began = datetime.now(UTC)

    async def send(
        self, events: int | None = None, *, lanes: int = _LANES, pause: float = 0.0
    ) -> None:
        """Send this many events, or go on until ``stop``; return when all are acknowledged.

        Args:
            events: the number of events.
            lanes: the number of connections.
            pause: the seconds that a connection waits between two events.

        """
        self._stopping = False
        left: Iterator[object] = repeat(None) if events is None else repeat(None, events)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(lanes):
                tasks.create_task(self._lane(left, pause, tasks))

    def stop(self) -> None:
        """Begin no more events, but deliver those already begun until they are acknowledged."""
        self._stopping = True

    async def deliver_again(self, event_ids: list[str]) -> Counter[tuple[int, str]]:
        """Deliver events once more, and return the answers."""
        before = self.answers.copy()
        left = deque(event_ids)

        async def lane() -> None:
            connection = _Lane(self.port)
            try:
                while left:
                    event_id = left.popleft()
                    await self._deliver(connection, event_id, self._body(self._ordinary, event_id))
            finally:
                connection.close()

        await asyncio.gather(*(lane() for _ in range(_LANES)))
        return self.answers - before

    def count_of(self, status: int) -> int:
        """Return the number of answers with this status."""
        return sum(times for (code, _), times in self.answers.items() if code == status)

    async def _lane(self, left: Iterator[object], pause: float, tasks: asyncio.TaskGroup) -> None:
        lane = _Lane(self.port)
        try:
            while not self._stopping:
                number = next(self._numbers)
                if self._copies and self._copies[0][0] <= number:
                    _, event_id, body = self._copies.popleft()
                elif next(left, _NO_MORE) is _NO_MORE:
                    break
                else:
                    event_id, body = self._new_event(number)
                await self._begin(lane, event_id, body, tasks)
                if pause:
                    await asyncio.sleep(pause)
            while self._copies:
                _, event_id, body = self._copies.popleft()
                await self._begin(lane, event_id, body, tasks)
        finally:
            lane.close()

    def _new_event(self, number: int) -> tuple[str, bytes]:
        mixed = self.chance.getrandbits(16)
        event_id = f"evt_{self._run}{number:06x}{mixed:04x}"
        fails = self.chance.random() < self.failing
        body = self._body(self._failing if fails else self._ordinary, event_id)
        if self.chance.random() < self.duplicates:
            if self.chance.random() < 0.5:  # next, while the first is in flight
                self._copies.appendleft((number, event_id, body))
            else:
                self._copies.append((number + _LATER_COPY, event_id, body))
        return event_id, body

    def service_of(self, event_id: str) -> str:
        """Return the name of the service that sends an event."""
        return self._services[self._place(event_id)].name

    def _place(self, event_id: str) -> int:
        """Return the index of the service that sends an event."""
        return int(event_id[-4:], 16) % len(self._services)

    def _body(self, templates: Sequence[bytes], event_id: str) -> bytes:
        """Return the body of an event; an event with a higher id has a later creation time."""
        template = templates[self._place(event_id)]
        created = self._began + timedelta(milliseconds=int(event_id[-10:-4], 16))
        text = created.strftime("%Y-%m-%dT%H:%M:%S.") + f"{created.microsecond // 1000:03d}Z"
        body = template.replace(_PLACEHOLDER.encode(), event_id.encode())
        return body.replace(_CREATED_TEXT, text.encode())

    async def _begin(
        self, lane: _Lane, event_id: str, body: bytes, tasks: asyncio.TaskGroup
    ) -> None:
        """Deliver an event. If there are several services, a new task makes the retries."""
        if not self.services:
            await self._deliver(lane, event_id, body)
        elif not await self._succeeds(lane, event_id, body, 1):
            tasks.create_task(self._deliver_by_schedule(event_id, body))
        if self.chance.random() < self.forging:
            await self._forge(lane, body, self._services[self._place(event_id)])

    async def _deliver(self, lane: _Lane, event_id: str, body: bytes) -> None:
        """Deliver an event until it is answered 2xx."""
        while True:
            if await self._attempt(lane, event_id, body):
                return
            await asyncio.sleep(_PAUSE_SECONDS * (1 + self.chance.random()))

    async def _deliver_by_schedule(self, event_id: str, body: bytes) -> None:
        """Make the attempts after the first, by the rules of the event's service.

        None of the services says that it reads ``Retry-After``.
        """
        rules, lane = self._services[self._place(event_id)].rules, _Lane(self.port)
        jitter = rules.retry_jitter or 0.0
        for number, wait in enumerate(rules.tried_retry_seconds, 2):
            await asyncio.sleep(wait / SPEED * self.chance.uniform(1 - jitter, 1 + jitter))
            try:
                if await self._succeeds(lane, event_id, body, number):
                    return
            finally:
                lane.close()
        if event_id not in self.acknowledged:
            self.given_up.add(event_id)

    async def _succeeds(self, lane: _Lane, event_id: str, body: bytes, number: int) -> bool:
        """Make an attempt; return whether its answer is 2xx and reaches the service."""
        is_lost = number <= _LAST_LOST and self.chance.random() < _LOST
        return await self._attempt(lane, event_id, body, number) and not is_lost

    async def _attempt(self, lane: _Lane, event_id: str, body: bytes, number: int = 1) -> bool:
        """Make an attempt; return whether its answer is 2xx."""
        service = self._services[self._place(event_id)]
        headers = self._headers(service, event_id, body, number)
        self.deliveries += 1
        self.latest[service.name] = max(number, self.latest.get(service.name, 0))
        started = time.monotonic()
        status, reason = await lane.post(self._path(service), headers, body, service)
        self.answers[status, reason] += 1
        if self.roams:
            lane.close()
        if status:
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - started)
        is_accepted = 200 <= status < 300
        self._note(service, is_accepted=is_accepted)
        if is_accepted:
            self.acknowledged.add(event_id)
        return is_accepted

    def _note(self, service: Service, *, is_accepted: bool) -> None:
        """Note an attempt; disable an endpoint that has failed for too long and too often."""
        rules, now = service.rules, time.monotonic()
        if is_accepted:
            self._failing_since.pop(service.name, None)
        elif self.services and rules.disabling_seconds is not None:
            since, failures = self._failing_since.get(service.name, (now, 0))
            self._failing_since[service.name] = since, failures + 1
            is_long = (now - since) * SPEED >= rules.disabling_seconds
            if is_long and failures + 1 >= (rules.disabling_failures or 1):
                self.disabled.add(service.name)

    def _path(self, service: Service) -> str:
        return service.name if self.services else "webhooks"

    def _headers(
        self, service: Service, event_id: str, body: bytes, number: int = 1
    ) -> dict[str, str]:
        """Return an attempt's headers; of two sets of header names, use one set or both sets."""
        secret = self.services.get(service, self.secret)
        headers = sign(secret, event_id, body, timestamp=self.clock(), sender=service)
        if not self.services:
            return headers
        if len(service.headers) > 1:
            values = {name.rpartition("-")[2]: value for name, value in headers.items()}
            families = self.chance.sample(service.headers, self.chance.randint(1, 2))
            headers = {f"{one}-{part}": values[part] for one in families for part in values}
        if service.hints is not None:
            headers[f"example-{service.hints.attempt}"] = str(number)
        return headers

    async def _forge(self, lane: _Lane, body: bytes, service: Service) -> None:
        """Send a forged event, with a new id, which the receiver must refuse."""
        event_id = f"{FORGED}{self.chance.getrandbits(48):012x}"
        body = re.sub(rb"evt_\w+", event_id.encode(), body)
        headers = self._headers(service, event_id, body)
        other = self.chance.choice([one for one in self._services if one is not service])
        match self.chance.randrange(4):
            case 0:
                headers = sign(_STRANGER, event_id, body, timestamp=self.clock(), sender=service)
            case 1:
                body += b" "
            case 2:  # signed with the secret of another endpoint
                secret = self.services[other]
                headers = sign(secret, event_id, body, timestamp=self.clock(), sender=service)
            case _:  # header names that this service does not use
                headers = {f"other-{name.partition('-')[2]}": headers[name] for name in headers}
        status, _ = await lane.post(self._path(service), headers, body, service)
        self.forgeries[status] += 1


class _Lane:
    """Holds one keep-alive connection at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(
        self, path: str, headers: dict[str, str], body: bytes, service: Service
    ) -> tuple[int, str]:
        """Send a delivery; return the answer's status and reason, or 0 and the fault.

        Args:
            path: where the endpoint is.
            headers: of the request.
            body: of the request.
            service: waits for the answer as long as its rules say.

        """
        head = [
            f"POST /{path} HTTP/1.1",
            "host: 127.0.0.1",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        try:
            async with asyncio.timeout(service.rules.patience_seconds):
                return await self._exchange("\r\n".join([*head, "", ""]).encode() + body)
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            return 0, type(error).__name__

    async def _exchange(self, request: bytes) -> tuple[int, str]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r")[0])
        content = await reader.readexactly(length)
        if b"connection: close" in head:
            self.close()
        return int(head[9:12]), json.loads(content)["reason"]

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
