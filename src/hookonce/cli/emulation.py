"""A run of the emulated service, from the first event to its end."""

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
from hookonce.resources import API_KEY_VARIABLE, API_URL_VARIABLE, Channel
from hookonce.samples.events import new_event_id

from .attempts import HEADING, EmulationCounts, print_attempt
from .ending import ended_by_signals
from .output import Output, one_line, system_fault
from .secrets_file import SecretsFile
from .serve import serving
from .statuses import CannotBegin

# How often to look for an endpoint that was registered or enabled.
_POLL_SECONDS = 0.05


class _AllEmitted(Exception):  # noqa: N818 - not an error: raised to end a flow early
    """Raised when no event is left to emit."""


class PacedEmitter:
    """Emits each event at its planned time, under a new id.

    Args:
        moments: the moments of the events, in seconds after the first.
        waits: whether to wait for an active endpoint if there is none; otherwise the emitter stops.
    """

    def __init__(self, service: EmulatedService, moments: Iterator[float], *, waits: bool) -> None:
        self._service = service
        self._moments = moments
        self._waits = waits
        self._started: float | None = None

    @property
    def channels(self) -> list[Channel]:
        return [row.resource for row in self._service.workspace.channels.values()]

    async def emit(self, event: str, *, data: Mapping[str, JsonValue] | None = None) -> Event[Any]:
        """Wait until the next planned time, then emit an event.

        Raises:
            _AllEmitted: no moment is left, or no endpoint.
        """
        moment = next(self._moments, None)
        if moment is None:
            raise _AllEmitted
        loop = asyncio.get_running_loop()
        if self._started is None:
            self._started = loop.time()
        await asyncio.sleep(self._started + moment - loop.time())
        due = loop.time()
        while not self._has_endpoint():
            if not self._waits:
                raise _AllEmitted
            await asyncio.sleep(_POLL_SECONDS)
            # Postpone all later events by the time that this event has waited.
            self._started += loop.time() - due
            due = loop.time()
        return await self._service.emit(event, data=data, event_id=new_event_id())

    def _has_endpoint(self) -> bool:
        return any(one.status == EndpointStatus.ACTIVE for one in self._service.endpoints)


async def emit_all(
    emitter: PacedEmitter, seed: int, *, flow: str | None = None, types: Sequence[str] = ()
) -> None:
    """Emit events until the emitter has no planned time left.

    Args:
        flow: the name of a flow to repeat; by default single events.
        types: the types of single events; by default all, at realistic rates.
    """
    generator = EventGenerator(seed, channels=emitter.channels)
    random = Random(f"{seed}:types")  # noqa: S311 - no security depends on these choices
    with suppress(_AllEmitted):
        while True:
            if flow is not None:
                await FLOWS[flow](emitter, generator=generator)
                continue
            event_type = random.choice(types) if types else generator.event_type()
            await emitter.emit(event_type, data=generator.data(event_type))


class Emulation:
    """A run of the emulated service.

    Args:
        secrets_file: receives new secrets.
    """

    def __init__(self, output: Output, tally: EmulationCounts, secrets_file: Path | None) -> None:
        self._output = output
        self._tally = tally
        self._secrets_file = secrets_file
        self._written: list[str] = []
        self._ended = asyncio.Event()
        self._fault: Exception | None = None

    def note(self, attempt: DeliveryAttempt) -> None:
        self._tally.count(attempt)
        try:
            print_attempt(attempt, self._output)
        except OSError as error:  # the program that reads the output has ended
            self._fail(error)

    def write_secret(self, secret: str) -> None:
        """Write a new secret above the previous secret, which stays valid for a day."""
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

    async def run(
        self,
        service: EmulatedService,
        emitting: Callable[[], Awaitable[None]],
        port: int | None,
        key: str | None = None,
    ) -> None:
        """Emit all events and wait until all are settled; with an API, wait until Ctrl-C.

        Args:
            port: serve the API on this port.
            key: an API key of the service; by default a new one.
        """
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            stack.enter_context(
                ended_by_signals(lambda: loop.call_soon_threadsafe(self._ended.set))
            )
            await stack.enter_async_context(service)
            if port is not None:
                base_url = await stack.enter_async_context(serving(service.api, port))
                key = key or service.new_key()
                calls = _calls_to_try(service, base_url, key)
                webhooks = [{"id": one.id, "url": one.url} for one in service.endpoints]
                lines = [
                    f"API at {base_url}, key {key}",
                    *(f"webhook {one['id']} to {one_line(one['url'])}" for one in webhooks),
                    *calls,
                    f"export {API_URL_VARIABLE}={base_url} {API_KEY_VARIABLE}={quote(key)}",
                ]
                self._output.record(
                    {"api": base_url, "key": key, "webhooks": webhooks, "try": calls},
                    "\n".join(lines),
                )
            self._output.say()
            self._output.say(HEADING, "bold")
            work = loop.create_task(self._work(service, emitting, stays=port is not None))
            work.add_done_callback(lambda _: self._ended.set())
            await self._ended.wait()
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        if self._fault is not None:
            raise self._fault

    async def _work(
        self, service: EmulatedService, emitting: Callable[[], Awaitable[None]], *, stays: bool
    ) -> None:
        await emitting()
        again = sum(bool(one.attempts) for one in service.deliveries(status="pending"))
        if again:
            self._output.say(
                f"all events are sent, {again} wait for a retry; Ctrl-C ends the command", "dim"
            )
        await service.settle()
        if stays:
            await self._ended.wait()

    def _fail(self, error: Exception) -> None:
        # Keep the error and raise it at the end of the run: an error raised here would not end the
        # run.
        self._fault = error
        self._ended.set()


def _calls_to_try(service: EmulatedService, base_url: str, key: str) -> list[str]:
    """Return three shell commands: show the key's owner, list the channels, create a post."""
    channels = [row.id for row in service.workspace.channels.values() if row.is_active]
    curl = f"curl -H {quote(f'Authorization: Bearer {key}')}"
    target = {"channelId": channels[0] if channels else "no active channel"}
    post = json.dumps({"caption": "Hello", "targets": [target], "mode": "now"})
    return [
        f"{curl} {base_url}/v1/me",
        f"{curl} {base_url}/v1/channels",
        f"{curl} -H 'content-type: application/json' -d {quote(post)} {base_url}/v1/posts",
    ]
