"""The emulated service: registers endpoints, emits events and delivers them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from random import Random
from secrets import randbits
from typing import Any, Self, TypeAlias, TypeVar, cast, overload
from urllib.parse import urlsplit

from pydantic import JsonValue

from ..clock import span_seconds, system_clock, unix_seconds, utc
from ..errors import NeedsExtra, shows_half_built
from ..events import Event, EventClass
from ..events.writing import body_of
from ..http.app import ASGIApp
from ..receiver import Receiver
from ..resources import (
    ApiKey,
    KeyRole,
    ReceivedComment,
    WebhookDelivery,
    WebhookEndpoint,
)
from ..samples.events import make_event
from ..senders import Sender, publishing
from ..senders.sender import check_sender
from ..verification.secrets import new_secret, signing_key
from .access import ADMIN, DAY_SECONDS, DailyQuota, Keys
from .api import Api
from .app import App
from .chaos import Chaos, RequestFaults
from .deliveries import Deliveries
from .faults import FaultInjection, Faults
from .generated import EventGenerator
from .operations import Backend
from .publishing import Publishing
from .records import (
    CommentReply,
    DeliveryAttempt,
    DisabledReason,
    EndpointRow,
    EndpointStatus,
    Notice,
    OutgoingEvent,
)
from .rules import subscribable
from .storage import Storage
from .timeline import FrozenTime, ServiceTime, Timeline, TimeSource
from .transport import InProcess, Transport
from .wire import Wire
from .workspace import WorkspaceState
from .workspace_data import WorkspaceData, empty_workspace, fill

Target: TypeAlias = ASGIApp | str
"""A receiver: an application in this process, or a URL."""

E = TypeVar("E", bound=Event[Any])

_IN_PROCESS = "https://receiver.test"
_SERVICE = "example"

# The largest number of attempts to keep: a service may run for weeks, and must not fill the memory.
_ATTEMPTS_KEPT = 100_000


@shows_half_built
class EmulatedService:
    """An emulation of the service, as the interface documents it; an async context manager.

    In a test, time moves only with ``advance``, which makes all due attempts in order and at once::

        async with EmulatedService(receiver) as service:
            event = await service.emit(CommentReceived)
            await service.advance(hours=1)
            (delivery,) = service.deliveries(event_id=event.id)

    ``clock`` gives the time of signatures, which receivers check. If the clock is movable (a
    ``VirtualClock`` that the receiver has too, or the object that freezegun's ``freeze_time``
    gives), ``advance`` moves it. If it is not, the receiver stays in the present, and only the
    service's schedule, log, failures and rotations are ahead.

    Args:
        target: an ASGI application, whose lifespan the service runs, or the URL of a running
            server. It is registered as an endpoint for ``events``. Without a target, only the API
            registers endpoints.
        secret: the endpoint's ``whsec_`` secret or ``whsk_`` private key; by default the newest
            secret of a ``Receiver``, otherwise a new one, which the method ``secret`` returns. It
            also signs for the webhooks of ``data`` that have no secret of their own.
        events: the event types that the target subscribes to; all by default. The publishing
            service refuses types that it does not have.
        path: the path at which the application receives.
        sender: the sender to play, which decides the headers, the bodies and the retries; by
            default the sender of a ``Receiver``, otherwise the publishing service. The API is that
            of the publishing service for every sender.
        service: the name in the service's own headers and keys; by default the service name of a
            ``Receiver``, otherwise "example".
        plan: free, starter, pro or agency; by default the plan of ``data``.
        data: the description of the workspace; by default a bakery with its channels.
        clock: the time of signatures.
        speed: lets time pass by itself, and makes all waits this many times shorter; by default
            time moves only with ``advance``.
        chaos: disturbs deliveries at random; or a function that returns the fault of each attempt,
            by the event's id and the attempt's number. By default nothing disturbs deliveries.
        seed: determines ids, waiting times and chaos; random by default.
        answer_seconds: how long a receiver may take to answer: seconds or a ``timedelta``; by
            default as long as the sender waits.
        allow_loopback: whether the API accepts loopback addresses, also by http. The real service
            refuses them.
        on_attempt: called with every request and its result.
        on_event: called with every event of the workspace and the number of its deliveries.
        on_rotation: called with each new secret when chaos rotates it; without this function, chaos
            does not rotate.

    Attributes:
        app: the actions of people in the service's app, such as approving a post.
        faults: lets platforms fail, and loses webhooks.
        seed: another service with this seed makes the same random choices.
        workspace: the state of the workspace.

    Raises:
        ValueError: an argument is not valid; the message says what to do.
        SecretError: the secret is not valid.
    """

    def __init__(
        self,
        target: Target | None = None,
        *,
        secret: str | None = None,
        events: Sequence[str] = (),
        path: str = "/webhooks",
        sender: Sender | None = None,
        service: str | None = None,
        plan: str | None = None,
        data: WorkspaceData | None = None,
        clock: TimeSource = system_clock,
        speed: float | None = None,
        chaos: Chaos | RequestFaults | None = None,
        seed: int | None = None,
        answer_seconds: float | timedelta | None = None,
        allow_loopback: bool = True,
        on_attempt: Callable[[DeliveryAttempt], None] | None = None,
        on_event: Callable[[Event[Any], int], None] | None = None,
        on_rotation: Callable[[str], None] | None = None,
    ) -> None:
        if speed is not None and not 0 < speed < float("inf"):
            raise ValueError(f"speed is a number above 0, such as 1000, not {speed!r}")

        if speed is not None and isinstance(clock, FrozenTime):
            raise ValueError("a movable clock does not flow; give either a speed or such a clock")
        if sender is None:
            sender = target.sender if isinstance(target, Receiver) else publishing
        check_sender(sender)
        self._sender = sender
        service = service or (sender.hints and sender.hints.service) or _SERVICE
        self.seed: int = randbits(32) if seed is None else seed
        self._random = Random(f"{self.seed}:ids")  # noqa: S311 - not used for secrets
        self._flows = speed is not None
        self._time = ServiceTime(clock, speed or 1.0)
        self._timeline = Timeline(self._time)
        self._transport = InProcess(others=_over_http)
        self._open = AsyncExitStack()
        self._attempts: deque[DeliveryAttempt] = deque(maxlen=_ATTEMPTS_KEPT)
        self._on_attempt = on_attempt
        self._on_event = on_event
        self._on_rotation = on_rotation
        data = data or WorkspaceData()
        workspace_id = f"ws_{self._random.randbytes(8).hex()}"
        self.workspace: WorkspaceState = empty_workspace(
            data, workspace_id, plan=plan, service=service
        )
        self._faults = Faults()
        self.faults: FaultInjection = FaultInjection(self.workspace.channels, self._faults)
        wire = Wire(
            self._transport,
            self._time,
            sender=sender,
            service=service,
            answer_seconds=sender.rules.patience_seconds
            if answer_seconds is None
            else span_seconds("answer_seconds", answer_seconds, positive=True),
            flows=self._flows,
            note=self._note,
        )
        self._deliveries = Deliveries(
            self.workspace.endpoints,
            rules=sender.rules,
            wire=wire,
            timeline=self._timeline,
            seed=self.seed,
            chaos=chaos,
            rotate=self._rotate_by_chaos
            if on_rotation and sender.rules.two_signatures_seconds
            else None,
        )
        self._keys = Keys(service)
        self._quota = DailyQuota(self._time.span(DAY_SECONDS))
        self._publishing = Publishing(
            self.workspace.posts,
            timeline=self._timeline,
            faults=self._faults,
            emit=self._emit_data,
            seed=self.seed,
        )
        self.app: App = App(
            self.workspace, self._publishing, timeline=self._timeline, emit=self._emit_data
        )
        backend = Backend(
            workspace=self.workspace,
            timeline=self._timeline,
            deliveries=self._deliveries,
            publishing=self._publishing,
            storage=Storage(self.workspace),
            faults=self._faults,
            deliver_test=self.test,
            new_id=partial(_new_id, Random(f"{self.seed}:ids at once")),  # noqa: S311 - not used for secrets
            random=Random(f"{self.seed}:at once"),  # noqa: S311 - not used for secrets
            allow_loopback=allow_loopback,
        )
        self._api = Api(backend, self._keys, self._quota)
        self._start_with(data, secret)
        if target is not None:
            self._register(target, secret, events, path)

    def __repr__(self) -> str:
        return f"EmulatedService({len(self.workspace.endpoints)} endpoints, seed={self.seed})"

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._transport)
        if self._flows:
            await self._open.enter_async_context(self._timeline.flow())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @overload
    async def emit(
        self,
        event: type[E] | E,
        *,
        endpoint: str | None = ...,
        data: Mapping[str, JsonValue] | None = ...,
        extra: bool = ...,
        event_id: str | None = ...,
    ) -> E: ...
    @overload
    async def emit(
        self,
        event: str,
        *,
        endpoint: str | None = ...,
        data: Mapping[str, JsonValue] | None = ...,
        extra: bool = ...,
        event_id: str | None = ...,
    ) -> Event[Any]: ...

    async def emit(
        self,
        event: str | EventClass | Event[Any],
        *,
        endpoint: str | None = None,
        data: Mapping[str, JsonValue] | None = None,
        extra: bool = False,
        event_id: str | None = None,
    ) -> Event[Any]:
        """Emit an event, deliver it to the endpoints that subscribe to its type, and return it.

        If time moves only with ``advance``, the first attempts are over when this returns. The API
        lists the comment of a ``comment.received`` event from then on.

        Args:
            event: an event; or a type string or event class, for which a realistic event is made.
            endpoint: the id of an endpoint, to deliver only there.
            data: fields that replace the realistic fields, by wire name or Python name.
            extra: whether ``data`` may have fields that the type does not have.
            event_id: a new id by default.

        Raises:
            LookupError: there is no such endpoint.
            ValueError: ``data`` does not fit the type; or the event is a test event (use ``test``).
        """
        chosen = self.workspace.endpoints.values() if endpoint is None else [self._row(endpoint)]
        emitted = self._event(event, data, event_id, extra=extra)
        if emitted.type == self._sender.rules.test_type:
            raise ValueError("the workspace emits no test events; call `test` instead")
        if isinstance(emitted.data, ReceivedComment):
            self.workspace.keep_comment(emitted.data, self._time.now())
        if self._faults.loses(emitted.type):
            return emitted
        outgoing = self._outgoing(emitted)
        rows = [
            self._deliveries.begin(row, outgoing)
            for row in chosen
            if row.status is EndpointStatus.ACTIVE and row.wants(emitted.type)
        ]
        if self._on_event is not None:
            self._on_event(emitted, len(rows))
        await self._timeline.do_due({row.id for row in rows})
        return emitted

    async def test(self, endpoint: str | None = None) -> WebhookDelivery:
        """Deliver a test event at once, like the app's test button and the test operation.

        Raises:
            LookupError: there is no such endpoint, or the sender has no test event.
        """
        row = self._row(endpoint)
        if (test_type := self._sender.rules.test_type) is None:
            raise LookupError(f"the sender {self._sender.name!r} has no test event")
        emitted = self._event(test_type, None, None, extra=False)
        delivery = self._deliveries.begin(row, self._outgoing(emitted), is_test=True)
        await self._timeline.do_due({delivery.id})
        return delivery.to_resource()

    def rotate_secret(self, endpoint: str | None = None, *, secret: str | None = None) -> str:
        """Rotate an endpoint's secret and return the new secret.

        Both secrets sign events for the time in the sender's rules, 24 hours for the publishing
        service. If the rules do not name a time, only the new secret signs.

        Args:
            endpoint: the endpoint's id; optional if there is only one endpoint.
            secret: the new secret; random by default.
        """
        row = self._row(endpoint)
        if secret is not None:
            signing_key(secret)
        self._deliveries.replace_secret(row, secret or new_secret())
        return row.secret

    def enable(self, endpoint: str | None = None) -> None:
        """Enable a disabled endpoint; an active endpoint stays as it is."""
        self._row(endpoint).enable()

    def disable(self, endpoint: str | None = None) -> None:
        """Disable an endpoint, and give up its pending deliveries."""
        self._deliveries.disable(self._row(endpoint), DisabledReason.MANUAL)

    @property
    def api(self) -> ASGIApp:
        """The service's HTTP API: an ASGI application."""
        return self._api

    @property
    def keys(self) -> list[ApiKey]:
        """The workspace's API keys as the interface shows them, without their secret text."""
        return self._keys.resources

    def new_key(
        self,
        role: KeyRole = ADMIN,
        *,
        name: str = "emulator",
        expires_at: float | datetime | None = None,
    ) -> str:
        """Create an API key and return it; the service cannot show it again.

        Args:
            role: viewer, contributor, editor or admin; only admins may manage webhooks.
            name: the name for people.
            expires_at: when it expires, in the service's time: an aware ``datetime`` or Unix
                seconds; never by default.

        Raises:
            ValueError: there is no such role, the plan allows no more keys, or ``expires_at`` has
                no time zone.
        """
        if expires_at is not None:
            expires_at = unix_seconds("expires_at", expires_at)
        most = self.workspace.limits.keys
        return self._keys.new(role, name=name, expires_at=expires_at, most=most)

    def revoke_key(self, key: str) -> None:
        """Refuse an API key from now on; LookupError if there is no such key."""
        self._keys.revoke(key)

    @property
    def now(self) -> datetime:
        """The current time by which the service plans its work, as an aware UTC ``datetime``."""
        return utc(self._time.now())

    async def advance(
        self,
        delta: float | timedelta = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Let time pass, and make the attempts that become due, in order.

        Without arguments, make the attempts that are already due, because the test moved the clock.

        Args:
            delta: seconds or a ``timedelta``; the other arguments are added to it.
            days: of 24 hours.

        Raises: RuntimeError: time passes by itself, because the service has a ``speed``.
            ValueError: the time is negative, or a number is not finite.
        """
        more = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        step = span_seconds("delta", delta) + span_seconds("advance()", more)
        await self._timeline.advance_to(self._time.now() + step)

    async def settle(self) -> None:
        """Wait until all planned work is done, even if that takes days of the service's time.

        Then every delivery has succeeded or failed, and every scheduled post is out. If time moves
        only with ``advance``, ``settle`` moves it as far as needed.
        """
        if self._flows:
            await self._timeline.settled()
        while (moment := self._timeline.next_due) is not None:
            await self._timeline.advance_to(moment)

    @property
    def endpoints(self) -> list[WebhookEndpoint]:
        """The registered endpoints, without their secrets."""
        return [row.to_resource() for row in self.workspace.endpoints.values()]

    def endpoint(self, endpoint: str | None = None) -> WebhookEndpoint:
        """Return an endpoint; its id is optional if there is only one endpoint."""
        return self._row(endpoint).to_resource()

    def secret(self, endpoint: str | None = None) -> str:
        """Return an endpoint's newest secret, for the configuration of its receiver."""
        return self._row(endpoint).secret

    def deliveries(
        self,
        endpoint: str | None = None,
        *,
        event_id: str | None = None,
        status: str | None = None,
    ) -> list[WebhookDelivery]:
        """Return the delivery log, newest first; the publishing service's log covers 14 days.

        Args:
            endpoint: the id of an endpoint, for its deliveries only.
            event_id: the id of an event, for its deliveries only.
            status: pending, delivered or failed.
        """
        return [
            row.to_resource()
            for row in self._deliveries.rows(endpoint)
            if event_id in {None, row.event.id} and status in {None, row.status}
        ]

    def attempts(self, event_id: str | None = None) -> list[DeliveryAttempt]:
        """Return the requests of one event or of all, oldest first, up to the last 100,000."""
        return [attempt for attempt in self._attempts if event_id in {None, attempt.event_id}]

    @property
    def notices(self) -> list[Notice]:
        """The notices to the workspace's owner and admins."""
        return list(self._deliveries.notices)

    def replies(self, comment_id: str | None = None) -> list[CommentReply]:
        """Return the accepted replies to one comment or to all, oldest first, up to 100,000."""
        replies = self.workspace.replies
        return [reply for reply in replies if comment_id in {None, reply.comment_id}]

    def leave_quota(self, requests: int) -> None:
        """Set how many requests the daily quota still allows today."""
        self._quota.set_remaining(
            requests, self.workspace.limits.requests_per_day, self._time.now()
        )

    def _start_with(self, data: WorkspaceData, secret: str | None) -> None:
        now = self._time.now()
        random = Random(f"{self.seed}:workspace")  # noqa: S311 - not used for secrets
        generator = EventGenerator(random, clock=self._time.now)
        fill(self.workspace, data, generator.channels, now, self._new_id)
        for post in self.workspace.posts.values():
            if post.status == "scheduled" and post.scheduled_at is not None:
                self._publishing.schedule(post, post.scheduled_at)
        for fault in data.faults:
            self.faults.platform_fails(fault.channel_id, **fault.model_dump(exclude={"channel_id"}))
        for delay in data.slow:
            self.faults.platform_is_slow(delay.channel_id, seconds=delay.seconds)
        if data.limits.requests_left is not None:
            self.leave_quota(data.limits.requests_left)
        for key in data.keys:
            expires_at = None if key.expires_at is None else key.expires_at.timestamp()
            text = key.key.get_secret_value()
            self._keys.add(text, key.role, name=key.name, expires_at=expires_at)
        for webhook in data.webhooks:
            given = webhook.secret.get_secret_value() if webhook.secret else secret or new_secret()
            signing_key(given)
            endpoint_id = webhook.id or self._new_id("wh")
            url = _checked_url(webhook.url)
            self.workspace.add_endpoint(
                url, webhook.events, webhook.description, given, now, endpoint_id
            )

    async def _emit_data(self, event_type: str, data: Mapping[str, JsonValue]) -> Event[Any]:
        return await self.emit(event_type, data=data)

    def _register(
        self, target: Target, secret: str | None, events: Sequence[str], path: str
    ) -> None:
        if isinstance(target, str):
            url = _checked_url(target)
        else:
            url = f"{_IN_PROCESS}{path}"
            self._transport.mount(url, target)
        if secret is None and isinstance(target, Receiver):
            secret = target.current_secrets()[0]
        if secret is not None:
            signing_key(secret)
        if known := subscribable(self._sender):
            events = events or known
            if unknown := [name for name in events if name not in known]:
                raise ValueError(
                    f"{unknown[0]!r} cannot be subscribed to; there are {', '.join(known)}"
                )
        self.workspace.add_endpoint(
            url, events, "", secret or new_secret(), self._time.now(), self._new_id("wh")
        )

    def _row(self, endpoint: str | None) -> EndpointRow:
        rows = self.workspace.endpoints
        if endpoint is None:
            if len(rows) != 1:
                raise LookupError(f"there are {len(rows)} endpoints; name one by its id")
            return next(iter(rows.values()))
        try:
            return rows[endpoint]
        except KeyError:
            raise LookupError(f"there is no endpoint {endpoint!r}") from None

    def _event(
        self,
        event: str | EventClass | Event[Any],
        data: Mapping[str, JsonValue] | None,
        event_id: str | None,
        *,
        extra: bool,
    ) -> Event[Any]:
        if isinstance(event, Event):
            if data is not None or event_id is not None:
                raise ValueError(
                    "data and event_id are for new events; this one is emitted as it is"
                )
            return event
        return make_event(
            event,
            event_id=event_id or self._new_id("evt"),
            created_at=utc(self._time.signing()),
            workspace_id=self.workspace.id,
            data=data,
            extra=extra,
            sender=self._sender,
        )

    def _outgoing(self, event: Event[Any]) -> OutgoingEvent:
        body = body_of(event, self._sender.envelope, exclude_unset=True)
        return OutgoingEvent(event.id, event.type, body)

    def _new_id(self, prefix: str) -> str:
        return _new_id(self._random, prefix)

    def _note(self, attempt: DeliveryAttempt) -> None:
        self._attempts.append(attempt)
        if self._on_attempt is not None:
            self._on_attempt(attempt)

    def _rotate_by_chaos(self, endpoint: EndpointRow) -> None:
        # Rotate only while one secret signs: a second rotation would end a secret that receivers
        # still use.
        if len(endpoint.secrets(self._time.now())) == 1 and self._on_rotation is not None:
            self._on_rotation(self.rotate_secret(endpoint.id))


def _new_id(random: Random, prefix: str) -> str:
    return f"{prefix}_{random.randbytes(12).hex()}"


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"{url!r} is not a URL to deliver to; write it like http://127.0.0.1:8000/webhooks"
        )
    return url


def _over_http() -> AbstractAsyncContextManager[Transport]:
    with NeedsExtra("emulator", "delivering over HTTP", "httpx2"):
        module = import_module(".over_http", __package__)
    return cast("AbstractAsyncContextManager[Transport]", module.OverHttp())
