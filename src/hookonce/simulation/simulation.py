"""The simulation: in virtual time, an emulated service sends events to a copy of a receiver."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from secrets import randbits, token_hex
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from pydantic import JsonValue

from ..emulator.chaos import Chaos, fault_of
from ..emulator.records import DeliveryAttempt
from ..emulator.rules import subscribable
from ..emulator.service import EmulatedService
from ..emulator.workspace_data import WorkspaceData
from ..events import Event, EventClass
from ..inbox.settings import Inbox
from ..receiver import Receiver
from ..receiver.ledgers import check_ledgers, ledgers_in_use
from ..resources import Channel, ReceivedComment
from ..routing.keyed import watermark_of
from ..routing.table import HandlerTable
from ..samples.events import make_event
from ..stores import open_store
from ..stores.protocols import InboxStore, Store
from ..stores.values import DeadReason
from ..verification.secrets import new_secret
from .api_port import ApiPort
from .calls import CallLog, error_with_line
from .deployment import Deployment
from .drawing import channels_of, drawn_scenario, types_of
from .faults import FaultPlan
from .handlers import instrumented
from .journal import SimulationJournal
from .keyed_calls import EventKey, KeyedCalls
from .report import (
    Emitted,
    RecordedReport,
    Run,
    SimulationReport,
    settled,
    violations,
    wrong_effects,
)
from .scenario import PlannedEvent, RecordedFaults, Restart, Scenario, ScriptedFaults
from .virtual_loop import VirtualLoop, is_in_event_loop, run_virtually, virtual_runner
from .watched_store import watched

DEFAULT_EVENTS = 500
DEFAULT_CHAOS = 0.3

# Call `progress` once per this many emitted events.
_EVENTS_PER_STEP = 250

# Long enough for all retries of an inbox, which end after about 27 hours.
_LONGEST_HOURS = 40.0
_POLL_SECONDS = 60.0

# For each event, at most this many requests may fail, and at most this many calls of each handler.
# Half of the sender's attempts stay undisturbed, so that a correct receiver handles every event.
_MOST_FAULTS = 3

# The receiver gets a new secret within this share of the time in which the sender signs with both
# secrets.
_LEARNING_SHARE = 23 / 24


class Mode(Enum):
    """The way to run handlers: as configured, inside the request, or from an inbox."""

    AS_IT_IS = "as it is"
    """Handlers run as the receiver is configured."""
    INLINE = "inline"
    """Handlers run inside the request."""
    INBOX = "inbox"
    """Handlers run from the inbox; a receiver without an inbox gets ``Inbox()``."""


Source: TypeAlias = Receiver | Callable[[], Receiver]
"""A receiver to simulate, or a function that returns a new receiver for each start of a process."""

Check: TypeAlias = Callable[[Sequence[Event[Any]]], object]
"""A function that raises AssertionError if the effects of these events are wrong.

