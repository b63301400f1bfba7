"""The simulation: in virtual time, an emulated service sends events to a copy of a receiver."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from secrets import randbits, token_hex
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import JsonValue

from ..emulator.chaos import Chaos, moments_of
from ..emulator.generated import EventGenerator
from ..emulator.records import DeliveryAttempt
from ..emulator.rules import SUBSCRIBABLE
from ..emulator.service import EmulatedService
from ..emulator.workspace_data import WorkspaceData
from ..events import Event
from ..http.app import Receive, Scope, Send
from ..inbox.settings import Inbox
from ..receiver import Receiver
from ..receiver.ledgers import check_ledgers, ledgers_in_use
from ..resources import Channel, ReceivedComment
from ..routing.keyed import watermark_of
from ..routing.table import HandlerTable
from ..samples.events import make_event
from ..sender import TWO_SIGNATURES_SECONDS
from ..stores import open_store
from ..stores.protocols import InboxStore, Store
from ..stores.values import DeadReason
from ..verification.secrets import new_secret
from .api_port import ApiPort
from .calls import CallLog
from .faults import FaultPlan
from .handlers import instrumented
from .keyed_calls import EventKey, KeyedCalls
from .report import Emitted, SimulationReport, settled, violations
from .virtual_loop import VirtualLoop, is_in_event_loop, run_virtually, virtual_runner
from .watched_store import watched

DEFAULT_EVENTS = 500
DEFAULT_CHAOS = 0.3

# As many as one process can handle, so that many deliveries are in flight at the same time.
_EVENTS_PER_SECOND = 200.0

# The probability that an event has any type, even a type without a handler.
_OTHER_TYPES = 0.1

# Most comments belong to a few recent posts, so that handlers with the post as key must wait for
# each other.
_SAME_POST, _POSTS = 0.7, 5

_EVENTS_PER_BURST = 250
_LONGEST_PAUSE_SECONDS = 3 * 3600.0

# Long enough for all retries of an inbox, which end after about 27 hours.
_LONGEST_HOURS = 40.0
_POLL_SECONDS = 60.0


class Mode(Enum):
    """Whether handlers run inside the request or from an inbox."""

    AS_IT_IS = "as it is"
    """As the receiver is configured."""
    INLINE = "inline"
    """Inside the request."""
    INBOX = "inbox"
    """From the receiver's inbox; a receiver without an inbox gets ``Inbox()``."""


