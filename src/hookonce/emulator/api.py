"""The HTTP API of the service: its webhook operations, as an ASGI application.

Where the interface is silent
-----------------------------

The interface leaves gaps. This is what the emulator does about them; a client that relies on it
relies on the emulator, not on the service.

Operations:

- Creating an endpoint answers 201, every other operation 200, and each under ``data``.
- The test operation answers the delivery as the log shows it. It waits for the attempt, unless time
  flows by itself. A disabled endpoint can be tested too.
- ``url`` and ``events`` are required to create an endpoint, ``description`` is empty by default;
  ``events`` names one type at least. None may be null, and unknown fields are ignored.
- PATCH takes ``url``, ``events`` and ``description`` beside ``enabled``, each by the rules of
  creation. What is left out stays as it is, and an empty object changes nothing.
- ``enabled: false`` disables an endpoint with the reason ``manual`` and gives up what is on its
  way to it; one that is disabled keeps its reason. ``enabled: true`` forgets the failures of one
  that is disabled, and changes nothing about one that is active.
- Endpoints are not listed, read alone or deleted: such requests answer 405.
- Disabled endpoints count toward the plan's number of endpoints, and so does the one that the
  emulator was started with.
- A second rotation within 24 hours ends the first: events carry the newest two secrets.

URLs:

- A URL is checked when it is set, not again before a delivery. All addresses of its host must be
  public, and so none may be private, shared, loopback, link-local, multicast, reserved or set aside
  for documentation; an IPv6 address that stands for an IPv4 address is judged by that one.
- A private address answers 422. No https, no URI and a host that cannot be resolved are
  ``validation.failed``.
- Unless it was told otherwise, the emulator takes loopback addresses, also by http, which the
  service refuses.

Pages:

- A timestamp cursor is followed by what is strictly older; without an offset it is in UTC.
- The id of a delivery that has left the log is followed by nothing. Any other unknown cursor
  answers 422.

Keys and the quota:

- Where both headers carry a key, ``Authorization`` counts. Paths that do not exist need a key too.
- A request is checked in this order: key, plan, quota, path, method, role, row, body.
- The quota starts anew at midnight UTC. ``x-ratelimit-reset`` is that moment in Unix seconds. Every
  request with a key counts, whatever its answer; those over the quota do not, and those without API
  access have a quota of 0. The time is that of the service, which can be ahead of the clock.
- Revoked keys make room for others under the plan's number of keys; expired ones do not.

Errors:

- Of the codes only ``api.not_on_plan``, ``validation.failed`` and ``webhook.url_private`` are the
  interface's own. The rest are named after them: ``api.unauthorized`` (401), ``api.forbidden``
  (403), ``api.not_found`` (404, of a path), ``webhook.not_found`` (404), ``api.method_not_allowed``
  (405), ``webhook.limit_reached`` (409), ``api.quota_exceeded`` (429), ``api.internal`` (500).
- 401, 402 and 403 are of the kind ``permission``, 405 and 422 ``validation``, and an endpoint more
  than the plan allows is of the kind ``limit``, as 429 is.
- The details of ``validation.failed`` are ``{issues: [{field, message}]}``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from http import HTTPStatus
from typing import Annotated, NamedTuple, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..http.app import Receive, Scope, Send, elsewhere, run_lifespan
from ..http.guard import app_path
from ..resources import ErrorResponse, Resource, WebhookDelivery
from ..verification.loggers import get_logger
from ..verification.secrets import new_secret
from .access import ADMIN, Allowance, DailyQuota, KeyRow, Keys, presented_key
from .addresses import check_url
from .paging import page_of
from .records import DeliveryRow, EndpointRow, EndpointStatus
from .refusals import (
    Issue,
    RefusedError,
    at_endpoint_limit,
    internal,
    invalid,
    no_such_path,
    no_such_webhook,
    not_on_plan,
    quota_used_up,
    unauthorized,
    wrong_method,
    wrong_role,
)
from .rules import SUBSCRIBABLE
from .workspace import Workspace

__all__ = ["Api", "Service"]

_log = get_logger("hookonce.emulator.api")


class Service(Protocol):
    """What the API needs of the service behind it."""

    @property
    def workspace(self) -> Workspace:
        """The workspace of every key."""
        ...

    @property
    def now(self) -> float:
        """The Unix time of the service."""
        ...

    async def test(self, endpoint: str) -> WebhookDelivery:
        """Deliver a test event at once."""
        ...

    def rotate_secret(self, endpoint: str) -> str:
        """Give an endpoint another secret."""
        ...

    def enable(self, endpoint: str) -> None:
        """Turn an endpoint back on."""
        ...

    def disable(self, endpoint: str) -> None:
        """Turn an endpoint off."""
        ...


def _subscribable(name: str) -> str:
    if name not in SUBSCRIBABLE:
        raise PydanticCustomError(
            "event_type", "Input should be one of {names}", {"names": ", ".join(SUBSCRIBABLE)}
        )
    return name


_Events = Annotated[list[Annotated[str, AfterValidator(_subscribable)]], Field(min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True)


class _NewEndpoint(_Body):
    url: str
    events: _Events
    description: str = ""


class _Change(_Body):
    # What a field holds that was not sent is never looked at; null is refused in all of them.
    url: str = ""
    events: _Events = Field(default_factory=list)
    description: str = ""
    enabled: bool = True


B = TypeVar("B", bound=_Body)


class _Operation(NamedTuple):
    method: str
    path: re.Pattern[str]
    perform: Callable[..., Awaitable[Response]]


class Api:
    """The webhook operations (interface, Endpoints: Webhooks); an ASGI application.

    Args:
        service: whose endpoints they are about.
        keys: who may call them.
        log: gives the deliveries of an endpoint, newest first.
        new_id: gives an id that starts with a prefix.
        allow_loopback: whether http and loopback addresses will do.

    """

    def __init__(
        self,
        service: Service,
        keys: Keys,
        *,
        log: Callable[[str], Sequence[DeliveryRow]],
        new_id: Callable[[str], str],
        allow_loopback: bool,
    ) -> None:
        self._service = service
        self._keys = keys
        self._rows = log
        self._new_id = new_id
        self._allow_loopback = allow_loopback
        self._quota = DailyQuota()
        # No path of the interface has two methods.
        webhook = "/v1/webhooks/([^/]+)"
        self._operations = [
            _Operation(method, re.compile(path), perform)
            for method, path, perform in (
                ("POST", "/v1/webhooks", self._create),
                ("PATCH", webhook, self._change),
                ("POST", f"{webhook}/test", self._test),
                ("GET", f"{webhook}/deliveries", self._deliveries),
                ("POST", f"{webhook}/rotate-secret", self._rotate_secret),
            )
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        match scope["type"]:
            case "lifespan":
                await run_lifespan(nullcontext(), receive, send)
            case "http":
                response = await self._answer(Request(scope, receive))
                await response(scope, receive, send)
            case _:
                await elsewhere(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        now = self._service.now
        key = self._keys.in_force(presented_key(request.headers), now)
        if key is None:
            return _refusal(unauthorized())
        allowance = self._quota.spend(self._service.workspace.limits.requests_per_day, now)
        try:
            response = await self._admit(request, key, allowance, now)
        except RefusedError as error:
            response = _refusal(error)
        except Exception:  # noqa: BLE001 - every failure has an answer (interface, Errors)
            _log.exception("an operation of the emulated API raised; answered 500")
            response = _refusal(internal())
        response.headers.update(allowance.headers)
        return response

    async def _admit(
        self, request: Request, key: KeyRow, allowance: Allowance, now: float
    ) -> Response:
        if allowance.limit == 0:
            raise not_on_plan()
        if allowance.is_exceeded:
            raise quota_used_up(allowance.retry_after(now))
        path = app_path(request.scope)
        for operation in self._operations:
            place = operation.path.fullmatch(path)
            if place is None:
                continue
            if request.method != operation.method:
                raise wrong_method(operation.method)
            if key.shown.role != ADMIN:
                raise wrong_role(key.shown.role, ADMIN)
            rows = [self._row(endpoint_id) for endpoint_id in place.groups()]
            return await operation.perform(request, *rows)
        raise no_such_path()

    def _row(self, endpoint_id: str) -> EndpointRow:
        try:
            return self._service.workspace.endpoints[endpoint_id]
        except KeyError:
            raise no_such_webhook() from None

    async def _create(self, request: Request) -> Response:
        body = await _read(request, _NewEndpoint)
        await check_url(body.url, allow_loopback=self._allow_loopback)
        workspace = self._service.workspace
        if len(workspace.endpoints) >= (most := workspace.limits.webhooks):
            raise at_endpoint_limit(most)
        row = workspace.add(
            body.url,
            body.events,
            body.description,
            new_secret(),
            self._service.now,
            self._new_id("wh"),
        )
        return _data(row.shown(with_secret=True), HTTPStatus.CREATED)

    async def _change(self, request: Request, row: EndpointRow) -> Response:
        body = await _read(request, _Change)
        sent = body.model_fields_set
        if "url" in sent:
            # Before anything is changed: a request is taken as a whole or not at all.
            await check_url(body.url, allow_loopback=self._allow_loopback)
            row.url = body.url
        if "events" in sent:
            row.events = tuple(body.events)
        if "description" in sent:
            row.description = body.description
        if "enabled" in sent:
            is_active = row.status is EndpointStatus.ACTIVE
            if body.enabled and not is_active:
                self._service.enable(row.id)
            elif is_active and not body.enabled:
                self._service.disable(row.id)
        return _data(row.shown())

    async def _test(self, _: Request, row: EndpointRow) -> Response:
        return _data(await self._service.test(row.id))

    async def _deliveries(self, request: Request, row: EndpointRow) -> Response:
        query = request.query_params
        page = page_of(self._rows(row.id), limit=query.get("limit"), cursor=query.get("cursor"))
        return JSONResponse(_written(page))

    async def _rotate_secret(self, _: Request, row: EndpointRow) -> Response:
        self._service.rotate_secret(row.id)
        return _data(row.shown(with_secret=True))


async def _read(request: Request, kind: type[B]) -> B:
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise invalid(
            [
                Issue(".".join(str(part) for part in fault["loc"]), fault["msg"])
                for fault in error.errors(
                    include_input=False, include_context=False, include_url=False
                )
            ]
        ) from None


def _written(resource: Resource) -> object:
    # A field that was never set, such as the secret of most answers, does not go out.
    return resource.model_dump(mode="json", exclude_unset=True)


def _data(resource: Resource, status: HTTPStatus = HTTPStatus.OK) -> Response:
    # "A single resource is returned under data" (interface, What the service does: rule 4).
    return JSONResponse({"data": _written(resource)}, status)


def _refusal(error: RefusedError) -> Response:
    # Hint and details are not required (interface, Errors), nor are they ever null.
    content = ErrorResponse(error=error.body).model_dump(mode="json", exclude_none=True)
    return JSONResponse(content, error.status, error.headers)