It may be async.
"""


def simulate(
    receiver: Source,
    *,
    events: int = DEFAULT_EVENTS,
    chaos: float = DEFAULT_CHAOS,
    seed: int | None = None,
    store: str | None = None,
    mode: Mode = Mode.AS_IT_IS,
    channels: int | None = None,
    data: Mapping[str, Mapping[str, JsonValue]] | None = None,
    check: Check | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationReport:
    """Run a receiver's handlers under chaos in virtual time, and report the rules it broke.

    An emulated service sends events to a copy of the receiver, with the headers and bodies of the
    receiver's sender and by its rules. A rule that the sender does not publish is not applied: no
    endpoint is disabled after failures, and no secret rotated. Without a schedule the service
    retries by the example of the Standard Webhooks specification.

    The copy has its own secrets, store and clock; the original does not change. Chaos disturbs
    requests, injects faults into calls of handlers (they fail, become slow or raise ``Retry``),
    rotates secrets and restarts the copy. Virtual time makes a day of retries take seconds.

    The handlers and error hooks really run: connect them to test systems. The emulated service
    answers their calls of its API: during the simulation ``HOOKONCE_API_URL`` and
    ``HOOKONCE_API_KEY`` lead there. The function starts its own event loop, so call it from
    synchronous code.

    Args:
        receiver: the receiver to simulate; it needs a handler for an event type. A function is
            called at each start and restart, so that what the receiver keeps in memory is lost, as
            in a new process.
        events: the number of events, from 1.
        chaos: the probability of a disturbance at each request, and of a fault at each call of a
            handler, from 0 to 1.
        seed: repeats the events and faults of the simulation with this seed; random by default.
            With a store or services outside the process, a repetition differs in rare cases.
        store: the URL of a store, such as ``memory://`` or ``redis://localhost/0``. The simulation
            uses a new endpoint in it. By default it uses SQLite in a temporary folder.
        mode: where handlers run.
        channels: the number of channels to which the events belong, from 1; by default, the
            channels of the emulated service.
        data: the data of events, by event type: fields that replace those of the sample. Event
            classes of your own have no sample.
        check: called with the emitted events at the end; it raises AssertionError if the handlers'
            effects are wrong, which the report then lists as ``Breach.WRONG_EFFECT``.
        progress: called during the simulation with the number of emitted events and ``events``.

    Returns:
        The report. ``report.passed`` is true if ``report.findings`` is empty.

    Raises:
        ValueError: an argument is out of range, the store has no inbox and ``mode`` needs one, or
            the receiver has no handler for an event type; or ``data`` lacks what an event class
            needs.
        ImportError: the store needs a package that is not installed.
        StoreError: the store cannot be opened.
        LedgerError: the ledger of a handler with ``within=`` is not usable.
        RuntimeError: an event loop is running in this thread.
    """
    with _standing() as (port, runner):
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
            data=data,
            check=check,
            progress=progress,
            stays_open=False,
        )


def replay(
    receiver: Source,
    scenario: Scenario,
    *,
    store: str | None = None,
    mode: Mode = Mode.AS_IT_IS,
    check: Check | None = None,
) -> SimulationReport:
    """Run a scenario, for example of an earlier report, with the same events and faults.

    See ``simulate`` for what really runs.

    Args:
        receiver: the receiver, or a function that returns a new receiver for each start and
            restart.
        scenario: the events and faults.
        store: the URL of a store; by default SQLite in a temporary folder.
        mode: where handlers run.
        check: raises AssertionError if the handlers' effects are wrong.

    Raises:
        ValueError: the data of an event do not fit its type, or the store has no inbox and ``mode``
            needs one.
        ImportError: the store needs a package that is not installed.
        StoreError: the store cannot be opened.
        LedgerError: the ledger of a handler with ``within=`` is not usable.
        RuntimeError: an event loop is running in this thread.
    """
    with _standing() as (port, runner):
        simulations = _Simulations(receiver, store, mode, check, port, runner, stays_open=False)
        return simulations.run(scenario)


@contextmanager
def _standing() -> Iterator[tuple[ApiPort, asyncio.Runner]]:
    """Return a context with a port and an event loop for simulations."""
    if is_in_event_loop():
        raise RuntimeError("simulate starts its own event loop: call it from synchronous code")
    with ApiPort() as port, virtual_runner() as runner:
        yield port, runner


def simulate_in(
    runner: asyncio.Runner,
    port: ApiPort,
    receiver: Source,
    *,
    events: int = DEFAULT_EVENTS,
    chaos: float = DEFAULT_CHAOS,
    seed: int | None = None,
    store: str | None = None,
    mode: Mode = Mode.AS_IT_IS,
    channels: int | None = None,
    data: Mapping[str, Mapping[str, JsonValue]] | None = None,
    check: Check | None = None,
    progress: Callable[[int, int], None] | None = None,
    stays_open: bool = True,
) -> SimulationReport:
    """Run a simulation like ``simulate``, in an event loop and with a port that exist already.

    Several simulations can share one loop and one port. A module may read the port's address from
    the environment when it is imported, and its receivers may share engines, pools and clients,
    which belong to one event loop.

    Args:
        runner: a virtual runner.
        stays_open: whether the event loop and the port outlive the report.
    """
    if not 0 <= chaos <= 1:
        raise ValueError(f"chaos is a probability from 0 to 1, not {chaos!r}")
    if events < 1:
        raise ValueError(f"events takes a number above 0, not {events!r}")
    if channels is not None and channels < 1:
        raise ValueError(f"channels takes a number above 0, not {channels!r}")
    seed = randbits(32) if seed is None else seed
    drawing = Drawing(events, chaos, seed, channels, data or {})
    simulations = _Simulations(receiver, store, mode, check, port, runner, stays_open=stays_open)
    return simulations.run(drawing, progress)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The parameters of a scenario that a simulation makes at random for its receiver."""

    events: int
    chaos: float
    seed: int
    channels: int | None
    data: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Simulations:
    """The parts that all simulations of a receiver share."""

    receiver: Source
    store: str | None
    mode: Mode
    check: Check | None
    port: ApiPort
    runner: asyncio.Runner
    stays_open: bool

    def run(
        self,
        script: Scenario | Drawing,
        progress: Callable[[int, int], None] | None = None,
    ) -> RecordedReport:
        """Run a simulation and return its report."""
        with TemporaryDirectory(prefix="hookonce-chaos-") as folder:
            url = self.store or f"sqlite:///{Path(folder, 'chaos.db')}"
            return run_virtually(
                lambda loop: Simulation(
                    self.receiver,
                    loop,
                    url,
                    self.mode,
                    script,
                    port=self.port,
                    check=self.check,
                    again=self.again,
                ).run(progress),
                self.runner,
            )

    @contextmanager
    def again(self) -> Iterator[Run]:
        """Return a context with a function that runs other scenarios of the same receiver."""
        if self.stays_open:
            yield self.run
            return
        with _standing() as (port, runner):
            again = replace(self, port=port, runner=runner, stays_open=True)
            yield again.run


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