def simulate(
    receiver: Receiver,
    *,
    events: int = DEFAULT_EVENTS,
    chaos: float = DEFAULT_CHAOS,
    seed: int | None = None,
    store: str | None = None,
    mode: Mode = Mode.AS_IT_IS,
    channels: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationReport:
    """Run a receiver's handlers under chaos in virtual time, and report the rules it broke.

    An emulated service sends events to a copy of the receiver. The copy has its own secrets, store
    and clock; the original does not change. Chaos disturbs requests, injects faults into calls of
    handlers (they fail, become slow or raise ``Retry``), rotates secrets and restarts the copy.
    Virtual time makes a day of retries take seconds.

    The handlers and error hooks really run: connect them to test systems. The emulated service
    answers their calls of its API: during the simulation ``HOOKONCE_API_URL`` and
    ``HOOKONCE_API_KEY`` lead there. The function starts its own event loop, so call it from
    synchronous code.

    Args:
        receiver: the receiver to simulate; it needs a handler for a documented event type.
        events: the number of events, from 1.
        chaos: the probability of a disturbance at each request, and of a fault at each call of a
            handler, from 0 to 1.
        seed: repeats the events and faults of the simulation with this seed; random by default.
            Stores and handlers outside the process rarely change a simulation with the same seed.
        store: the URL of a store, such as ``memory://`` or ``redis://localhost/0``. The simulation
            uses a new endpoint in it. By default it uses SQLite in a temporary folder.
        mode: where handlers run.
        channels: the number of channels to which the events belong, from 1; by default, the
            channels of the emulated service.
        progress: called during the simulation with the number of emitted events and ``events``.

    Returns:
        The report. ``report.passed`` is true if ``report.findings`` is empty.

    Raises:
        ValueError: an argument is out of range, the store has no inbox and ``mode`` needs one, or
            the receiver has no handler for a documented event type.
        ImportError: the store needs a package that is not installed.
        StoreError: the store cannot be opened.
        LedgerError: the ledger of a handler with ``within=`` is not usable.
        RuntimeError: an event loop is running in this thread.
    """
    if is_in_event_loop():
        raise RuntimeError("simulate starts its own event loop: call it from synchronous code")
    with ApiPort() as port, virtual_runner() as runner:
        return simulate_in(
            runner,
            port,
            receiver,
            events=events,
            chaos=chaos,
            seed=seed,
            store=store,
            mode=mode,
            channels=channels,
            progress=progress,
        )


def simulate_in(
    runner: asyncio.Runner,
    port: ApiPort,
    receiver: Receiver,
    *,
    events: int = DEFAULT_EVENTS,
    chaos: float = DEFAULT_CHAOS,
    seed: int | None = None,
    store: str | None = None,
    mode: Mode = Mode.AS_IT_IS,
    channels: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationReport:
    """Run a simulation like ``simulate``, in an event loop and with a port that exist already.

    A module may read the port's address from the environment when it is imported. Its receivers may
    share engines, pools and clients, which belong to one event loop.

    Args:
        runner: a virtual runner.
    """
    if not 0 <= chaos <= 1:
        raise ValueError(f"chaos is a probability from 0 to 1, not {chaos!r}")
    if events < 1:
        raise ValueError(f"events takes a number above 0, not {events!r}")
    if channels is not None and channels < 1:
        raise ValueError(f"channels takes a number above 0, not {channels!r}")
    seed = randbits(32) if seed is None else seed
    with TemporaryDirectory(prefix="hookonce-chaos-") as folder:
        url = store or f"sqlite:///{Path(folder, 'chaos.db')}"
        return run_virtually(
            lambda loop: _Simulation(receiver, loop, url, mode, seed, chaos, channels, port).run(
                events, progress
            ),
            runner,
        )


def _channels(count: int) -> list[Channel]:
    usual = EventGenerator(0).channels
    return [usual[n % len(usual)].model_copy(update={"id": f"ch_{n + 1:04}"}) for n in range(count)]


def _workspace(channels: Sequence[Channel]) -> WorkspaceData:
    """Return a workspace with these channels, or the usual channels if there are none."""
    described = [channel.model_dump(mode="json") for channel in channels]
    return WorkspaceData.model_validate({"channels": described} if described else {})


class _Secrets:
    """The receiver's secrets; a new secret is added some time after its rotation."""

    def __init__(self, first: str) -> None:
        self._secrets = [first]

    def current(self) -> list[str]:
        return self._secrets

    def add(self, secret: str) -> None:
        self._secrets = [secret, *self._secrets[:1]]


class _Deployment:
    """An ASGI application that passes requests to the newest receiver."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.count = 0
        self._open: AsyncExitStack | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("the deployment runs the lifespan of its receivers itself")
        await self.receiver(scope, receive, send)

    async def deploy(self, receiver: Receiver) -> None:
        """Open a receiver, send new requests to it, then close the previous receiver."""
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(receiver)
            # Run the inbox workers here, even if the receiver expects them in other processes.
            with suppress(LookupError, RuntimeError):
                await opening.enter_async_context(receiver.working())
            previous, self._open = self._open, opening.pop_all()
        self.receiver = receiver
        self.count += 1
        if previous is not None:
            await previous.aclose()

    async def aclose(self) -> None:
        if self._open is not None:
            await self._open.aclose()


class _Simulation:
    """One call of ``simulate``: its receiver, service, random numbers and results."""

    def __init__(
        self,
        receiver: Receiver,
        loop: VirtualLoop,
        store_url: str,
        mode: Mode,
        seed: int,
        chaos: float,
        channels: int | None,
        port: ApiPort | None = None,
    ) -> None:
        self._original = receiver
        self._port = port
        self._loop = loop
        # Keep one clock object for all stores, because `loop.unix_clock` is a new object at each
        # access. Stores in one SQLite file share a writer, which keeps their calls in order, only
        # if they have the same clock object.
        self._clock = loop.unix_clock
        self._store_url = store_url
        self._mode = mode
        self._seed = seed
        self._chaos = Chaos(chaos)
        # Rotations use a different generator. The speed of the machine decides whether a rotation
        # or the next event comes first, so a rotation that used this generator would change the
        # events.
        self._random = Random(f"{seed}:simulation")  # noqa: S311 - chaos is no secret
        self._random_learning = Random(f"{seed}:learning")  # noqa: S311 - chaos is no secret
        self._channels = _channels(channels) if channels else ()
        self._generator = EventGenerator(seed, clock=loop.unix_clock, channels=self._channels)
        self._random_posts = Random(f"{seed}:posts")  # noqa: S311 - chaos is no secret
        self._posts: list[JsonValue] = []
        self._keyed = {handler.name: handler.keyed for handler in receiver.handlers}
        self._event_keys: dict[tuple[str, str], EventKey] = {}
        self._log = CallLog()
        self._handlers = instrumented(
            receiver, log=self._log, plan=FaultPlan(seed=seed, rate=chaos), loop=loop
        )
        self._secret = new_secret()
        self._secrets = _Secrets(self._secret)
        # A new endpoint, so that other events in a shared store do not count.
        self._endpoint = f"chaos-{token_hex(4)}"
        self._store = self._opened_store()
        self._emitted: list[Emitted] = []
        self._table = HandlerTable(receiver.handlers)
        self._types = [name for name in SUBSCRIBABLE if self._table.find(make_event(name))]
        if not self._types:
            raise ValueError("this receiver has no handler for any documented event type")

    async def run(
        self, events: int, progress: Callable[[int, int], None] | None
    ) -> SimulationReport:
        pools = AsyncExitStack()
        try:
            await pools.enter_async_context(ledgers_in_use(self._original.handlers))
            async with self._loop.outside():
                await check_ledgers(self._original.handlers, store_retention=None)
            return await self._run(events, progress)
        finally:
            async with self._loop.outside():
                await pools.aclose()

    async def _run(
        self, events: int, progress: Callable[[int, int], None] | None
    ) -> SimulationReport:
        started = self._loop.time()
        attempts: list[DeliveryAttempt] = []
        deployment = _Deployment(self._original)
        await deployment.deploy(self._copy())
        service = EmulatedService(
            deployment,
            secret=self._secret,
            service=self._original.service,
            clock=self._loop.unix_clock,
            speed=1.0,
            chaos=self._chaos,
            seed=self._seed,
            data=_workspace(self._channels),
            on_attempt=attempts.append,
            on_event=self._note,
            on_rotation=self._learn_later,
        )
        try:
            with self._answering(service):
                async with service:
                    await self._emit_all(service, deployment, events, progress)
                    await service.settle()
                await self._until_quiet()
            waiting = await self._waiting()
            dead_letters = await self._discard_dead_letters(deployment.receiver)
        finally:
            await deployment.aclose()
        keyed = KeyedCalls(self._event_keys, self._log.calls)
        counts = settled(self._emitted, self._log, keyed)
        replies = service.replies()
        return SimulationReport(
            seed=self._seed,
            events=len(self._emitted),
            requests=len(attempts),
            disturbed=sum(attempt.disturbance is not None for attempt in attempts),
            calls=len(self._log.calls),
            injected=sum(call.fault is not None for call in self._log.calls),
            handled=counts.handled,
            stale=counts.stale,
            ignored=sum(not event.handlers for event in self._emitted),
            dead_letters=Counter(dead_letters.values()),
            waiting=len(waiting),
            api_requests=0 if self._port is None else self._port.requests,
            replies=len(replies),
            restarts=deployment.count - 1,
            hours=(self._loop.time() - started) / 3600,
            findings=violations(
                self._emitted,
                attempts,
                self._log,
                dead_letters,
                waiting,
                keyed=keyed,
                replies=replies,
            ),
        )

    def _answering(self, service: EmulatedService) -> AbstractContextManager[None]:
        """Return a context in which the port leads to the API of the emulated service."""
        if self._port is None:
            return nullcontext()
        return self._port.leads_to(service.api, self._loop, service.new_key())

    def _opened_store(self) -> Store:
        return watched(open_store(self._store_url, clock=self._clock), self._loop)

    def _copy(self) -> Receiver:
        """Return a copy of the receiver, as after a restart: with a new connection to the store."""
        # A new connection to a memory store would be a new, empty store.
        if not self._store_url.startswith("memory:"):
            self._store = self._opened_store()
        copy = partial(
            self._original.copy,
            secrets=self._secrets,
            store=self._store,
            endpoint=self._endpoint,
            clock=self._loop.unix_clock,
            router=self._handlers,
        )
        if self._mode is Mode.INLINE:
            return copy(inbox=None)
        if self._mode is Mode.INBOX and self._original.inbox is None:
            return copy(inbox=Inbox())
        return copy()

    async def _emit_all(
        self,
        service: EmulatedService,
        deployment: _Deployment,
        events: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Emit events in bursts, with pauses of up to hours; restart the receiver in each burst."""
        for begin in range(0, events, _EVENTS_PER_BURST):
            size = min(_EVENTS_PER_BURST, events - begin)
            restart_after = self._random.randrange(size)
            started = self._loop.time()
            moments = moments_of(self._chaos, self._seed + begin, size, _EVENTS_PER_SECOND)
            restart: asyncio.Task[None] | None = None
            for number, moment in enumerate(moments):
                await asyncio.sleep(started + moment - self._loop.time())
                await self._emit(service)
                if number == restart_after:
                    restart = self._loop.create_task(deployment.deploy(self._copy()))
            if restart is not None:
                await restart
            if progress is not None:
                progress(begin + size, events)
            if begin + size < events:
                await asyncio.sleep(self._random.uniform(0, _LONGEST_PAUSE_SECONDS))

    async def _emit(self, service: EmulatedService) -> None:
        types = SUBSCRIBABLE if self._random.random() < _OTHER_TYPES else self._types
        event_type = self._random.choice(types)
        await service.emit(event_type, data=self._data(event_type))

    def _note(self, event: Event[Any], _: int) -> None:
        """Record an event that the service emits, at random or because a handler called the API."""
        handlers = tuple(handler.name for handler in self._table.find(event))
        comment_id = event.data.id if isinstance(event.data, ReceivedComment) else None
        self._emitted.append(Emitted(event.id, event.type, handlers, comment_id))
        for name in handlers:
            if (keyed := self._keyed.get(name)) is None:
                continue
            # Ignore an error of the key function here: the same error is logged when the handler is
            # called.
            with suppress(Exception):
                if (key_lock := keyed.key_lock(event, self._endpoint, name)) is not None:
                    self._event_keys[event.id, name] = EventKey(
                        key_lock.key, watermark_of(event), keyed
                    )

    def _data(self, event_type: str) -> dict[str, JsonValue]:
        """Return the data of an event; a comment often has the same post as earlier comments."""
        data = self._generator.data(event_type)
        post = data.get("postId")
        if post is not None:
            if self._posts and self._random_posts.random() < _SAME_POST:
                data["postId"] = self._random_posts.choice(self._posts)
            else:
                self._posts = [*self._posts[1 - _POSTS :], post]
        return data

    def _learn_later(self, secret: str) -> None:
        # The receiver may get the new secret late, because the sender signs with both for 24 hours.
        seconds = self._random_learning.uniform(0, TWO_SIGNATURES_SECONDS - 3600)
        self._loop.call_later(seconds, self._secrets.add, secret)

    async def _until_quiet(self) -> None:
        """Wait until no handler runs and the inbox is empty, but at most ``_LONGEST_HOURS``."""
        end = self._loop.time() + _LONGEST_HOURS * 3600
        while self._loop.time() < end:
            depth = (await self._store.stats(endpoint=self._endpoint)).depth
            if not (depth or self._log.in_progress):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _waiting(self) -> set[str]:
        """Return the ids of events that wait in the inbox for an attempt that is not due yet.

        An event that is due already counts as lost, because a worker should have fetched it.
        """
        if not isinstance(self._store, InboxStore):
            return set()
        limit = len(self._emitted) + 1
        entries = await self._store.entries(endpoint=self._endpoint, limit=limit)
        now = self._loop.unix_clock()
        return {
            entry.delivery.event_id
            for entry in entries
            if entry.due_unix > now and not entry.in_flight
        }

    async def _discard_dead_letters(self, receiver: Receiver) -> dict[str, DeadReason]:
        """Return the reasons of the dead letters by event id, and discard the dead letters."""
        dead_letters = await receiver.dead.list(limit=len(self._emitted) + 1)
        for dead_letter in dead_letters:
            await receiver.dead.discard(dead_letter.delivery.event_id)
        return {dead_letter.delivery.event_id: dead_letter.reason for dead_letter in dead_letters}
