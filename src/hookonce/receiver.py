"""The receiver: the public face that wires the parts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from copy import copy as shallow_copy
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypedDict, TypeVar, Unpack, overload

from .clock import Clock, system_clock
from .delivery.activity import Reporter
from .delivery.calls import Threads
from .delivery.disabling import DisableWatch, FailureStreak
from .delivery.expecting import POLL_SECONDS, Expectation, Poll
from .delivery.handler import is_async
from .delivery.ledgers import check_ledgers
from .delivery.limits import Limits
from .delivery.log import AttemptLog, DeliveryLog
from .delivery.outcome import Outcome
from .delivery.parts import Parts
from .delivery.pipeline import Pipeline
from .delivery.records import BatchFlushed, DeliveryAnswered, Observer, Observers
from .delivery.registration import Registration, application_of
from .delivery.rotation import Rotation, RotationWatch
from .delivery.router import Router
from .delivery.runs import Runs
from .delivery.time_limit import within
from .errors import SecretError, shows_half_built
from .events import Event
from .http.app import (
    DeliveryApp,
    Middleware,
    Receive,
    Route,
    Scope,
    Send,
    delivery_routes,
    elsewhere,
    run_lifespan,
)
from .http.guard import StatusGuard, app_path
from .http.health import Readiness, ReadinessLook, health_routes
from .inbox.intake import Intake
from .inbox.letters import DeadLetters
from .inbox.settings import Inbox
from .inbox.waiting import WaitingEvents
from .reconcile import GapHook, Reconciliation, Verdict, compare
from .sender import LOG_SECONDS
from .stores import open_store
from .stores.activity import ActivityStore
from .stores.applications import Application
from .stores.contract import DEFAULT_RETENTION, BatchingStore, InboxStore, Store
from .stores.values import Known, StoreStats
from .verification.headers import RawHeaders
from .verification.loggers import get_logger
from .verification.secrets import SecretSource, SecretsProvider, fault_among, secrets_of
from .verification.signature import DEFAULT_TOLERANCE, Verifier, sign

if TYPE_CHECKING:  # it needs httpx2
    from .client import Client

__all__ = ["Receiver"]

G = TypeVar("G", bound="GapHook")
E1 = TypeVar("E1", bound=Event[Any])
E2 = TypeVar("E2", bound=Event[Any])
P = TypeVar("P")

_log = get_logger("hookonce")

# Keys are `endpoint:id`; without a colon in the name no two pairs give the same key.
_ENDPOINT = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# What has been handled, or waits in the inbox, which loses nothing.
_MADE_UP = {Known.DONE, Known.WAITING}

# Where a receiver answers that is an application by itself, or mounted as one.
_OWN_PATHS = frozenset({"", "/", "/webhooks", "/webhooks/"})


class _Hidden:
    """Secrets, or a provider of them, that no repr of what holds them shows."""

    __slots__ = ("source",)

    def __init__(self, source: SecretsProvider | tuple[str, ...]) -> None:
        self.source = source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What a receiver was told to be, checked."""

    secrets: _Hidden
    store: Store
    endpoint: str
    service: str | None
    tolerance: float
    retention: timedelta | None
    inbox: Inbox | None
    limits: Limits
    clock: Clock


class _Changes(TypedDict, total=False):
    """What a copy can have of its own; see ``Receiver.copy``."""

    secrets: SecretSource
    store: Store | str
    endpoint: str
    service: str | None
    tolerance: float
    inbox: Inbox | None
    limits: Limits
    clock: Clock