class Simulation:
    """One call of ``simulate``: its receiver, service, random numbers and results."""

    def __init__(
        self,
        receiver: Source,
        loop: VirtualLoop,
        store_url: str,
        mode: Mode,
        script: Scenario | Drawing,
        *,
        port: ApiPort | None = None,
        check: Check | None = None,
        again: Callable[[], AbstractContextManager[Run]] | None = None,
    ) -> None:
        self._source = receiver
        self._original = receiver if isinstance(receiver, Receiver) else receiver()
        self._port = port
        self._check = check
        self._again = again
        self._loop = loop
        self._clock = loop.unix_clock
        self._store_url = store_url
        self._mode = mode
        self._sender = self._original.sender
        self._table = HandlerTable(self._original.handlers, sender=self._sender)
        self._keyed = {handler.name: handler.keyed for handler in self._original.handlers}
        self._event_keys: dict[tuple[str, str], EventKey] = {}
        self._log = CallLog()
        self._journal = SimulationJournal(self._log, loop.unix_clock)
        self._scenario, self._faults = self._read(script)
        self._secret = new_secret()
        self._secrets = _Secrets(self._secret)
        # A new endpoint, so that other events in a shared store do not count.
        self._endpoint = f"chaos-{token_hex(4)}"
        self._store = self._opened_store()
        self._emitted: list[Emitted] = []
        self._events: list[Event[Any]] = []

    def _read(self, script: Scenario | Drawing) -> tuple[Scenario, RecordedFaults]:
        """Return the scenario, made from a ``Drawing`` if needed, and the faults that may occur."""
        if isinstance(script, Scenario):
            scripted = ScriptedFaults(script)
            return script, RecordedFaults(scripted.request, scripted)
        all_types = types_of(self._sender, self._table, script.data)
        types = [name for name in all_types if self._is_handled(name, script.data.get(name))]
        if not types:
            raise ValueError("this receiver has no handler for any documented event type")
        most = min(_MOST_FAULTS, (len(self._sender.rules.tried_retry_seconds) + 1) // 2)
        chaos = Chaos(script.chaos, keeps_out=most)
        scenario = drawn_scenario(
            script.events,
            chaos,
            script.seed,
            types=types,
            all_types=all_types,
            data=script.data,
            channels=script.channels,
            clock=self._clock,
        )
        faults = FaultPlan(seed=script.seed, rate=script.chaos, most=most)
        return scenario, RecordedFaults(partial(fault_of, chaos, script.seed), faults)

    def _is_handled(self, event_type: str, data: Mapping[str, JsonValue] | None) -> bool:
        try:
            sample = make_event(self._made_from(event_type), data=data, sender=self._sender)
        except TypeError as error:
            raise ValueError(
                f"the sender {self._sender.name!r} cannot be simulated, because its envelope has a"
                " function; simulate receiver.copy(sender=…) with paths instead"
            ) from error
        except ValueError as error:
            raise ValueError(f"{error}; give them as data={{{event_type!r}: ...}}") from error
        return bool(self._table.find(sample))

    def _made_from(self, event_type: str) -> str | EventClass:
        """Return the class of an event type; the type itself if the service knows its fields."""
        if event_type in subscribable(self._sender):
            return event_type
        return self._table.known.get(event_type, event_type)

    async def run(self, progress: Callable[[int, int], None] | None = None) -> RecordedReport:
        self._pools = AsyncExitStack()
        try:
            await self._pools.enter_async_context(ledgers_in_use(self._original.handlers))
            async with self._loop.outside():
                await check_ledgers(self._original.handlers, store_retention=None)
            return await self._run(progress)
        finally:
            async with self._loop.outside():
                await self._pools.aclose()

    async def _run(self, progress: Callable[[int, int], None] | None) -> RecordedReport:
        started = self._loop.time()
        attempts: list[DeliveryAttempt] = []
        deployment = Deployment(self._journal)
        await deployment.deploy(self._copy(self._original))
        channels = channels_of(self._scenario.channels)
        service = EmulatedService(
            deployment,
            secret=self._secret,
            sender=self._sender,
            clock=self._loop.unix_clock,
            speed=1.0,
            chaos=self._faults.request,
            seed=self._scenario.seed,
            data=_workspace(channels),
            on_attempt=attempts.append,
            on_event=self._note,
            on_rotation=self._learn_later,
        )
        self._journal.begin()
        try:
            with self._answering(service):
                async with service:
                    await self._play(service, deployment, progress)
                    await service.settle()
                await self._until_quiet()
            waiting = await self._waiting()
            dead_letters = await self._discard_dead_letters(deployment.receiver)
            complaint = await self._complaint()
        finally:
            await deployment.aclose()
        keyed = KeyedCalls(self._event_keys, self._log.calls)
        counts = settled(self._emitted, self._log, keyed)
        replies = service.replies()
        findings = violations(
            self._emitted,
            attempts,
            self._log,
            dead_letters,
            waiting,
            keyed=keyed,
            replies=replies,
            sender=self._sender,
        )
        return RecordedReport(
            seed=self._scenario.seed,
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
            findings=(*findings, *wrong_effects(complaint)),
            scenario=replace(
                self._scenario, faults=(*self._faults.occurred, *self._scenario.restarts)
            ),
            history=self._journal.history(attempts, replies, self._sender),
            again=self._again,
        )

    async def _complaint(self) -> str | None:
        """Return the error of the user's check of the effects, or None if the effects are right."""
        if self._check is None:
            return None
        async with self._loop.outside():
            try:
                result = self._check(tuple(self._events))
                if inspect.isawaitable(result):
                    await result
            except AssertionError as error:
                return next(iter(str(error).splitlines()), "") or error_with_line(error)
        return None

    def _answering(self, service: EmulatedService) -> AbstractContextManager[None]:
        """Return a context in which the port leads to the API of the emulated service."""
        if self._port is None:
            return nullcontext()
        return self._port.leads_to(service.api, self._loop, service.new_key())

    def _opened_store(self) -> Store:
        return watched(open_store(self._store_url, clock=self._clock), self._loop)

    def _copy(self, receiver: Receiver) -> Receiver:
        """Return a copy of a receiver, as after a restart: with a new connection to the store."""
        # Keep a memory store: a new connection would open a new, empty store.
        if not self._store_url.startswith("memory:"):
            self._store = self._opened_store()
        copy = partial(
            receiver.copy,
            secrets=self._secrets,
            store=self._store,
            endpoint=self._endpoint,
            clock=self._loop.unix_clock,
            router=instrumented(receiver, log=self._log, plan=self._faults, loop=self._loop),
        )
        if self._mode is Mode.INLINE:
            return copy(inbox=None)
        if self._mode is Mode.INBOX and receiver.inbox is None:
            return copy(inbox=Inbox())
        return copy()

    async def _play(
        self,
        service: EmulatedService,
        deployment: Deployment,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Emit the events and restart the receiver, each at its time."""
        started = self._loop.time()
        events, count = self._scenario.events, 0
        steps: list[PlannedEvent | Restart] = [*events, *self._scenario.restarts]
        restarting: asyncio.Task[None] | None = None
        for step in sorted(steps, key=lambda step: step.at):  # at equal times, events come first
            await asyncio.sleep(max(0.0, started + step.at - self._loop.time()))
            if isinstance(step, Restart):
                restarting = self._loop.create_task(self._restart(deployment, after=restarting))
                continue
            await service.emit(self._made_from(step.type), data=step.data, event_id=step.id)
            count += 1
            if progress is not None and (count == len(events) or count % _EVENTS_PER_STEP == 0):
                progress(count, len(events))
        if restarting is not None:
            await restarting

    async def _restart(self, deployment: Deployment, *, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await after
        receiver = self._original
        if not isinstance(self._source, Receiver):
            receiver = self._source()
            await self._pools.enter_async_context(ledgers_in_use(receiver.handlers))
        await deployment.deploy(self._copy(receiver))

    def _note(self, event: Event[Any], _: int) -> None:
        """Record an event that the service emits, at random or because a handler called the API."""
        handlers = tuple(handler.name for handler in self._table.find(event))
        comment_id = event.data.id if isinstance(event.data, ReceivedComment) else None
        self._emitted.append(Emitted(event.id, event.type, handlers, comment_id))
        self._events.append(event)
        self._journal.emitted(event.id, event.type)
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

    def _learn_later(self, secret: str) -> None:
        # The receiver may get the new secret late, because the sender signs with both secrets for a
        # long time. The delay is the same after each rotation: it must not depend on the number of
        # rotations.
        random = Random(f"{self._scenario.seed}:learning")  # noqa: S311 - not used for secrets
        both_seconds = self._sender.rules.two_signatures_seconds or 0.0
        seconds = random.uniform(0, _LEARNING_SHARE * both_seconds)
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
