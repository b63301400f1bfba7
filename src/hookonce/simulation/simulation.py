"""A simulation: a receiver's own handlers under an emulated sender, chaos, and virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from secrets import randbits, token_hex
from tempfile import TemporaryDirectory

from pydantic import JsonValue

from ..emulator.chaos import Chaos
from ..emulator.generated import EventGenerator
from ..emulator.records import DeliveryAttempt
from ..emulator.rules import SUBSCRIBABLE
from ..emulator.service import EmulatedService
from ..http.app import Receive, Scope, Send
from ..inbox.settings import Inbox
from ..receiver import Receiver
from ..resources import Channel
from ..routing.keyed import watermark_of
from ..samples.events import make_event
from ..sender import TWO_SIGNATURES_SECONDS
from ..stores import open_store
from ..stores.contract import InboxStore, Store
from ..stores.values import DeadReason
from ..verification.secrets import new_secret
from .counted import counted
from .faults import FaultPlan
from .ledger import Ledger
from .report import Emitted, Report, judged, settled
from .turns import Turn, Turns
from .virtual_loop import VirtualLoop, run_virtually
from .watched_store import watched

DEFAULT_EVENTS = 500
DEFAULT_CHAOS = 0.3

# Emitted in a virtual second: near to what one process can take, so that much happens at once.
_EVENTS_PER_SECOND = 200.0

# One event in ten is of a type that may have no handler.
_OTHER_TYPES = 0.1

# Comments on the same few posts, so that handlers that take turns by the post have to.
_SAME_POST, _POSTS = 0.7, 5

_EVENTS_IN_A_RUSH = 250
_LONGEST_PAUSE_SECONDS = 3 * 3600.0

# The inbox's own retries end after about 27 hours.
_LONGEST_HOURS = 40.0
_LOOK_SECONDS = 60.0


class Mode(Enum):
    """Where handlers run."""

    AS_IT_IS = "as it is"
    INLINE = "inline"
    INBOX = "inbox"


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
) -> Report:
    """Run a receiver's own handlers under chaos in virtual time, and return what went wrong.

    A day of retries takes seconds. The handlers really run, so what they call should be made for
    tests. The receiver itself stays as it is: a copy of it, with secrets, a store and a clock of
    its own, receives the events of an emulated service; every run of a handler is counted, and some
    are made to fail, to be slow, or to ask for a retry. Now and then the receiver is stopped and
    started again. It runs an event loop of its own, so call it where none runs.

    Args:
        receiver: whose handlers.
        events: how many events.
        chaos: how probable it is that something goes wrong with an attempt, and with a run.
        seed: what everything is drawn by; a new one by default. The same brings the same events and
            faults; on a file or a server the number of requests may differ by a few.
        store: the URL of a store; by default a new SQLite file, which is removed.
        mode: run handlers inside the request, or from an inbox; as the receiver does by default.
        channels: how many channels the events are of; as many as the emulator has by default.
        progress: told how many events have been emitted, and how many there are.

    Raises:
        ValueError: an argument cannot be used, or no documented event type has a handler.
        StoreError: the store cannot be opened.

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
            lambda loop: _Simulation(receiver, loop, url, mode, seed, chaos, channels).run(
                events, progress
            )
        )


def _channels(count: int) -> list[Channel]:
    usual = EventGenerator(0).channels
    return [usual[n % len(usual)].model_copy(update={"id": f"ch_{n + 1:04}"}) for n in range(count)]


class _Secrets:
    """The secrets of the receiver, to which a new one is added some time after a rotation."""

    def __init__(self, first: str) -> None:
        self._secrets = [first]

    def current(self) -> list[str]:
        return self._secrets

    def add(self, secret: str) -> None:
        self._secrets = [secret, *self._secrets[:1]]