class _Machine:
    """The parts of a receiver, wired: what a copy makes anew, and the doctor exchanges.

    Args:
        settings: what it is to be.
        verifier: knows its secrets.
        router: the handlers.
        observers: who is told of every step, beside its own watches.

    """

    def __init__(
        self,
        settings: _Settings,
        verifier: Verifier,
        router: Router,
        observers: Iterable[Observer] = (),
    ) -> None:
        store, limits, clock = settings.store, settings.limits, settings.clock
        self.settings = settings
        self._router = router
        self.rotation = RotationWatch(self.current_secrets, clock)
        self.disabling = DisableWatch(clock)
        logs = [DeliveryLog(), *([] if settings.inbox is None else [AttemptLog(clock)])]
        self.observers = Observers([*logs, self.rotation, self.disabling, *observers])
        inbox_store = None if settings.inbox is None else _with_inbox(store)
        parts = Parts(
            endpoint=settings.endpoint,
            store=store,
            inbox=inbox_store,
            router=router,
            limits=limits,
            clock=clock,
            observers=self.observers,
            threads=Threads(limits.threads),
        )
        self._threads = parts.threads
        if isinstance(store, BatchingStore):
            store.flushes.add(self._note_flush)
        self.runs = Runs(parts)
        self.intake: Intake | None = None
        if settings.inbox is not None and inbox_store is not None:
            self.intake = Intake(parts, store=inbox_store, settings=settings.inbox, runs=self.runs)
        self.pipeline = Pipeline(
            parts,
            verifier=verifier,
            service=settings.service,
            runs=self.runs,
            intake=self.intake,
        )
        self.dead = DeadLetters(parts, self.runs)
        self.registration = Registration(store, settings.endpoint, self._application)
        self.readiness = ReadinessLook(
            parts,
            self.runs,
            watches=(
                self.disabling.warnings,
                self.rotation.warnings,
                self.secrets_fault,
                self.runs.warnings,
            ),
            registration=self.registration,
            inbox=None if self.intake is None else self.intake.problem,
            secrets=self.current_secrets,
        )
        self._reporter: Reporter | None = None
        if isinstance(store, ActivityStore):
            self._reporter = Reporter(
                store,
                settings.endpoint,
                self.observers,
                store_seconds=limits.store_seconds,
                clock=clock,
            )
        self.users = self.servers = 0

    def current_secrets(self) -> tuple[str, ...]:
        """Return the secrets in force, newest first; see ``Receiver.current_secrets``."""
        secrets = secrets_of(self.settings.secrets.source)
        fault = fault_among(secrets, "force")
        if not secrets:
            fault = "at least one secret is needed, and there is none in force"
        if fault is not None:
            del secrets
            raise SecretError(fault)
        return secrets

    def secrets_fault(self) -> tuple[str, ...]:
        """Return why the last good secrets are in force, if the provider says so."""
        fault = getattr(self.settings.secrets.source, "fault", None)
        return () if fault is None else (str(fault),)

    def _application(self) -> Application | None:
        handlers, endpoint = self._router.handlers, self.settings.endpoint
        try:
            return application_of(handlers, self.current_secrets(), endpoint)
        except Exception:  # noqa: BLE001 - whoever verifies with these secrets says what is wrong
            return None

    def _note_flush(self, calls: int, seconds: float) -> None:
        if self.observers.wants(BatchFlushed):
            store = type(self.settings.store).__name__
            self.observers.tell(BatchFlushed(store, calls, seconds))

    async def enter(self) -> None:
        """Open the store for one user more."""
        self.users += 1
        try:
            await self.settings.store.open()
        except BaseException:
            await self.leave()
            raise
        if self._reporter is not None:
            self._reporter.start()

    async def register(self) -> None:
        """Find out before the first event what would go wrong with it."""
        retention: float | None = getattr(self.settings.store, "retention_seconds", None)
        await check_ledgers(self._router.handlers, retention)
        await self.registration.enter()

    async def leave(self) -> None:
        """Close what is open when nobody uses it any more."""
        self.users -= 1
        if self.users == 0:
            self.registration.leave()
            try:
                if self.intake is not None:
                    await self.intake.stop()
                await self.runs.drain()
                if self._reporter is not None:
                    await self._reporter.stop()
            finally:  # also where a server waits no longer
                self._threads.close()
                await self.settings.store.aclose()

    async def end_work(self) -> None:
        """Take nothing more out of the inbox, and let what was begun end."""
        if self.intake is not None:
            await self.intake.stop()
        await self.runs.drain()
        if self.intake is not None:
            await self.intake.leave()


