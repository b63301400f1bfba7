"""The public face of a receiver: its settings, its dependencies, and what can be asked of them."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Container,
    Coroutine,
    Iterable,
    Iterator,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from copy import copy as shallow_copy
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack, overload

from ..clock import Clock, span_seconds, system_clock, utc
from ..delivery.limits import Limits
from ..errors import shows_half_built
from ..events import Event
from ..http.app import (
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
from ..http.guard import app_path
from ..http.health import Readiness, health_routes
from ..inbox.dead_letters import DeadLetters
from ..inbox.settings import Inbox
from ..inbox.waiting import WaitingEvents
from ..outcome import Outcome
from ..routing.handler import is_async
from ..routing.router import Router
from ..stores.protocols import Store
from ..stores.reconciling import ReconcilingStore
from ..stores.time_limit import within
from ..stores.values import StoreStats
from ..verification.headers import RawHeaders
from ..verification.secrets import SecretSource
from ..verification.signature import DEFAULT_TOLERANCE, sign
from ..watching.disabling import FailureStreak
from ..watching.records import DeliveryAnswered, Observer
from ..watching.rotation import Rotation
from .expecting import Expectation, Poll
from .reconcile import GapHook, Reconciliation, after_backfill, compare, with_accepted
from .settings import Changes, HiddenSecrets, ReceiverSettings, opened_store
from .wiring import Wiring

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from ..client import Client  # it needs httpx2

    P = TypeVarWithDefault("P", default=Never)  # which Python has from 3.13 on


G = TypeVar("G", bound="GapHook")
E1 = TypeVar("E1", bound=Event[Any])
E2 = TypeVar("E2", bound=Event[Any])

# Where a receiver answers that is an application by itself, or mounted as one.
_OWN_PATHS = frozenset({"", "/", "/webhooks", "/webhooks/"})


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
        tolerance: how far a timestamp may be from the clock, in both directions: seconds or a
            ``timedelta``.
        retention: how long a handled event is remembered (seconds or a ``timedelta``), at least 26
            hours; only for a store given as a URL.
        inbox: answer once a delivery is stored durably, and let workers handle it; without it
            handlers run inside the request.
        limits: time limits and sizes.
        clock: Unix time in seconds.
        observers: notified of every step, for metrics and the like (``hookonce.operations``).

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
        tolerance: float | timedelta = DEFAULT_TOLERANCE,
        retention: float | timedelta | None = None,
        inbox: Inbox | None = None,
        limits: Limits | None = None,
        clock: Clock = system_clock,
        observers: Iterable[Observer] = (),
    ) -> None:
        super().__init__()
        try:
            settings = ReceiverSettings(
                secrets=HiddenSecrets(secrets),
                store=opened_store(store, retention, clock),
                endpoint=endpoint,
                service=service,
                tolerance_seconds=span_seconds("tolerance", tolerance),
                retention=retention,
                inbox=inbox,
                limits=Limits() if limits is None else limits,
                clock=clock,
            )
        except (ValueError, TypeError, ImportError) as error:
            raise error.with_traceback(None) from error.__cause__
        finally:  # error trackers send the locals of every frame away
            del secrets, store
        self._gap_hooks: list[GapHook] = []
        self._assemble(settings, observers)

    def _assemble(self, settings: ReceiverSettings, observers: Iterable[Observer] = ()) -> None:
        self._wiring = Wiring(settings, self._table, observers)
        # Routes hold on to it, and it asks this object at each delivery.
        self._app = DeliveryApp(self.handle, settings.limits, unread=partial(note_unread, self))

    def __repr__(self) -> str:
        return f"Receiver(endpoint={self.endpoint!r}, {len(self.handlers)} handlers)"

    @property
    def endpoint(self) -> str:
        """The name that scopes what is handled once."""
        return self._wiring.settings.endpoint

    @property
    def store(self) -> Store:
        """What remembers its events."""
        return self._wiring.settings.store

    @property
    def service(self) -> str | None:
        """The sender's name in its own two headers, if it was given."""
        return self._wiring.settings.service

    @property
    def limits(self) -> Limits:
        """The time limits and sizes it keeps to."""
        return self._wiring.settings.limits

    @property
    def tolerance_seconds(self) -> float:
        """How far a timestamp may be from the clock, in both directions."""
        return self._wiring.settings.tolerance_seconds

    @property
    def clock(self) -> Clock:
        """What it takes the time from, in Unix seconds."""
        return self._wiring.settings.clock

    @property
    def is_open(self) -> bool:
        """Whether somebody has entered it, its ``lifespan`` or ``opened``, and not left."""
        return self._wiring.lifetime.is_open

    @property
    def has_inbox(self) -> bool:
        """Whether deliveries are stored for workers, here or in other processes."""
        return self._wiring.settings.inbox is not None

    @property
    def has_embedded_workers(self) -> bool:
        """Whether handlers run after the answer, in the lifespan of this process."""
        return self._wiring.settings.inbox is not None and self._wiring.settings.inbox.embedded

    @property
    def inbox(self) -> Inbox | None:
        """The settings passed as ``inbox=``; None if handlers run inside the request."""
        return self._wiring.settings.inbox

    @property
    def waiting(self) -> WaitingEvents:
        """The events that wait in the inbox; AttributeError if this receiver has no inbox."""
        if self._wiring.waiting is None:
            raise AttributeError("this receiver has no inbox; give it Receiver(inbox=Inbox())")
        return self._wiring.waiting

    @property
    def dead(self) -> DeadLetters:
        """What was given up, for a person to look at, replay or discard."""
        return self._wiring.dead

    @property
    def rotation(self) -> Rotation | None:
        """The rotation of the sender's secret that deliveries show to be under way, if one is."""
        return self._wiring.rotation.current

    @property
    def failing(self) -> FailureStreak | None:
        """What this process has answered since its last success; None if that was a success.

        The sender disables an endpoint that fails for 72 hours, with at least 10 failed attempts.
        """
        return self._wiring.disabling.streak

    def secrets_last_matched(self) -> tuple[datetime | None, ...]:
        """Return when each secret in force was last needed to verify a delivery.

        In the order of the secrets; None where that was not since this process began.

        Raises:
            SecretError: a secret cannot be used, or there is none.

        """
        matched = self._wiring.rotation.last_matched()
        return tuple(None if at is None else utc(at) for at in matched)

    def current_secrets(self) -> tuple[str, ...]:
        """Return the secrets in force, newest first, for a tool that signs for this receiver.

        Whoever has one can forge deliveries: let them go nowhere else, no log and no message.

        Raises:
            SecretError: a secret cannot be used, or there is none.

        """
        return self._wiring.settings.current_secrets()

    def copy(self, *, router: Router | None = None, **changes: Unpack[Changes]) -> Self:
        """Return a receiver with the same handlers, and with the settings that are given here.

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
        try:
            settings = self._wiring.settings.replaced(**changes)
        except (ValueError, TypeError, ImportError) as error:
            raise error.with_traceback(None) from error.__cause__
        finally:  # as in the constructor
            del changes
        copied = shallow_copy(self)  # with what a subclass has added
        source = self if router is None else router
        Router.__init__(copied, source.handlers, source.error_hooks)
        copied._gap_hooks = [*self._gap_hooks]
        copied._assemble(settings)
        return copied

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
        return self._wiring.pipeline.handle(body, headers, started=started)

    def observe(self, observer: Observer, *, of: Container[str] | None = None) -> None:
        """Notify an observer of every step from now on, like those passed to the constructor.

        Args:
            observer: the observer to notify.
            of: the ids of the events it looks at closely, for example a sample; asked whenever
                something happens, so it may change. Of other events it hears what arrives and is
                answered, what fails, and what is retried or buried.

        Raises:
            TypeError: it is no observer; the message says what to do.

        """
        self._wiring.observers.add(observer, of=of)

    @overload
    def expecting(
        self,
        event: type[E1],
        /,
        *,
        where: Callable[[E1], bool] | None = ...,
        within: float | timedelta = ...,
        poll: Poll[P] = ...,
        poll_every: float | timedelta | None = ...,
    ) -> Expectation[E1, P]: ...
    @overload
    def expecting(
        self,
        first: type[E1],
        second: type[E2],
        /,
        *,
        where: Callable[[E1 | E2], bool] | None = ...,
        within: float | timedelta = ...,
        poll: Poll[P] = ...,
        poll_every: float | timedelta | None = ...,
    ) -> Expectation[E1 | E2, P]: ...
    @overload
    def expecting(
        self,
        *classes: type[Event[Any]],
        where: Callable[[Any], bool] | None = ...,
        within: float | timedelta = ...,
        poll: Poll[P] | None = ...,
        poll_every: float | timedelta | None = ...,
    ) -> Expectation[Event[Any], P]: ...

    def expecting(
        self,
        *classes: type[Event[Any]],
        where: Callable[[Any], bool] | None = None,
        within: float | timedelta = 60.0,
        poll: Poll[Any] | None = None,
        poll_every: float | timedelta | None = None,
    ) -> Expectation[Any, Any]:
        """Wait in this process for events that the program itself causes.

        Cause it before the block or in it::

            targets = {target.id for target in (await client.posts.get(post_id)).targets}
            await client.posts.publish(post_id)
            async with receiver.expecting(
                PostTargetPublished, PostTargetFailed, where=lambda event: event.data.id in targets
            ) as expected:
                event = await expected.first()

        What came too early is not missed: with ``where`` the events of the last minute count too,
        128 at most. Without it nothing tells them from those of earlier doings, so that only events
        from the block on are given. An event may arrive in another process, or never: ``poll`` is
        asked as well.

        Args:
            classes: the classes of event that will do.
            where: which of them; each by default.
            within: how long to wait from the beginning of the block: seconds or a ``timedelta``.
            poll: returns what is waited for as far as it is known elsewhere, else None. It is asked
                as soon as ``first`` has nothing to return, and then every so often.
            poll_every: the wait between two polls: seconds or a ``timedelta``; 15 s by default.

        Raises:
            TypeError: no class was given, or ``poll_every`` without ``poll``.
            ValueError: a time is not more than 0.

        """
        return Expectation(
            self._wiring.observers,
            self._wiring.answers.recent,
            lambda: self._table.parser,
            classes,
            where=where,
            within=within,
            poll=poll,
            poll_every=poll_every,
        )

    def on_gap(self, function: G, /) -> G:
        """Register a function that backfills missed events: ``(gaps, client)``.

        ``reconcile`` calls it with every ``Gap`` it has found, oldest first, and the client. The
        log has no payload: look for what was missed among the posts and comments of the service,
        find out by ``hookonce.receiver.pair_by_time`` what is certain, and hand each to
        ``backfill`` under the gap's id. What was handled already it has to know from a file or a
        database: it may run in another process than the handlers did.
        """
        if not is_async(function):
            raise TypeError("on_gap takes an async function of (gaps, client)")
        self._gap_hooks.append(function)
        return function

    async def reconcile(
        self, client: Client, webhook_id: str, *, since: datetime | timedelta | None = None
    ) -> Reconciliation:
        """Return what was missed: what the sender's log has, and this receiver has not handled.

        Gaps go to the functions registered with ``on_gap``. An event that they backfill is no gap
        any more; an exception that they raise is logged and in ``failures``. Call this at any time,
        as often as you like; deliveries go on. It costs one request of the day's quota for each
        100 deliveries, and one for the endpoint's status.

        Args:
            client: of the service, with an admin's key.
            webhook_id: the service's id of this endpoint.
            since: how far back to look, a time with an offset or so long ago; as far as the log
                reaches, 14 days, by default.

        Raises:
            ClientError: the service does not give its log.
            StoreError: the store does not say what it knows.
            ValueError: ``since`` has no offset, or does not lie in the past.

        """
        await self._wiring.ignored.write()
        found = await compare(
            client,
            webhook_id,
            store=self.store,
            endpoint=self.endpoint,
            has_handler=self._has_handler,
            since=since,
            clock=self.clock,
        )
        return await after_backfill(
            found, client, self._gap_hooks, store=self.store, endpoint=self.endpoint
        )

    async def accept_gaps(
        self, found: Reconciliation, event_ids: Collection[str] | None = None
    ) -> Reconciliation:
        """Record gaps as accepted, so that later reconciliations do not report them as open.

        Accept gaps that nobody will backfill. The store keeps this record as long as its records of
        handled events. If the sender delivers the event after all, it is still handled.

        Args:
            found: what ``reconcile`` has returned.
            event_ids: which of its gaps; all of them by default.

        Returns:
            The same reconciliation with these gaps among ``accepted``.

        Raises:
            TypeError: ``event_ids`` is one text instead of a list of them, or the store cannot
                remember accepted gaps.
            ValueError: one of the ids is none of its gaps; nothing was recorded.
            StoreError: the store did not record them, or only some of them.

        """
        if isinstance(event_ids, str):
            raise TypeError("event_ids takes a list of ids, such as ['evt_1'], not one text")
        store = self.store
        if not isinstance(store, ReconcilingStore):
            raise TypeError(
                f"{type(store).__name__} cannot remember accepted gaps: it has not the calls of"
                " hookonce.stores.reconciling.ReconcilingStore"
            )
        gaps = [gap.event_id for gap in found.gaps]
        chosen = gaps if event_ids is None else list(dict.fromkeys(event_ids))
        settled = {gap.event_id for gap in (*found.accepted, *found.backfilled)}
        strange = [event_id for event_id in chosen if event_id not in {*gaps, *settled}]
        if strange:
            raise ValueError(f"no gap here, so nothing was accepted: {', '.join(strange)}")
        left = [event_id for event_id in chosen if event_id not in settled]
        if left:
            await store.accept(self.endpoint, left)
        return with_accepted(found, left)

    def _has_handler(self, event_type: str) -> bool:
        known = event_type in self._table.parser.classes
        return any(handler.wants(event_type, known=known) for handler in self.handlers)

    async def backfill(self, event: Event[Any]) -> Outcome:
        """Process a missed event as if the sender had delivered it now.

        An event with this id that is handled already is not handled again. With an inbox the event
        waits for a worker. ``failing`` and ``rotation`` do not change: they describe the sender.

        Args:
            event: the missed event, built from the service's resources; its id is the gap's id.

        Raises:
            SecretError: a secret cannot be used, or there is none.

        """
        body = event.model_dump_json().encode()
        headers = sign(self.current_secrets()[0], event.id, body, timestamp=int(self.clock()))
        return await self._wiring.pipeline.handle(body, headers, is_backfill=True)

    async def idle(self, seconds: float | timedelta) -> bool:
        """Return whether no handler runs any more, after waiting for that at most so long.

        Raises:
            ValueError: the span is negative or not finite.

        """
        return await self._wiring.attempts.idle(span_seconds("seconds", seconds))

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

        What is wrong is told to those alone that show the token; others learn whether the receiver
        is ready. It is looked at every few seconds at the most.

        Args:
            token: what ``Authorization: Bearer`` must show, at least 16 characters.

        Raises:
            ValueError: the token is too short.

        """
        return health_routes(self.recent_check, token=token)

    async def stats(self) -> StoreStats:
        """Return how much the store holds of this endpoint; raises StoreError."""
        stats = self.store.stats(endpoint=self.endpoint)
        return await within(self.limits.store_seconds, stats)

    async def recent_check(self) -> Readiness:
        """Return what ``check`` has found lately; what is seconds old is found anew, for all."""
        return await self._wiring.readiness.recent()

    async def check(self) -> Readiness:
        """Return whether deliveries can be taken at this moment, and if not, why."""
        return await self._wiring.readiness.now()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:  # noqa: ARG002 - passed by frameworks
        """Open the store; at the end drain running handlers, release the rest, and close.

        Pass it as the lifespan of the application that has the routes. Where an application has
        none, the store opens at the first delivery.
        """
        async with self:
            yield

    def working(self) -> AbstractAsyncContextManager[None]:
        """Handle events from the inbox until the block ends, as a worker process does.

        At its end running handlers are drained, as at the end of ``lifespan``. A receiver whose
        inbox is embedded works in its lifespan already.

        Raises:
            LookupError: this receiver has no inbox.
            RuntimeError: it works on it already.
            StoreError: the store cannot be opened.

        """
        return self._wiring.lifetime.working()

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Keep the store open while the block lasts, without working on an inbox.

        For what an operator does, such as the replay of dead letters; raises StoreError. It may be
        entered inside ``lifespan``, whose end still closes everything.
        """
        return self._wiring.lifetime.opened()

    async def __aenter__(self) -> Self:
        await self._wiring.lifetime.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._wiring.lifetime.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application, alone or mounted."""
        if scope["type"] == "http" and app_path(scope) in _OWN_PATHS:
            await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await run_lifespan(self, receive, send)
        else:
            await elsewhere(scope, receive, send)


# What adapters and tools of this package do with a receiver, and users do not.


def note_unread(receiver: Receiver, outcome: Outcome, seconds: float) -> None:
    """Notify a receiver's observers of a request that was answered without reading its body.

    Args:
        receiver: the receiver that the request was for.
        outcome: the answer, for example that the body was too large.
        seconds: how long the answer took.

    """
    receiver._wiring.observers.notify(DeliveryAnswered(receiver.endpoint, outcome, seconds))


@contextmanager
def replaced(receiver: Receiver, other: Receiver) -> Iterator[None]:
    """Let another receiver do the work of a receiver while the block lasts, wherever it is mounted.

    The application's lifespan then opens the other receiver, and its routes call the other one; the
    store of the first stays closed. Neither receiver may be in use before.
    """
    own, receiver._wiring = receiver._wiring, other._wiring
    try:
        yield
    finally:
        receiver._wiring = own
