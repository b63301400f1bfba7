"""A run of the emulated service: what it emits, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from shlex import quote
from typing import Any

from pydantic import JsonValue

from hookonce import Event
from hookonce.emulator import (
    FLOWS,
    DeliveryAttempt,
    EmulatedService,
    EndpointStatus,
    EventGenerator,
)
from hookonce.errors import SecretError
from hookonce.resources import Channel
from hookonce.samples.events import new_event_id

from .attempts import HEADING, Tally, print_attempt
from .ending import ended_by_signals
from .output import Output, system_fault
from .secrets_file import SecretsFile
from .serve import serving
from .statuses import CannotBegin

# How often it looks whether an endpoint has been registered, or turned on again.
_LOOK_SECONDS = 0.05


class _Over(Exception):  # noqa: N818 - no error, but the end of a flow wherever it is
    """There is nothing more to emit."""


class Emitter:
    """Emits each event at its moment, under an id that no receiver knows yet.

    Args:
        service: what emits.
        moments: when, in seconds from the first.
        waits: whether an endpoint may still come that is there to be delivered to.

    """

    def __init__(self, service: EmulatedService, moments: Iterator[float], *, waits: bool) -> None:
        self._service = service
        self._moments = moments
        self._waits = waits
        self._started: float | None = None

    @property
    def channels(self) -> list[Channel]:
        """The channels that events are about."""
        return [row.resource for row in self._service.workspace.channels.values()]

    async def emit(self, event: str, *, data: Mapping[str, JsonValue] | None = None) -> Event[Any]:
        """Emit an event when it is time for it; ``_Over`` when there is no time, or nobody left."""
        moment = next(self._moments, None)
        if moment is None:
            raise _Over
        loop = asyncio.get_running_loop()
        if self._started is None:
            self._started = loop.time()
        await asyncio.sleep(self._started + moment - loop.time())
        due = loop.time()
        while not self._is_heard():
            if not self._waits:
                raise _Over
            await asyncio.sleep(_LOOK_SECONDS)
            self._started += loop.time() - due  # what follows is that much later too
            due = loop.time()
        return await self._service.emit(event, data=data, event_id=new_event_id())

    def _is_heard(self) -> bool:
        return any(one.status == EndpointStatus.ACTIVE for one in self._service.endpoints)


async def emit_all(
    emitter: Emitter, seed: int, *, flow: str | None = None, types: Sequence[str] = ()
) -> None:
    """Emit until it is over: a flow again and again, or single events.

    Args:
        emitter: what emits, each when it is time for it.
        seed: what they are drawn by.
        flow: the name of the flow.
        types: the types to choose from; by default all, some more often than others.

    """
    generator = EventGenerator(seed, channels=emitter.channels)
    random = Random(f"{seed}:types")  # noqa: S311 - what is made up is no secret
    with suppress(_Over):
        while True:
            if flow is not None:
                await FLOWS[flow](emitter, generator=generator)
                continue
            event_type = random.choice(types) if types else generator.event_type()
            await emitter.emit(event_type, data=generator.data(event_type))


class Run:
    """From the first event until all is settled, or somebody ends it.

    Args:
        output: where attempts are printed.
        tally: where they are counted.
        secrets_file: where new secrets are written.

    """

    def __init__(self, output: Output, tally: Tally, secrets_file: Path | None) -> None:
        self._output = output
        self._tally = tally
        self._secrets_file = secrets_file
        self._written: list[str] = []
        self._ended = asyncio.Event()
        self._fault: Exception | None = None

    def note(self, attempt: DeliveryAttempt) -> None:
        """Count an attempt and print it."""
        self._tally.count(attempt)
        try:
            print_attempt(attempt, self._output)
        except OSError as error:  # nobody reads it any more
            self._fail(error)

    def put_secret(self, secret: str) -> None:
        """Write a new secret above the last one, which signs for a day too."""
        if self._secrets_file is None:
            return
        path, outdated = self._secrets_file, set(self._written[:-1])
        self._written = [*self._written[-1:], secret]
        file = SecretsFile(path.resolve())
        try:
            with file.locked():
                lines = file.read().splitlines(keepends=True)
                kept = [line for line in lines if line.strip() not in outdated]
                file.replace("".join([f"{secret}\n", *kept]), file.path.stat().st_mode)
        except (OSError, SecretError) as error:
            fault = system_fault(error) if isinstance(error, OSError) else error
            self._fail(CannotBegin(f"cannot write {path}: {fault}"))

    async def go(
        self,
        service: EmulatedService,
        emitting: Callable[[], Awaitable[None]],
        port: int | None,
        key: str | None = None,
    ) -> None:
        """Emit, and return when all is settled, or at Ctrl-C; with an API, only at Ctrl-C.

        Args:
            service: what emits.
            emitting: emits until there is no more.
            port: where its API is served, if it is.
            key: one that is there already; by default a new one is made.

        """
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(service)
            if port is not None:
                base_url = await stack.enter_async_context(serving(service.api, port))
                key = key or service.new_key()
                calls = _calls_to_try(service, base_url, key)
                self._output.record(
                    {"api": base_url, "key": key, "try": calls},
                    "\n".join([f"API at {base_url}, key {key}", *calls]),
                )
            self._output.say()
            self._output.say(HEADING, "bold")
            # After the server, which has handlers of its own for them.
            stack.enter_context(
                ended_by_signals(lambda: loop.call_soon_threadsafe(self._ended.set))
            )
            work = loop.create_task(self._work(service, emitting, goes_on=port is not None))
            work.add_done_callback(lambda _: self._ended.set())
            await self._ended.wait()
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        if self._fault is not None:
            raise self._fault

    async def _work(
        self, service: EmulatedService, emitting: Callable[[], Awaitable[None]], *, goes_on: bool
    ) -> None:
        await emitting()
        again = sum(bool(one.attempts) for one in service.deliveries(status="pending"))
        if again:
            self._output.say(f"all is sent, {again} to be tried again; Ctrl-C ends it", "dim")
        await service.settle()
        if goes_on:
            await self._ended.wait()

    def _fail(self, error: Exception) -> None:
        # Raised in the middle of a delivery it would be lost.
        self._fault = error
        self._ended.set()


def _calls_to_try(service: EmulatedService, base_url: str, key: str) -> list[str]:
    """Return three commands for a shell: whose key it is, the channels, and a post to one."""
    channels = [row.id for row in service.workspace.channels.values() if row.is_active]
    curl = f"curl -H {quote(f'Authorization: Bearer {key}')}"
    target = {"channelId": channels[0] if channels else "none is active"}
    post = json.dumps({"caption": "Hello", "targets": [target], "mode": "now"})
    return [
        f"{curl} {base_url}/v1/me",
        f"{curl} {base_url}/v1/channels",
        f"{curl} -H 'content-type: application/json' -d {quote(post)} {base_url}/v1/posts",
    ]