class _Deployment:
    """An ASGI application that is the receiver deployed last."""

    def __init__(self, receiver: Receiver, loop: VirtualLoop) -> None:
        self.receiver = receiver
        self.count = 0
        self._loop = loop
        self._open: AsyncExitStack | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("receivers are opened when they are deployed")
        await self.receiver(scope, receive, send)

    async def deploy(self, receiver: Receiver) -> None:
        """Send requests to a receiver from now on, then stop the one before."""
        async with AsyncExitStack() as opening:
            # A ledger is tried at the start, and its database is as fast as it is.
            has_ledger = any(handler.ledger is not None for handler in receiver.handlers)
            with self._loop.real_time() if has_ledger else nullcontext():
                await opening.enter_async_context(receiver)
            # Where other processes work on the inbox, this one does it for them.
            with suppress(LookupError, RuntimeError):
                await opening.enter_async_context(receiver.working())
            before, self._open = self._open, opening.pop_all()
        self.receiver = receiver
        self.count += 1
        if before is not None:
            await before.aclose()

    async def end(self) -> None:
        """Stop the receiver."""
        if self._open is not None:
            await self._open.aclose()


class _Simulation:
    """One receiver, one loop, one seed."""

    def __init__(
        self,
        receiver: Receiver,
        loop: VirtualLoop,
        store_url: str,
        mode: Mode,
        seed: int,
        chaos: float,
        channels: int | None,
    ) -> None:
        self._original = receiver
        self._loop = loop
        self._store_url = store_url
        self._mode = mode
        self._seed = seed
        self._chaos = Chaos(chaos)
        # One for what is drawn in order, and one for what happens between at its own time: whether
        # a rotation or the next event comes first depends on how fast the machine is.
        self._random = Random(f"{seed}:simulation")  # noqa: S311 - chaos is no secret
        self._random_learning = Random(f"{seed}:learning")  # noqa: S311 - chaos is no secret
        self._generator = EventGenerator(
            seed, clock=loop.unix_clock, channels=_channels(channels) if channels else ()
        )
        self._random_posts = Random(f"{seed}:posts")  # noqa: S311 - chaos is no secret
        self._posts: list[JsonValue] = []
        # As they were registered, whatever the receiver makes of it.
        self._keyed = {handler.name: handler.keyed for handler in receiver.handlers}
        self._turns: dict[tuple[str, str], Turn] = {}
        self._ledger = Ledger()
        self._handlers = counted(
            receiver, ledger=self._ledger, plan=FaultPlan(seed=seed, rate=chaos), loop=loop
        )
        self._secret = new_secret()
        self._secrets = _Secrets(self._secret)
        # In a store that others use, the events of a simulation are nobody else's.
        self._endpoint = f"chaos-{token_hex(4)}"
        self._store = self._opened_store()
        self._emitted: list[Emitted] = []
        self._types = [name for name in SUBSCRIBABLE if receiver.find(make_event(name))]
        if not self._types:
            raise ValueError("this receiver has no handler for any documented event type")

    async def run(self, events: int, progress: Callable[[int, int], None] | None) -> Report:
        """Simulate, and return what it came to."""
        started = self._loop.time()
        attempts: list[DeliveryAttempt] = []
        deployment = _Deployment(self._original, self._loop)
        await deployment.deploy(self._copy())
        service = EmulatedService(
            deployment,
            secret=self._secret,
            service=self._original.service,
            clock=self._loop.unix_clock,
            speed=1.0,
            chaos=self._chaos,
            seed=self._seed,
            on_attempt=attempts.append,
            on_rotation=self._learn_later,
        )
        try:
            async with service:
                await self._emit_all(service, deployment, events, progress)
                await service.settle()
            await self._until_quiet()
            waiting = await self._waiting()
            letters = await self._discard_dead_letters(deployment.receiver)
        finally:
            await deployment.end()
        turns = Turns(self._turns, self._ledger.runs)
        counts = settled(self._emitted, self._ledger, turns)
        return Report(
            seed=self._seed,
            events=len(self._emitted),
            requests=len(attempts),
            disturbed=sum(attempt.disturbance is not None for attempt in attempts),
            runs=len(self._ledger.runs),
            injected=sum(run.fault is not None for run in self._ledger.runs),
            handled=counts.handled,
            stale=counts.stale,
            ignored=sum(not event.handlers for event in self._emitted),
            dead_letters=Counter(letters.values()),
            waiting=len(waiting),
            restarts=deployment.count - 1,
            hours=(self._loop.time() - started) / 3600,
            findings=judged(self._emitted, attempts, self._ledger, letters, waiting, turns=turns),
        )

    def _opened_store(self) -> Store:
        return watched(open_store(self._store_url, clock=self._loop.unix_clock), self._loop)

    def _copy(self) -> Receiver:
        """Return the receiver as a process would have it that has just started."""
        if not self._store_url.startswith("memory:"):  # which would not survive
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
        if self._mode is Mode.INBOX and not hasattr(self._original, "inbox"):
            return copy(inbox=Inbox())
        return copy()

    async def _emit_all(
        self,
        service: EmulatedService,
        deployment: _Deployment,
        events: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Emit in rushes with hours between them, and start the receiver anew in each."""
        for begin in range(0, events, _EVENTS_IN_A_RUSH):
            size = min(_EVENTS_IN_A_RUSH, events - begin)
            restart_after = self._random.randrange(size)
            started = self._loop.time()
            moments = self._chaos.moments(self._seed + begin, size, _EVENTS_PER_SECOND)
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
        event = await service.emit(event_type, data=self._data(event_type))
        handlers = tuple(handler.name for handler in self._original.find(event))
        self._emitted.append(Emitted(event.id, event.type, handlers))
        for name in handlers:
            if (keyed := self._keyed.get(name)) is None:
                continue
            # What a key function raises is the handler's failure, and told as such.
            with suppress(Exception):
                if (key_lock := keyed.key_lock(event, self._endpoint, name)) is not None:
                    self._turns[event.id, name] = Turn(key_lock.key, watermark_of(event), keyed)

    def _data(self, event_type: str) -> dict[str, JsonValue]:
        """Return the data of an event; many comments are on a post that has one already."""
        data = self._generator.data(event_type)
        post = data.get("postId")
        if post is not None:
            if self._posts and self._random_posts.random() < _SAME_POST:
                data["postId"] = self._random_posts.choice(self._posts)
            else:
                self._posts = [*self._posts[1 - _POSTS :], post]
        return data

    def _learn_later(self, secret: str) -> None:
        # Whoever rotates has 24 hours to tell the receiver.
        seconds = self._random_learning.uniform(0, TWO_SIGNATURES_SECONDS - 3600)
        self._loop.call_later(seconds, self._secrets.add, secret)

    async def _until_quiet(self) -> None:
        """Return when no handler runs and nothing waits in the inbox any more."""
        end = self._loop.time() + _LONGEST_HOURS * 3600
        while self._loop.time() < end:
            depth = (await self._store.stats(endpoint=self._endpoint)).depth
            if not (depth or self._ledger.under_way):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _waiting(self) -> set[str]:
        """Return the ids of the events whose next attempt in the inbox lies still ahead.

        What is due already is not among them: somebody should have taken it.
        """
        if not isinstance(self._store, InboxStore):
            return set()
        limit = len(self._emitted) + 1
        entries = await self._store.entries(endpoint=self._endpoint, limit=limit)
        now = self._loop.unix_clock()
        return {
            entry.delivery.event_id
            for entry in entries
            if entry.due_at > now and not entry.in_flight
        }

    async def _discard_dead_letters(self, receiver: Receiver) -> dict[str, DeadReason]:
        """Return the ids of the dead letters with why, and leave none in somebody's store."""
        letters = await receiver.dead.list(limit=len(self._emitted) + 1)
        for letter in letters:
            await receiver.dead.discard(letter.delivery.event_id)
        return {letter.delivery.event_id: letter.reason for letter in letters}
