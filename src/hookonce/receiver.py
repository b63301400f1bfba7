"""The receiver: the public face that wires the parts."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Collection, Container, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from copy import copy as shallow_copy
from datetime import timedelta
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .clock import Clock, system_clock
from .delivery.attempt import Attempts
from .delivery.disabling import DisableWatch, FailureStreak
from .delivery.lease import within
from .delivery.limits import Limits
from .delivery.log import DeliveryLog
from .delivery.outcome import Outcome
from .delivery.pipeline import Pipeline
from .delivery.records import BatchFlushed, DeliveryAnswered, Observer, Observers
from .delivery.registration import Registration, application_of
from .delivery.rotation import Rotation, RotationWatch
from .delivery.router import Router
from .delivery.runs import Runs
from .errors import SecretError, StoreError
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
from .http.health import Readiness, health_routes
from .inbox.intake import Intake
from .inbox.letters import DeadLetters
from .inbox.settings import Inbox
from .inbox.waiting import WaitingEvents
from .stores import open_store
from .stores.applications import Application
from .stores.contract import DEFAULT_RETENTION, BatchingStore, InboxStore, Store
from .stores.values import StoreStats
from .verification.headers import RawHeaders
from .verification.secrets import SecretSource, SecretsProvider, decode_secret, secrets_of
from .verification.signature import DEFAULT_TOLERANCE, Verifier

if TYPE_CHECKING:
    from .inspector import Bounds, Inspector, Redaction

__all__ = ["Receiver"]

_log = logging.getLogger("hookonce")

# Keys are `endpoint:id`; without a colon in the name no two pairs give the same key.
_ENDPOINT = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# Where a receiver answers that is an application by itself, or mounted as one.
_OWN_PATHS = frozenset({"", "/", "/webhooks", "/webhooks/"})


class _Kept(Enum):
    """Stands for a part that a copy shares with its original; None means something to some."""

    AS_IT_IS = "as it is"


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
        if _ENDPOINT.fullmatch(endpoint) is None:
            raise ValueError(
                "endpoint takes 1 to 64 letters, digits, underscores, full stops and hyphens,"
                f" not {endpoint!r}"
            )
        if isinstance(store, str):
            store = open_store(store, retention=retention or DEFAULT_RETENTION, clock=clock)
        elif retention is not None:
            raise ValueError("give retention to the store itself, or the store as a URL")
        if inbox is not None and not isinstance(inbox, Inbox):
            raise TypeError(f"inbox takes an Inbox, such as Inbox(concurrency=16), not {inbox!r}")
        if not isinstance(secrets, SecretsProvider):
            secrets = secrets_of(secrets)  # what the verifier knows, whatever becomes of a list
        verifier = Verifier(secrets, tolerance=tolerance, clock=clock)
        self._secrets = secrets
        self._endpoint = endpoint
        self._service = service
        self._tolerance = tolerance
        self._retention = retention
        self._inbox = inbox
        self._clock = clock
        self._store = store
        self._limits = limits or Limits()
        inbox_store = None if inbox is None else _with_inbox(store)
        self._rotation = RotationWatch(self.current_secrets, clock)
        self._disabling = DisableWatch(clock)
        self._observers = Observers([DeliveryLog(), self._rotation, self._disabling, *observers])
        if isinstance(store, BatchingStore):
            store.flushes.add(self._note_flush)
        self._attempts = Attempts(
            store=store,
            router=self,
            limits=self._limits,
            inbox=inbox_store,
            observers=self._observers,
        )
        self._runs = Runs(self._attempts, self._limits)
        self._registration = Registration(store, endpoint, self._application)
        self._users = 0
        self._intake: Intake | None = None
        if inbox is not None and inbox_store is not None:
            self._intake = Intake(
                store=inbox_store,
                inbox=inbox,
                router=self,
                runs=self._runs,
                endpoint=endpoint,
                limits=self._limits,
                observers=self._observers,
            )
        self._pipeline = Pipeline(
            verifier=verifier,
            router=self,
            store=store,
            runs=self._runs,
            intake=self._intake,
            endpoint=endpoint,
            service=service,
            limits=self._limits,
            clock=clock,
            observers=self._observers,
        )
        self._app = DeliveryApp(self.handle, self._limits, unread=self.note_unread)
        self._guarded = StatusGuard(self._app)
        self.dead = DeadLetters(
            store=store,
            router=self,
            runs=self._runs,
            endpoint=endpoint,
            lease_seconds=self._limits.lease_seconds,
        )

    def __repr__(self) -> str:
        return f"Receiver(endpoint={self._endpoint!r}, {len(self.handlers)} handlers)"

    @property
    def endpoint(self) -> str:
        """The name that scopes what is handled once."""
        return self._endpoint

    @property
    def store(self) -> Store:
        """What remembers its events."""
        return self._store

    @property
    def service(self) -> str | None:
        """The sender's name in its own two headers, if it was given."""
        return self._service

    @property
    def limits(self) -> Limits:
        """The time limits and sizes it keeps to."""
        return self._limits

    @property
    def tolerance(self) -> float:
        """How many seconds a timestamp may lie from the clock, in both directions."""
        return self._tolerance

    @property
    def clock(self) -> Clock:
        """What it takes the time from, in Unix seconds."""
        return self._clock

    @property
    def is_open(self) -> bool:
        """Whether somebody has entered it, its ``lifespan`` or ``opened``, and not left."""
        return self._users > 0

    @property
    def has_inbox(self) -> bool:
        """Whether deliveries are stored for workers, here or in other processes."""
        return self._inbox is not None

    @property
    def has_embedded_workers(self) -> bool:
        """Whether handlers run after the answer, in the lifespan of this process."""
        return self._inbox is not None and self._inbox.embedded

    @property
    def inbox(self) -> WaitingEvents:
        """What is in the inbox; AttributeError where this receiver has none."""
        if self._intake is None:
            raise AttributeError("this receiver has no inbox; give it Receiver(inbox=Inbox())")
        return self._intake.waiting

    @property
    def rotation(self) -> Rotation | None:
        """The rotation of the sender's secret that deliveries show to be under way, if one is."""
        return self._rotation.current

    @property
    def failing(self) -> FailureStreak | None:
        """What this process has answered since its last success; None if that was a success.

        The sender disables an endpoint that fails for 72 hours, with at least 10 failed attempts.
        """
        return self._disabling.streak

    def secrets_last_matched(self) -> tuple[float | None, ...]:
        """Return when each secret in force was last needed to verify a delivery, in Unix seconds.

        In the order of the secrets; None where that was not since this process began.

        Raises:
            SecretError: a secret cannot be used, or there is none.

        """
        return self._rotation.last_matched()

    def current_secrets(self) -> tuple[str, ...]:
        """Return the secrets in force, newest first, for a tool that signs for this receiver.

        Whoever has one can forge deliveries: let them go nowhere else, no log and no message.

        Raises:
            SecretError: a secret cannot be used, or there is none.

        """
        secrets = secrets_of(self._secrets)
        if not secrets:
            raise SecretError("at least one secret is needed, and there is none in force")
        for secret in secrets:
            decode_secret(secret)
        return secrets

    def copy(
        self,
        *,
        secrets: SecretSource | _Kept = _Kept.AS_IT_IS,
        store: Store | str | _Kept = _Kept.AS_IT_IS,
        endpoint: str | _Kept = _Kept.AS_IT_IS,
        inbox: Inbox | _Kept | None = _Kept.AS_IT_IS,
        clock: Clock | _Kept = _Kept.AS_IT_IS,
        router: Router | None = None,
    ) -> Self:
        """Return a receiver with the same handlers and settings, and other parts where given.

        For a test of a receiver that was configured for production::

            receiver.copy(secrets=SECRET, store="memory://", inbox=None)

        The copy has the handlers and error hooks that are registered now; neither receiver gets
        those that the other is given later. Observers of the original see nothing of the copy. It
        is of the same class, with the same attributes,
        though the constructor of a subclass is not run again: a handler that is a method of the
        original is called on the original. It is not open, even if the original is.

        Args:
            secrets: what deliveries to the copy are signed with.
            store: a store, or the URL of one; without it the two share one, and what one of them
                has handled the other has handled too.
            endpoint: the name that scopes what is handled once.
            inbox: an inbox; None to handle inside the request.
            clock: Unix time in seconds, also for a store given as a URL.
            router: whose handlers and error hooks it has instead of the original's.

        Raises:
            SecretError: a secret cannot be used, or there is none.
            ValueError: another argument cannot be used; the message says what to do.

        """
        copied = shallow_copy(self)
        kept = _Kept.AS_IT_IS
        # The base's constructor makes every part anew, and leaves what a subclass has added.
        Receiver.__init__(
            copied,
            secrets=self._secrets if secrets is kept else secrets,
            store=self._store if store is kept else store,
            endpoint=self._endpoint if endpoint is kept else endpoint,
            service=self._service,
            tolerance=self._tolerance,
            retention=self._retention if isinstance(store, str) else None,
            inbox=self._inbox if inbox is kept else inbox,
            limits=self._limits,
            clock=self._clock if clock is kept else clock,
        )
        copied._retention = self._retention  # noqa: SLF001 - for the copy's own copies
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
        own = dict(vars(self))
        held = {"_app", "_guarded"}  # by the routes, and these ask this object at each delivery
        vars(self).update((name, part) for name, part in vars(other).items() if name not in held)
        try:
            yield
        finally:
            vars(self).clear()
            vars(self).update(own)

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        """Return what to answer to a delivery: the whole pipeline without HTTP.

        Args:
            body: the raw request body, exactly as received.
            headers: a mapping or (name, value) pairs, str or bytes, any case.
            started: when the request arrived, in the event loop's time; now by default. The answer
                budget counts from there.

        """
        return await self._pipeline.handle(body, headers, started=started)

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
        self._observers.add(observer, of=of)

    def note_unread(self, outcome: Outcome, seconds: float) -> None:
        """Tell observers of a request that was answered without its body: by an HTTP face.

        Args:
            outcome: what was answered, for example that the body was too large.
            seconds: how long that took.

        """
        self._observers.tell(DeliveryAnswered(self._endpoint, outcome, seconds))

    def _note_flush(self, calls: int, seconds: float) -> None:
        if self._observers.wants(BatchFlushed):
            self._observers.tell(BatchFlushed(type(self._store).__name__, calls, seconds))

    async def idle(self, seconds: float) -> bool:
        """Return whether no handler runs any more, after waiting for that at most so long."""
        return await self._runs.idle(seconds)

    def routes(self, path: str, *, middleware: Iterable[Middleware] = ()) -> list[Route]:
        """Return routes for a Starlette or FastAPI application.

        They answer with and without a trailing slash and never redirect.

        Args:
            path: where deliveries arrive, for example ``/webhooks``.
            middleware: for these routes alone; whatever it answers, no 3xx or 410 goes out.

        """
        return delivery_routes(path, self._app, middleware)

    def inspector(
        self,
        *,
        token: str | None = None,
        hosts: Collection[str] | None = None,
        redaction: Redaction | None = None,
        bounds: Bounds | None = None,
    ) -> Inspector:
        """Return pages that show what this receiver does from now on, to be mounted at a path.

        Without a token they answer clients of this machine alone. Behind a proxy always set one.

        Args:
            token: what a visitor must know, at least 16 characters.
            hosts: which ``Host`` is accepted, exactly; those of this machine by default.
            redaction: what is hidden of headers and bodies.
            bounds: how much is kept, and for how many visitors.

        Raises:
            ImportError: Jinja2 is not installed (extra ``inspector``).
            ValueError: the token is too short, or a host is none.

        """
        # Most receivers have none, and need not have its packages.
        from .inspector import LOOPBACK_HOSTS, Inspector  # noqa: PLC0415

        return Inspector(
            self, token=token, hosts=hosts or LOOPBACK_HOSTS, redaction=redaction, bounds=bounds
        )

    def health_routes(self) -> list[Route]:
        """Return ``/livez`` and ``/readyz`` for a Starlette or FastAPI application."""
        return health_routes(self.check)

    async def stats(self) -> StoreStats:
        """Return how much the store holds of this endpoint; raises StoreError."""
        return await within(self._limits.store_seconds, self._store.stats(endpoint=self._endpoint))

    async def check(self) -> Readiness:
        """Return whether deliveries can be taken, and if not, why."""
        if not self._pipeline.accepting:
            return Readiness(("the receiver is shutting down",))
        problems = []
        warnings = self._disabling.warnings()
        if self._attempts.overdue:
            problems.append(
                f"sync handlers beyond their time limit: {self._attempts.overdue}; each keeps one"
                f" of {self._limits.threads} threads"
            )
        try:
            warnings += self._rotation.warnings()
            warnings += await within(self._limits.store_seconds, self._store.warnings())
            warnings += await within(self._limits.store_seconds, self._registration.warnings())
            if self._intake is None:
                warnings += await self._stranded()
            elif (problem := await self._intake.problem()) is not None:
                problems.append(problem)
        except StoreError as error:
            _log.warning("not ready: %s", error)
            problems.append("the store cannot be used; the log says why")
        except SecretError as error:
            problems.append(f"no delivery can be verified: {error}")
        return Readiness(tuple(problems), warnings)

    async def _stranded(self) -> tuple[str, ...]:
        """Return a warning of events in an inbox that this receiver does not have any more."""
        if not isinstance(self._store, InboxStore):
            return ()
        stats = await self.stats()
        if not stats.depth or stats.workers:
            return ()
        warning = (
            f"{stats.depth} events wait in the inbox of {self._endpoint}, nobody works on it, and"
            " this receiver has none; give it inbox=Inbox() until they are handled"
        )
        return (warning,)

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
        if self._intake is None:
            raise LookupError("there is nothing to work on: this receiver has no inbox")
        async with self.opened():
            await self._registration.enter()
            self._intake.start()
            try:
                yield
            finally:
                await self._end_work(self._intake)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep the store open while the block lasts, without working on an inbox.

        For what an operator does, such as the replay of dead letters; raises StoreError. It may be
        entered inside ``lifespan``, whose end still closes everything.
        """
        await self._enter()
        try:
            yield
        finally:
            await self._leave()

    async def __aenter__(self) -> Self:
        await self._enter()
        try:
            await self._registration.enter()
            if self._intake is not None and self._intake.embedded:
                self._intake.start()
        except BaseException:
            await self._leave()
            raise
        self._pipeline.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pipeline.close()
        if self._intake is not None and self._intake.embedded:
            await self._end_work(self._intake)
        else:
            await self._runs.drain()
        await self._leave()

    async def _end_work(self, intake: Intake) -> None:
        await intake.stop()
        await self._runs.drain()
        await intake.leave()

    async def _enter(self) -> None:
        self._users += 1
        try:
            await self._store.open()
        except BaseException:
            await self._leave()
            raise

    def _application(self) -> Application | None:
        try:
            return application_of(self.handlers, self.current_secrets(), self._endpoint)
        except Exception:  # noqa: BLE001 - whoever verifies with these secrets says what is wrong
            return None

    async def _leave(self) -> None:
        """Close what is open when nobody uses it any more."""
        self._users -= 1
        if self._users == 0:
            self._registration.leave()
            if self._intake is not None:
                await self._intake.stop()
            await self._runs.drain()
            self._attempts.close()
            await self._store.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application, alone or mounted."""
        if scope["type"] == "lifespan":
            await run_lifespan(self, receive, send)
        elif scope["type"] == "http" and app_path(scope) in _OWN_PATHS:
            await self._guarded(scope, receive, send)
        else:
            await elsewhere(scope, receive, send)


def _with_inbox(store: Store) -> InboxStore:
    if isinstance(store, InboxStore):
        return store
    raise ValueError(
        f"{type(store).__name__} has no inbox: what was answered must outlive the process; use"
        " sqlite:///file.db or redis://host, or leave `inbox` out to handle inside the request"
    )
