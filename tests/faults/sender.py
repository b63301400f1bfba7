"""Sends deliveries as the service does: signed, again and again until they are answered 2xx."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, repeat

from hookonce import sign
from hookonce.samples.events import event_body

from .program import FAILS_ONCE

__all__ = ["Sender"]

_SENDER_WAITS_SECONDS = 10.0
_PLACEHOLDER = "evt_placeholder"
_CREATED = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
_CREATED_TEXT = b"2001-02-03T04:05:06.000Z"
_PAUSE_SECONDS = 0.05
_LATER_COPY = 100
_LANES = 16
_NO_MORE = object()


def _template(text: str) -> bytes:
    return event_body(
        "comment.received", event_id=_PLACEHOLDER, created_at=_CREATED, data={"text": text}
    )


@dataclass
class Sender:
    """Sends events over many connections at once, a fifth of them more than once.

    Attributes:
        port: where the web processes listen.
        secret: what deliveries are signed with.
        chance: which events fail at first, and which are delivered again, and when.
        clock: Unix time in seconds.
        failing: which part of the events fails at the first attempt.
        duplicates: how many more deliveries there are than events; a quarter is a fifth of all.
        roams: take a new connection for each delivery, so that any web process may have it.
        acknowledged: the ids of the events that were answered 2xx.
        deliveries: how many requests were sent.
        answers: how often which status came; 0 is none at all.
        slowest_seconds: the longest wait for an answer that came.

    """

    port: int
    secret: str
    chance: random.Random
    clock: Callable[[], float] = time.time
    failing: float = 0.0
    duplicates: float = 0.25
    roams: bool = False
    acknowledged: set[str] = field(default_factory=set)
    deliveries: int = 0
    answers: Counter[tuple[int, str]] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    _copies: deque[tuple[int, str, bytes]] = field(default_factory=deque)
    _numbers: count[int] = field(default_factory=count)
    _stopping: bool = False

    def __post_init__(self) -> None:
        self._ordinary = _template("Is it open?")
        self._failing = _template(FAILS_ONCE)
        self._run = f"{self.chance.getrandbits(32):08x}"
        self._began = datetime.now(UTC)

    async def send(
        self, events: int | None = None, *, lanes: int = _LANES, pause: float = 0.0
    ) -> None:
        """Send so many events, or go on until ``stop``; return when all are acknowledged.

        Args:
            events: how many.
            lanes: over how many connections.
            pause: how many seconds a connection rests between two events.

        """
        self._stopping = False
        left: Iterator[object] = repeat(None) if events is None else repeat(None, events)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(lanes):
                tasks.create_task(self._lane(left, pause))

    def stop(self) -> None:
        """Begin no more events; those begun are delivered until they are acknowledged."""
        self._stopping = True

    async def deliver_again(self, event_ids: list[str]) -> Counter[tuple[int, str]]:
        """Deliver events once more, and return what was answered."""
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
        """Return how often a status was answered."""
        return sum(times for (code, _), times in self.answers.items() if code == status)

    async def _lane(self, left: Iterator[object], pause: float) -> None:
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
                await self._deliver(lane, event_id, body)
                if pause:
                    await asyncio.sleep(pause)
            while self._copies:
                _, event_id, body = self._copies.popleft()
                await self._deliver(lane, event_id, body)
        finally:
            lane.close()

    def _new_event(self, number: int) -> tuple[str, bytes]:
        mixed = self.chance.getrandbits(16)
        event_id = f"evt_{self._run}{number:06x}{mixed:04x}"
        fails = self.chance.random() < self.failing
        body = self._body(self._failing if fails else self._ordinary, event_id)
        if self.chance.random() < self.duplicates:
            if self.chance.random() < 0.5:  # at once, so that both are under way together
                self._copies.appendleft((number, event_id, body))
            else:
                self._copies.append((number + _LATER_COPY, event_id, body))
        return event_id, body

    def _body(self, template: bytes, event_id: str) -> bytes:
        """Return the body of an event: of two events, the one with the higher id is newer."""
        created = self._began + timedelta(milliseconds=int(event_id[-10:-4], 16))
        text = created.strftime("%Y-%m-%dT%H:%M:%S.") + f"{created.microsecond // 1000:03d}Z"
        body = template.replace(_PLACEHOLDER.encode(), event_id.encode())
        return body.replace(_CREATED_TEXT, text.encode())

    async def _deliver(self, lane: _Lane, event_id: str, body: bytes) -> None:
        """Deliver an event until it is answered 2xx."""
        while True:
            headers = sign(self.secret, event_id, body, timestamp=self.clock())
            self.deliveries += 1
            started = time.monotonic()
            status, reason = await lane.post(headers, body)
            self.answers[status, reason] += 1
            if self.roams:
                lane.close()
            if status:
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - started)
            if 200 <= status < 300:
                self.acknowledged.add(event_id)
                return
            await asyncio.sleep(_PAUSE_SECONDS * (1 + self.chance.random()))


class _Lane:
    """One connection at a time, kept alive."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        """Return the status and reason of the answer; 0 and the fault where none came."""
        head = [
            "POST /webhooks HTTP/1.1",
            "host: 127.0.0.1",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        try:
            async with asyncio.timeout(_SENDER_WAITS_SECONDS):
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
        """Let go of the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
