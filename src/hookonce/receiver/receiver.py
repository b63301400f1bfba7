"""``Receiver``, the class that users configure, mount and query."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Container,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from copy import copy as shallow_copy
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack, overload

from ..clock import Clock, span_seconds, system_clock, utc
from ..delivery.limits import Limits
from ..errors import shows_half_built
from ..events import Event
from ..events.writing import body_of
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
from ..inbox.handled import HandledEvents
from ..inbox.settings import Inbox
from ..inbox.waiting import WaitingEvents
from ..outcome import Outcome
from ..routing.handler import is_async
from ..routing.router import Router
from ..senders.built_in import publishing
from ..senders.sender import Sender
from ..stores.protocols import Store
from ..stores.time_limit import within
from ..stores.values import StoreStats
from ..verification.headers import RawHeaders
from ..verification.providers import FileSecrets
from ..verification.secrets import SecretSource
from ..verification.signature import sign
from ..watching.disabling import FailureStreak
from ..watching.records import DeliveryAnswered, Observer
from ..watching.rotation import Rotation
from ..watching.workers import WorkerReport
from .expecting import Expectation, Poll
from .reconcile import GapHook, Reconciliation, accept, after_backfill, compare
from .settings import Changes, HiddenSecrets, ReceiverSettings, opened_store
from .trials import Kept, Trial
from .wiring import Wiring

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from ..client import Client  # at run time the import would need httpx2, which is optional

    P = TypeVarWithDefault("P", default=Never)  # typing.TypeVar has defaults from Python 3.13 on


G = TypeVar("G", bound="GapHook")
E1 = TypeVar("E1", bound=Event[Any])
E2 = TypeVar("E2", bound=Event[Any])

# A receiver that is itself the ASGI application answers at these paths.
_OWN_PATHS = frozenset({"", "/", "/webhooks", "/webhooks/"})


@shows_half_built
class Receiver(Router):
    """Receives the webhooks of one endpoint: verifies each, handles each once, loses none.

    It is a router of handlers (``on``, ``on_unknown``, ``on_error``, ``include``), an ASGI
    application, and an async context manager. Routes for another application come from ``routes``,
    its lifespan from ``lifespan``; the pipeline without HTTP is ``handle``.

    Args:
        secrets: a ``whsec_`` secret or ``whpk_`` public key, several (newest first), or a provider.
        store: a store, or the URL of one: ``sqlite:///file.db``,
            ``postgresql://host/database``, ``redis://host`` or ``memory://``.
        endpoint: a name of letters, digits, ``_``, ``.`` and ``-``. An event is handled once for
            each endpoint name: two endpoints of one workspace receive the same event ids.
        sender: who sends: a value of ``hookonce.senders``, or a ``Sender`` of your own.
        tolerance: how far a timestamp may be from the clock, in both directions: seconds or a
            ``timedelta``; by default the sender's tolerance.
        retention: how long a handled event is remembered (seconds or a ``timedelta``), at least
            as long as the sender delivers it again; only for a store given as a URL.
        keep_handled: how long the store keeps the deliveries of handled events (seconds or a
            ``timedelta``), so that a handler can run again on purpose; see ``handled``. By default
            it keeps none.
        keep_handled_bytes: the largest sum of the sizes of the kept bodies; the oldest are deleted
            first. By default there is no limit.
        inbox: settings of the inbox: a delivery is stored durably and answered, and workers handle
            it. Without it handlers run inside the request.
        limits: time limits and sizes.
        clock: returns Unix time in seconds.
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
        sender: Sender = publishing,
        tolerance: float | timedelta | None = None,
        retention: float | timedelta | None = None,
        keep_handled: float | timedelta | None = None,
        keep_handled_bytes: int | None = None,
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
                sender=sender,
                tolerance=tolerance,
                retention=retention,
                keep_handled=keep_handled,
                keep_handled_bytes=keep_handled_bytes,
                inbox=inbox,
                limits=Limits() if limits is None else limits,
                clock=clock,
            )
        except (ValueError, TypeError, ImportError) as error:
            raise error.with_traceback(None) from error.__cause__
        finally:  # error trackers send the local variables of every frame to a server
            del secrets, store
        self._gap_hooks: list[GapHook] = []
        self._assemble(settings, observers)

    def _assemble(self, settings: ReceiverSettings, observers: Iterable[Observer] = ()) -> None:
        self._table.serve(settings.sender)
        self._wiring = Wiring(settings, self._table, observers)
        # Routes keep this application for ever, so it must call `handle`, which uses the current
        # wiring.
        self._app = DeliveryApp(self.handle, settings.limits, unread=partial(note_unread, self))

    def __repr__(self) -> str:
        return f"Receiver(endpoint={self.endpoint!r}, {len(self.handlers)} handlers)"

    @property
    def endpoint(self) -> str:
        """The endpoint's name: each event is handled once for each name."""
        return self._wiring.settings.endpoint

    @property
    def store(self) -> Store:
        """The store that remembers this receiver's events."""
        return self._wiring.settings.store

    @property
    def sender(self) -> Sender:
        """The sender of the deliveries, with its rules."""
        return self._wiring.settings.sender

    @property
    def limits(self) -> Limits:
        """The time limits and sizes of this receiver."""
        return self._wiring.settings.limits

    @property
    def tolerance_seconds(self) -> float:
        """The largest allowed distance between a timestamp and the clock, in both directions."""
        return self._wiring.settings.tolerance_seconds

    @property
    def clock(self) -> Clock:
        """The clock of this receiver, in Unix seconds."""
        return self._wiring.settings.clock

    @property
    def is_open(self) -> bool:
        """Whether the receiver is open: inside ``async with``, ``lifespan`` or ``opened``."""
        return self._wiring.lifetime.is_open

    @property
    def has_inbox(self) -> bool:
        """Whether deliveries are stored for workers, here or in other processes."""
        return self._wiring.settings.inbox is not None

    @property
    def has_embedded_workers(self) -> bool:
        """Whether this process runs the inbox's workers in its lifespan."""
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
        """The dead letters, for an operator to list, replay or discard."""
        return self._wiring.dead

    @property
    def handled(self) -> HandledEvents:
        """The handled events that are kept; AttributeError if this receiver keeps none."""
        if self._wiring.handled is None:
            raise AttributeError(
                "this receiver keeps no handled events; give it"
                " Receiver(keep_handled=timedelta(days=3))"
            )
        return self._wiring.handled

    @property
    def rotation(self) -> Rotation | None:
        """The current rotation of the sender's secret, if deliveries show a rotation; else None."""
        return self._wiring.rotation.current

    @property
    def failing(self) -> FailureStreak | None:
        """The failed answers of this process since its last success; None after a success.

        The sender's rules say how long an endpoint may fail before the sender disables it.
        """
        return self._wiring.disabling.streak

    def secrets_last_matched(self) -> tuple[datetime | None, ...]:
        """Return when each secret in force last verified a delivery, in the order of the secrets.

        None for a secret that has verified no delivery since this process began.

        Raises:
            SecretError: a secret cannot be used, or there is none.
        """
        matched = self._wiring.rotation.last_matched()
        return tuple(None if at is None else utc(at) for at in matched)

    def current_secrets(self) -> tuple[str, ...]:
        """Return the secrets in force, newest first, for a tool that signs for this receiver.

        Anybody with a secret can forge deliveries: never write secrets to a log or a message.

        Raises:
            SecretError: a secret cannot be used, or there is none.
        """
        return self._wiring.settings.current_secrets()

    def copy(self, *, router: Router | None = None, **changes: Unpack[Changes]) -> Self:
        """Return a receiver with the same handlers and settings, except the settings given here.

        For a test of a receiver that was configured for production::

            receiver.copy(secrets=SECRET, store="memory://", inbox=None)

        The copy has the handlers and error hooks that are registered now; handlers registered later
        belong to one receiver only. Observers of the original see nothing of the copy. The copy has
        the same class and attributes, but a subclass's constructor is not called again, and a
        handler that is a method of the original is called on the original. The copy is not open,
        even if the original is.

        Args:
            router: a router whose handlers and error hooks replace the original's.
            changes: new values for arguments of the constructor: ``secrets``, ``store``,
                ``endpoint``, ``sender``, ``tolerance``, ``keep_handled``, ``keep_handled_bytes``,
                ``inbox``, ``limits`` and ``clock``.
                Without ``store`` both receivers share one store, so an event that one of them has
                handled is handled for the other too. A store given as a URL uses the copy's clock.

        Raises:
            SecretError: a secret cannot be used, or there is none.
            ValueError: another argument cannot be used; the message says what to do.
        """
        try:
            settings = self._wiring.settings.replaced(**changes)
        except (ValueError, TypeError, ImportError) as error:
            raise error.with_traceback(None) from error.__cause__
        finally:  # error trackers send local variables; see the constructor
            del changes
        copied = shallow_copy(self)  # a copy keeps the attributes of a subclass
        source = self if router is None else router
        Router.__init__(copied, source.handlers, source.error_hooks)
        copied._gap_hooks = [*self._gap_hooks]
        copied._assemble(settings)
        return copied

    def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Coroutine[Any, Any, Outcome]:
        """Process a delivery and return the answer: the whole pipeline without HTTP.

        Args:
            body: the raw request body, exactly as received.
            headers: a mapping or (name, value) pairs, str or bytes, any case.
            started: when the request arrived, in the event loop's time; the answer budget begins
                then. Default: now.
        """
        return self._wiring.pipeline.handle(body, headers, started=started)

    def observe(self, observer: Observer, *, of: Container[str] | None = None) -> None:
        """Notify this observer of every step from now on, like an observer of the constructor.

        Args:
            observer: the observer to notify.
            of: a container of event ids, for example a sample: for other events the observer is
                notified only of deliveries, answers, failures, retries and dead letters. The
                container is asked at each step, so it may change.

        Raises:
            TypeError: the argument is not an observer; the message says what to do.
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

        Cause the event before the block or inside it::

            targets = {target.id for target in (await client.posts.get(post_id)).targets}
            await client.posts.publish(post_id)
            async with receiver.expecting(
                PostTargetPublished, PostTargetFailed, where=lambda event: event.data.id in targets
            ) as expected:
                event = await expected.first()

        With ``where``, the events of the last minute count too (at most 128), so an event that came
        before the block is not missed. Without ``where`` only events that arrive inside the block
        count, because earlier events may have another cause. ``poll`` covers an event that arrives
        in another process, or never.

        Args:
            classes: the expected event classes.
            where: a condition; by default every event of these classes is expected.
            within: the time limit from the beginning of the block: seconds or a ``timedelta``.
            poll: asks the service for the result; returns None if there is none yet. It is called
                as soon as ``first`` has no event to return, and then repeatedly.
            poll_every: the time between two polls: seconds or a ``timedelta``; 15 s by default.

        Raises:
            TypeError: no class was given, or ``poll_every`` without ``poll``.
            ValueError: a time span is not more than 0.
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

        ``reconcile`` calls it with all gaps, oldest first, and the client. The log has no payloads:
        read the posts and comments of the service, find the resource of each gap with
        ``hookonce.receiver.pair_by_time``, and pass the event with the gap's id to ``backfill``.
        Keep the list of handled resources in a file or a database, because the handlers may run in
        another process.
        """
        if not is_async(function):
            raise TypeError("on_gap takes an async function of (gaps, client)")
        self._gap_hooks.append(function)
        return function

    async def reconcile(
        self, client: Client, webhook_id: str, *, since: datetime | timedelta | None = None
    ) -> Reconciliation:
        """Find missed events: events in the sender's log that this receiver has not handled.

        The functions registered with ``on_gap`` are called with the gaps. An event that they
        backfill is no gap any more; an exception that they raise is logged and put into
        ``failures``. You may call this at any time, also while deliveries arrive. It costs one
        request of the day's quota for each 100 deliveries, and one for the endpoint's status.

        Args:
            client: the client of the service, with an admin's key.
            webhook_id: the service's id of this endpoint.
            since: how far back to look: a time with an offset, or a time span before now. By
                default the whole log, as far as the sender's rules say that it reaches.

        Raises:
            ClientError: the service does not return its log.
            StoreError: the store cannot be read.
            ValueError: ``since`` has no offset, or does not lie in the past; or the sender's rules
                do not say how long it keeps its log.
        """
        await self._wiring.ignored.write()
        found = await compare(
            client,
            webhook_id,
            store=self.store,
            endpoint=self.endpoint,
            has_handler=lambda event_type: bool(self._table.of_type(event_type)),
            since=since,
            clock=self.clock,
            rules=self.sender.rules,
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
            found: the result of ``reconcile``.
            event_ids: the ids of the gaps to accept; all gaps by default.

        Returns:
            The same reconciliation with these gaps among ``accepted``.

        Raises:
            TypeError: ``event_ids`` is one text instead of a list of them, or the store cannot
                remember accepted gaps.
            ValueError: an id is not the id of a gap; nothing was recorded.
            StoreError: the store has recorded none or only some of the gaps.
        """
        return await accept(found, event_ids, store=self.store, endpoint=self.endpoint)

    async def backfill(self, event: Event[Any]) -> Outcome:
        """Process a missed event as if the sender had delivered it now.

        If an event with this id is handled already, it is not handled again. With an inbox the
        event waits for a worker. ``failing`` and ``rotation`` do not change: they describe the
        sender.

        Args:
            event: the missed event, built from the service's resources; its id is the gap's id.

        Raises:
            TypeError: the sender's envelope has a function, so no body can be written for it.
        """
        wiring, body = self._wiring, body_of(event, self.sender.envelope)
        timestamp = int(self.clock())
        headers = sign(wiring.own_secret, event.id, body, sender=self.sender, timestamp=timestamp)
        return await wiring.backfills.handle(body, headers, is_backfill=True)

    async def idle(self, seconds: float | timedelta) -> bool:
        """Wait up to ``seconds`` for all handlers to end; return whether all have ended.

        Raises:
            ValueError: the time span is negative or not finite.
        """
        return await self._wiring.attempts.wait_until_idle(span_seconds("seconds", seconds))

    def try_out(
        self,
        handler: str,
        *,
        event_type: str | None = None,
        since: float | datetime | None = None,
        where: str | Sequence[str] = (),
        kept: Kept | None = None,
        for_real: bool = False,
    ) -> AsyncGenerator[Trial, None]:
        """Run a handler on real events, one after the other, and roll its transactions back.

        It shows what a changed handler would do before you deploy it. The events are the dead
        letters and the handled events that the store keeps. The handler runs within its ledger, in
        a transaction that is always rolled back; afterwards, another transaction proves that
        nothing was committed. Only that transaction is rolled back: a request to another service
        is sent for real. The handler sees ``context.is_replay``. A handler that ends its
        transaction itself is tried with no other event.

        No trial changes the state of an event, a record of the ledger or a watermark. ``latest_by``
        skips no event, and ``serial_by`` applies as usual. The receiver must be open::

            async with receiver.opened():
                async for trial in receiver.try_out("book"):
                    assert trial.error is None

        Args:
            handler: the name of the handler.
            event_type: only events of this type.
            since: only events that were handled, or became dead letters, at this time or later: an
                aware ``datetime`` or Unix seconds.
            where: only events whose body meets all these conditions, as in ``DeadLetters.list``.
            kept: only handled events, or only dead letters.
            for_real: run a handler that has no ledger: its effects happen.

        Raises:
            LedgerError: the ledger cannot record effects, or does not roll back.
            LookupError: there is no such handler.
            StoreError: the store cannot be read.
            ValueError: the handler has no ledger, or has one and ``for_real`` is set; or a
                condition cannot be read.
        """
        return self._wiring.trials.run(
            handler,
            event_type=event_type,
            since=since,
            where=where,
            kept=kept,
            for_real=for_real,
        )

    def routes(self, path: str, *, middleware: Iterable[Middleware] = ()) -> list[Route]:
        """Return routes for a Starlette or FastAPI application.

        The routes answer with and without a trailing slash and never redirect.

        Args:
            path: the path for deliveries, for example ``/webhooks``.
            middleware: middleware for these routes alone; if it answers 3xx or 410, a 500 is sent
                instead.
        """
        return delivery_routes(path, self._app, middleware)

    def health_routes(self, *, token: str | None = None) -> list[Route]:
        """Return ``/livez`` and ``/readyz`` for a Starlette or FastAPI application.

        Only requests with the token see the reasons; other requests see only whether the receiver
        is ready. The checks run at most every few seconds.

        Args:
            token: the bearer token that ``Authorization`` must contain, at least 16 characters.

        Raises:
            ValueError: the token is too short.
        """
        return health_routes(self.recent_check, token=token)

    async def stats(self) -> StoreStats:
        """Return the store's counts for this endpoint; raises StoreError."""
        stats = self.store.stats(endpoint=self.endpoint)
        return await within(self.limits.store_seconds, stats)

    async def workers(self) -> list[WorkerReport]:
        """Return the current work of each process that handles events of this endpoint.

        Other processes report to the store every ten seconds or more often. A killed process stays
        in the list for up to 30 seconds; after 15 seconds its ``is_silent`` is True.

        With a store in memory, or a store of your own that is no ``ActivityStore``, the list has
        only this process.

        Raises:
            StoreError: the store does not answer.
        """
        return await self._wiring.workload.workers(self.store, self.limits.store_seconds)

    async def recent_check(self) -> Readiness:
        """Return the last result of ``check``, or check again if it is some seconds old."""
        return await self._wiring.readiness.recent()

    async def check(self) -> Readiness:
        """Check whether the receiver can accept deliveries now; if not, the result says why."""
        return await self._wiring.readiness.now()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:  # noqa: ARG002 - frameworks pass this argument
        """Open the store; at the end drain running handlers, release other events, and close.

        Pass it as the lifespan of the application that has the routes. Without a lifespan the store
        opens at the first delivery.
        """
        async with self:
            yield

    def working(self) -> AbstractAsyncContextManager[None]:
        """Handle events from the inbox until the block ends, as a worker process does.

        The end of the block drains running handlers, as the end of ``lifespan`` does. A receiver
        with an embedded inbox runs a worker in its lifespan already.

        Raises:
            LookupError: this receiver has no inbox.
            RuntimeError: this receiver runs a worker already.
            StoreError: the store cannot be opened.
        """
        return self._wiring.lifetime.working()

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Keep the store open while the block lasts, without working on an inbox.

        It is for an operator's work, such as the replay of dead letters. It may be entered inside
        ``lifespan``; the end of ``lifespan`` still closes everything.

        Raises:
            StoreError: the store cannot be opened.
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


# The functions below are for adapters and tools of this package, not for users.


def secrets_files(receiver: Receiver) -> tuple[Path, ...]:
    """Return the files from which a receiver reads its secrets; empty with another provider."""
    source = receiver._wiring.settings.secrets.source
    return source.paths if isinstance(source, FileSecrets) else ()


def note_unread(receiver: Receiver, outcome: Outcome, seconds: float) -> None:
    """Notify a receiver's observers of the answer to a request whose body was not read.

    Args:
        receiver: the receiver that the request was for.
        outcome: the answer, for example that the body was too large.
        seconds: how long the answer took.
    """
    receiver._wiring.observers.notify(DeliveryAnswered(receiver.endpoint, outcome, seconds))


@contextmanager
def replaced(receiver: Receiver, other: Receiver) -> Iterator[None]:
    """Replace a receiver by another receiver while the block lasts, wherever it is mounted.

    The application's lifespan then opens the other receiver, and its routes call the other
    receiver; the first receiver's store stays closed. Neither receiver may be in use before.
    """
    own, receiver._wiring = receiver._wiring, other._wiring
    try:
        yield
    finally:
        receiver._wiring = own