@shows_half_built
class Receiver(Router):
    """Receives the webhooks of one endpoint: verifies each, handles each once, loses none.

    It is a router of handlers (``on``, ``on_unknown``, ``on_error``, ``include``), an ASGI
    application, and an async context manager. Routes for another application come from ``routes``,
    its lifespan from ``lifespan``; the pipeline without HTTP is ``handle``.

    Args:
        secrets: one ``whsec_`` secret, several (newest first), or a provider of them.
        store: a store, or the URL of one: ``sqlite:///file.db``, ``redis://host`` or ``memory://``.
        endpoint: a name of letters, digits, ``_``, ``.`` and ``-`` that scopes what is handled
            once: two endpoints of one workspace receive the same event ids.
        service: the sender's name in its own two headers; without it their endings are enough.
        tolerance: how many seconds a timestamp may lie from the clock, in both directions.
        retention: how long a handled event is remembered, 26 hours at the least; for a store given
            as a URL.
        inbox: answer once a delivery is stored durably, and let workers handle it; without it
            handlers run inside the request.
        limits: time limits and sizes.
        clock: Unix time in seconds.
        observers: who is told of every step, for metrics and the like (``hookonce.telemetry``).

    Raises:
        SecretError: a secret cannot be used, or there is none.
        ValueError: another argument cannot be used; the message says what to do.

    """

    def __init__(
        self,
        *,
        secrets: SecretSource,
        store: Store | str = "sqlite:///hookonce.db",
        endpoint: str = "default",
        service: str | None = None,
        tolerance: float = DEFAULT_TOLERANCE,
        retention: timedelta | None = None,
        inbox: Inbox | None = None,
        limits: Limits | None = None,
        clock: Clock = system_clock,
        observers: Iterable[Observer] = (),
    ) -> None:
        super().__init__()
        # First, and let go of: error trackers send the locals of every frame away.
        try:
            if not isinstance(secrets, SecretsProvider):
                secrets = secrets_of(secrets)  # what the verifier knows, whatever becomes of a list
            verifier = Verifier(secrets, tolerance=tolerance, clock=clock)
            known = _Hidden(secrets)
        except (SecretError, ValueError) as error:
            raise error.with_traceback(None) from error.__cause__
        finally:
            del secrets
        if not isinstance(endpoint, str) or _ENDPOINT.fullmatch(endpoint) is None:
            raise ValueError(
                "endpoint takes 1 to 64 letters, digits, underscores, full stops and hyphens,"
                f" not {endpoint!r}"
            )
        if isinstance(store, str):
            try:
                kept = DEFAULT_RETENTION if retention is None else retention
                store = open_store(store, retention=kept, clock=clock)
            except (ValueError, ImportError) as error:
                del store
                raise error.with_traceback(None) from error.__cause__
        elif isinstance(store, type) or not isinstance(store, Store):
            raise TypeError(_store_fault(store))
        elif retention is not None:
            raise ValueError("give retention to the store itself, or the store as a URL")
        if inbox is not None and not isinstance(inbox, Inbox):
            raise TypeError(f"inbox takes an Inbox, such as Inbox(concurrency=16), not {inbox!r}")
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits takes Limits, such as Limits(threads=16), not {limits!r}")
        if service is not None and not (isinstance(service, str) and service):
            raise TypeError(
                f"service takes the sender's name in its own two headers, or None, not {service!r}"
            )
        settings = _Settings(
            secrets=known,
            store=store,
            endpoint=endpoint,
            service=service,
            tolerance=tolerance,
            retention=retention,
            inbox=inbox,
            limits=limits or Limits(),
            clock=clock,
        )
        self._machine = _Machine(settings, verifier, self, observers)
        self._gap_hooks: list[GapHook] = []
        # Routes hold on to these two, and they ask this object at each delivery.
        self._app = DeliveryApp(self.handle, settings.limits, unread=self.note_unread)
        self._guarded = StatusGuard(self._app)

    def __repr__(self) -> str:
        return f"Receiver(endpoint={self.endpoint!r}, {len(self.handlers)} handlers)"

    @property
    def endpoint(self) -> str:
        """The name that scopes what is handled once."""
        return self._machine.settings.endpoint

    @property
    def store(self) -> Store:
        """What remembers its events."""
        return self._machine.settings.store

    @property
    def service(self) -> str | None:
        """The sender's name in its own two headers, if it was given."""
        return self._machine.settings.service

    @property
    def limits(self) -> Limits:
        """The time limits and sizes it keeps to."""
        return self._machine.settings.limits

    @property
    def tolerance(self) -> float:
        """How many seconds a timestamp may lie from the clock, in both directions."""
        return self._machine.settings.tolerance

    @property
    def clock(self) -> Clock:
        """What it takes the time from, in Unix seconds."""
        return self._machine.settings.clock

    @property
    def is_open(self) -> bool:
        """Whether somebody has entered it, its ``lifespan`` or ``opened``, and not left."""
        return self._machine.users > 0

    @property
    def has_inbox(self) -> bool:
        """Whether deliveries are stored for workers, here or in other processes."""
        return self._machine.settings.inbox is not None

    @property
    def has_embedded_workers(self) -> bool:
        """Whether handlers run after the answer, in the lifespan of this process."""
        return self._machine.settings.inbox is not None and self._machine.settings.inbox.embedded

    @property
    def inbox_settings(self) -> Inbox | None:
        """How its inbox is worked off; None where it handles inside the request."""
        return self._machine.settings.inbox

    @property
    def inbox(self) -> WaitingEvents:
        """What is in the inbox; AttributeError where this receiver has none."""
        if self._machine.intake is None:
            raise AttributeError("this receiver has no inbox; give it Receiver(inbox=Inbox())")
        return self._machine.intake.waiting

    @property
    def dead(self) -> DeadLetters:
        """What was given up, for a person to look at, replay or discard."""
        return self._machine.dead

    @property
    def rotation(self) -> Rotation | None:
        """The rotation of the sender's secret that deliveries show to be under way, if one is."""
        return self._machine.rotation.current

    @property
    def failing(self) -> FailureStreak | None:
        """What this process has answered since its last success; None if that was a success.

        The sender disables an endpoint that fails for 72 hours, with at least 10 failed attempts.
        """
        return self._machine.disabling.streak

    def secrets_last_matched(self) -> tuple[float | None, ...]:
        """Return when each secret in force was last needed to verify a delivery, in Unix seconds.

        In the order of the secrets; None where that was not since this process began.

        Raises:
            SecretError: a secret cannot be used, or there is none.

        """
        return self._machine.rotation.last_matched()

    def current_secrets(self) -> tuple[str, ...]:
        """Return the secrets in force, newest first, for a tool that signs for this receiver.

        Whoever has one can forge deliveries: let them go nowhere else, no log and no message.

        Raises:
            SecretError: a secret cannot be used, or there is none.

        """
        return self._machine.current_secrets()

    def copy(self, *, router: Router | None = None, **changes: Unpack[_Changes]) -> Self:
        """Return a receiver with the same handlers and settings, and other parts where given.

        For a test of a receiver that was configured for production::

            receiver.copy(secrets=SECRET, store="memory://", inbox=None)

        The copy has the handlers and error hooks that are registered now; neither receiver gets
        those that the other is given later. Observers of the original see nothing of the copy. It
        is of the same class, with the same attributes,
        though the constructor of a subclass is not run again: a handler that is a method of the
        original is called on the original. It is not open, even if the original is.

        Args:
            router: whose handlers and error hooks it has instead of the original's.
            changes: arguments of the constructor that are its own: ``secrets``, ``store``,
                ``endpoint``, ``service``, ``tolerance``, ``inbox``, ``limits`` and ``clock``.
                Without a store of its own the two share one, and what one of them has handled the
                other has handled too; the clock is also that of a store given as a URL.

        Raises:
            SecretError: a secret cannot be used, or there is none.
            ValueError: another argument cannot be used; the message says what to do.

        """
        settings = self._machine.settings
        given: dict[str, Any] = {
            field.name: getattr(settings, field.name) for field in fields(settings)
        }
        given["secrets"], retention = settings.secrets.source, given.pop("retention")
        given.update(changes)
        if isinstance(given["store"], str):
            given["retention"] = retention
        copied = shallow_copy(self)
        # The base's constructor makes every part anew, and leaves what a subclass has added.
        try:
            Receiver.__init__(copied, **given)
        finally:  # as in the constructor: error trackers send locals away
            given.clear()
            del changes
        copied._gap_hooks = [*self._gap_hooks]  # noqa: SLF001 - its own, as below
        machine = copied._machine  # noqa: SLF001 - its own, for copies of the copy
        machine.settings = replace(machine.settings, retention=retention)
        # Not the router itself: it would hold on to the copy.
        Router.include(copied, (self if router is None else router).wrapped())
        return copied

    @contextmanager
    def replaced_by(self, other: Receiver) -> Iterator[None]:
        """Let another receiver do this one's work while the block lasts, wherever it is mounted.

        It is for looking at an application from outside: what the application's lifespan opens and
        what its routes hand on is the other receiver's then, and this one's store stays alone.
        Neither may be in use before.
        """
        own, self._machine = self._machine, other._machine
        try:
            yield
        finally:
            self._machine = own

    def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Coroutine[Any, Any, Outcome]:
        """Return what to answer to a delivery: the whole pipeline without HTTP.

        Args:
            body: the raw request body, exactly as received.
            headers: a mapping or (name, value) pairs, str or bytes, any case.
            started: when the request arrived, in the event loop's time; now by default. The answer
                budget counts from there.

        """
        return self._machine.pipeline.handle(body, headers, started=started)

    def observe(self, observer: Observer, *, of: Container[str] | None = None) -> None:
        """Tell an observer of every step from now on, as those given to the constructor are.

        Args:
            observer: who is told.
            of: the ids of the events it looks at closely, for example a sample; asked whenever
                something happens, so it may change. Of other events it hears what arrives and is
                answered, what fails, and what is retried or buried.

        Raises:
            TypeError: it is no observer; the message says what to do.

        """
        self._machine.observers.add(observer, of=of)

    @overload
    def expecting(
        self,
        event: type[E1],
        /,
        *,
        where: Callable[[E1], bool] | None = ...,
        within: float | timedelta = ...,
        poll: Poll[P],
        poll_every: float = ...,
    ) -> Expectation[E1, P]: ...
    @overload
    def expecting(
        self,
        event: type[E1],
        /,
        *,
        where: Callable[[E1], bool] | None = ...,
        within: float | timedelta = ...,
    ) -> Expectation[E1, Never]: ...
    @overload
    def expecting(
        self,
        first: type[E1],
        second: type[E2],
        /,
        *,
        where: Callable[[E1 | E2], bool] | None = ...,
        within: float | timedelta = ...,
        poll: Poll[P],
        poll_every: float = ...,
    ) -> Expectation[E1 | E2, P]: ...
    @overload
    def expecting(
        self,
        first: type[E1],
        second: type[E2],
        /,
        *,
        where: Callable[[E1 | E2], bool] | None = ...,
        within: float | timedelta = ...,
    ) -> Expectation[E1 | E2, Never]: ...
    @overload
    def expecting(
        self,
        *classes: type[Event[Any]],
        where: Callable[[Any], bool] | None = ...,
        within: float | timedelta = ...,
        poll: Poll[P] | None = ...,
        poll_every: float = ...,
    ) -> Expectation[Event[Any], P]: ...

    def expecting(
        self,
        *classes: type[Event[Any]],
        where: Callable[[Any], bool] | None = None,
        within: float | timedelta = 60.0,
        poll: Poll[Any] | None = None,
        poll_every: float = POLL_SECONDS,
    ) -> Expectation[Any, Any]:
        """Wait in this process for events that the program itself causes.

        Cause it inside the block, so that nothing comes too early::

            targets = {target.id for target in (await client.posts.get(post_id)).targets}
            async with receiver.expecting(
                PostTargetPublished, PostTargetFailed, where=lambda event: event.data.id in targets
            ) as expected:
                await client.posts.publish(post_id)
                event = await expected.first()

        An event may arrive in another process, or never: ``poll`` is asked as well.

        Args:
            classes: the classes of event that will do.
            where: which of them; each by default.
            within: seconds from the beginning of the block, or a ``timedelta``.
            poll: returns what is waited for as far as it is known elsewhere, else None. It is asked
                as soon as ``first`` has nothing to return, and then every so often.
            poll_every: seconds between two polls.

        Raises:
            TypeError: no class was given.
            ValueError: a time is not more than 0.

        """
        seconds = within.total_seconds() if isinstance(within, timedelta) else within
        return Expectation(
            self._machine.observers,
            lambda: self.parser,
            classes,
            where=where,
            seconds=seconds,
            poll=poll,
            poll_seconds=poll_every,
        )

    def on_gap(self, function: G, /) -> G:
        """Register a function that makes up for events that were missed: ``(gaps, client)``.

        ``reconcile`` calls it with every ``Gap`` it has found, oldest first, and the client. The
        log has no payload: look for what was missed among the posts and comments of the service,
        and hand each to ``make_up`` under the gap's id.
        """
        if not is_async(function):
            raise TypeError("on_gap takes an async function of (gaps, client)")
        self._gap_hooks.append(function)
        return function

    async def reconcile(
        self, client: Client, webhook_id: str, *, since: datetime | timedelta | None = None
    ) -> Reconciliation:
        """Return what was missed: what the sender's log has, and this receiver has not handled.

        Gaps go to the functions registered with ``on_gap``, and what they make up for is no gap
        any more; what they raise is logged and in ``failures``. It can be done at any time, beside
        deliveries, as often as you like. It costs one request of the day's quota for each 100
        deliveries, and one for the endpoint's status.

        Args:
            client: of the service, with an admin's key.
            webhook_id: the service's id of this endpoint.
            since: how far back to look, a time with an offset or so long ago; as far as the log
                reaches, 14 days, by default.

        Raises:
            ClientError: the service does not give its log.
            StoreError: the store does not say what it knows.
            ValueError: ``since`` has no offset.

        """
        now = datetime.fromtimestamp(self.clock(), UTC)
        if since is None:
            since = timedelta(seconds=LOG_SECONDS)
        start = now - since if isinstance(since, timedelta) else since
        if start.tzinfo is None:
            raise ValueError("since takes a time with an offset, such as datetime.now(UTC)")
        found = await compare(
            client,
            webhook_id,
            store=self.store,
            endpoint=self.endpoint,
            has_handler=self._has_handler,
            since=start,
            clock=self.clock,
        )
        if not (found.gaps and self._gap_hooks):
            return found
        failures: list[Exception] = []
        for hook in self._gap_hooks:
            try:
                await hook(found.gaps, client)
            except Exception as error:  # noqa: BLE001 - what was found is told all the same
                _log.exception("a function of on_gap failed")
                failures.append(error)
        known = await self.store.known(self.endpoint, [gap.event_id for gap in found.gaps])
        made_up = tuple(gap for gap in found.gaps if known.get(gap.event_id) in _MADE_UP)
        gaps = tuple(gap for gap in found.gaps if gap not in made_up)
        counts = found.counts + Counter({Verdict.HANDLED: len(made_up)})
        counts[Verdict.GAP] = len(gaps)
        return replace(found, counts=counts, gaps=gaps, made_up=made_up, failures=tuple(failures))

    def _has_handler(self, event_type: str) -> bool:
        known = event_type in self.parser.classes
        return any(handler.wants(event_type, known=known) for handler in self.handlers)

    async def make_up(self, event: Event[Any]) -> Outcome:
        """Hand an event to the handlers that was not delivered, as if it had been.

        It goes the way of a delivery: an event of the same id that is handled already is not
        handled again, and with an inbox it waits for a worker. It is no answer to the sender, so
        ``failing`` and ``rotation`` are as before.

        Args:
            event: what was missed, made from what the service has; its id is that of the gap.

        Raises:
            SecretError: a secret cannot be used, or there is none.

        """
        body = event.model_dump_json().encode()
        headers = sign(self.current_secrets()[0], event.id, body, timestamp=int(self.clock()))
        return await self._machine.pipeline.handle(body, headers, is_made_up=True)

    def note_unread(self, outcome: Outcome, seconds: float) -> None:
        """Tell observers of a request that was answered without its body: by an HTTP face.

        Args:
            outcome: what was answered, for example that the body was too large.
            seconds: how long that took.

        """
        self._machine.observers.tell(DeliveryAnswered(self.endpoint, outcome, seconds))

    async def idle(self, seconds: float) -> bool:
        """Return whether no handler runs any more, after waiting for that at most so long."""
        return await self._machine.runs.idle(seconds)

    def routes(self, path: str, *, middleware: Iterable[Middleware] = ()) -> list[Route]:
        """Return routes for a Starlette or FastAPI application.

        They answer with and without a trailing slash and never redirect.

        Args:
            path: where deliveries arrive, for example ``/webhooks``.
            middleware: for these routes alone; whatever it answers, no 3xx or 410 goes out.

        """
        return delivery_routes(path, self._app, middleware)

    def health_routes(self, *, token: str | None = None) -> list[Route]:
        """Return ``/livez`` and ``/readyz`` for a Starlette or FastAPI application.

        What is wrong is told to clients of this machine alone, and to those that show the token;
        others learn whether the receiver is ready. It is looked at every few seconds at the most.

        Args:
            token: what ``Authorization: Bearer`` must show, at least 16 characters.

        Raises:
            ValueError: the token is too short.

        """
        return health_routes(self.recent_check, token=token)

    async def stats(self) -> StoreStats:
        """Return how much the store holds of this endpoint; raises StoreError."""
        return await within(
            self.limits.store_seconds,
            self.store.stats(endpoint=self.endpoint),
        )

    async def recent_check(self) -> Readiness:
        """Return what ``check`` has found lately; what is seconds old is found anew, for all."""
        return await self._machine.readiness.recent()

    async def check(self) -> Readiness:
        """Return whether deliveries can be taken at this moment, and if not, why."""
        return await self._machine.readiness.now()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:  # noqa: ARG002 - passed by frameworks
        """Open the store; at the end drain running handlers, release the rest, and close.

        Pass it as the lifespan of the application that has the routes. Where an application has
        none, the store opens at the first delivery.
        """
        async with self:
            yield

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Handle what is in the inbox while the block lasts: what a worker process does.

        At its end running handlers are drained, as at the end of ``lifespan``. A receiver whose
        inbox is embedded works in its lifespan already.

        Raises:
            LookupError: this receiver has no inbox.
            RuntimeError: it works on it already.
            StoreError: the store cannot be opened.

        """
        if self._machine.intake is None:
            raise LookupError("there is nothing to work on: this receiver has no inbox")
        async with self.opened():
            await self._machine.register()
            self._machine.intake.start()
            try:
                yield
            finally:
                await self._machine.end_work()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep the store open while the block lasts, without working on an inbox.

        For what an operator does, such as the replay of dead letters; raises StoreError. It may be
        entered inside ``lifespan``, whose end still closes everything.
        """
        await self._machine.enter()
        try:
            yield
        finally:
            await self._machine.leave()

    async def __aenter__(self) -> Self:
        machine = self._machine
        await machine.enter()
        try:
            await machine.register()
            if machine.intake is not None and machine.intake.embedded:
                machine.intake.start()
        except BaseException:
            await machine.leave()
            raise
        machine.servers += 1
        machine.runs.accepting = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        machine = self._machine
        machine.servers -= 1
        try:
            if machine.servers == 0:
                machine.runs.refuse()
                if machine.intake is not None and machine.intake.embedded:
                    await machine.end_work()
                else:
                    await machine.runs.drain()
        finally:
            await machine.leave()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application, alone or mounted."""
        if scope["type"] == "lifespan":
            await run_lifespan(self, receive, send)
        elif scope["type"] == "http" and app_path(scope) in _OWN_PATHS:
            await self._guarded(scope, receive, send)
        else:
            await elsewhere(scope, receive, send)


def _store_fault(store: object) -> str:
    """Return what is wrong with what was given as the store; it may hold a password."""
    takes = "store takes a URL, such as sqlite:///hookonce.db or redis://host, or a store"
    if store is None:
        return f"{takes}, not None; is the setting it comes from missing?"
    if isinstance(store, type):
        return f"{takes}, not the class {store.__name__}: make one of it"
    if isinstance(store, PurePath):
        return f"{takes}, not a path: write f'sqlite:///{{path}}'"
    return f"{takes}, not {type(store).__name__}"


def _with_inbox(store: Store) -> InboxStore:
    if isinstance(store, InboxStore):
        return store
    raise ValueError(
        f"{type(store).__name__} has no inbox: what was answered must outlive the process; use"
        " sqlite:///file.db or redis://host, or leave `inbox` out to handle inside the request"
    )
