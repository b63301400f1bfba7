"""The HTTP API of the service: an ASGI application that admits requests and renders answers.

The operations are in ``operations``. The guide's page ``hookonce/guide/interface.md`` says what the
emulator does where the interface is silent.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from http import HTTPStatus

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..http.app import Receive, Scope, Send, elsewhere, run_lifespan
from ..http.guard import app_path
from ..logs import get_logger
from ..resources import ErrorResponse, Page, Resource
from ..samples.finite import non_finite
from .access import ROLES, DailyQuota, KeyRow, Keys, RemainingQuota, presented_key
from .operations import ApiCall, ApiOperation, Backend, operation_for, row_of
from .refusals import Issue, RefusedError, at_storage, invalid, refused

_log = get_logger("hookonce.emulator.api")

_MOST_BODY_BYTES = 1024 * 1024  # uploads go to the storage, which has its own limit

_UPLOADS, _FILES = "storage", "files"


class Api:
    """An ASGI application with every operation (interface, Endpoints) and the storage of media."""

    def __init__(self, backend: Backend, keys: Keys, quota: DailyQuota) -> None:
        self._backend = backend
        self._keys = keys
        self._quota = quota

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await run_lifespan(nullcontext(), receive, send)
            case "http":
                response = await self._answer(Request(scope, receive))
                await response(scope, receive, send)
            case _:
                await elsewhere(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        _, place, *rest = [*app_path(request.scope).split("/"), ""]
        if place in {_UPLOADS, _FILES}:
            return await self._at_storage(request, place, rest[0])
        now = self._backend.now
        key = self._keys.find_valid(presented_key(request.headers), now)
        if key is None:
            return _refusal(
                # RFC 9110, 15.5.2: a 401 must have this header.
                refused("api.unauthorized", headers={"www-authenticate": "Bearer"})
            )
        quota = self._quota.spend(self._backend.workspace.limits.requests_per_day, now)
        try:
            response = await self._admit(request, key, quota, now)
        except RefusedError as error:
            response = _refusal(error)
        except Exception:  # noqa: BLE001 - the answer to every failure is JSON (interface, Errors)
            _log.exception("an operation of the emulated API raised; answered 500")
            response = _refusal(refused("api.internal"))
        response.headers.update(quota.headers)
        return response

    async def _admit(
        self, request: Request, key: KeyRow, quota: RemainingQuota, now: float
    ) -> Response:
        if quota.limit == 0:
            raise refused("api.not_on_plan")
        if quota.is_exceeded:
            retry_after = str(quota.retry_after(now))
            raise refused("api.quota_exceeded", headers={"retry-after": retry_after})
        operation, ids = operation_for(request.method, app_path(request.scope))
        role = key.resource.role
        if ROLES.index(role) < ROLES.index(operation.role):
            raise refused("api.forbidden", role=role, needed=operation.role)
        row = row_of(self._backend.workspace, ids)
        answer = await operation.perform(
            ApiCall(
                backend=self._backend,
                key=key.resource,
                base_url=_base_url(request),
                row=row,
                query=_query(request, operation),
                body=await _body(request, operation),
            )
        )
        return JSONResponse(_content_of(answer), operation.status)

    async def _at_storage(self, request: Request, place: str, name: str) -> Response:
        storage = self._backend.storage
        try:
            if place == _UPLOADS:
                await storage.receive(
                    name, request.method, request.headers, request.stream(), self._backend.now
                )
                return Response(status_code=HTTPStatus.OK)
            if request.method not in {"GET", "HEAD"}:
                raise at_storage(HTTPStatus.METHOD_NOT_ALLOWED, "This address only serves files.")
            media_type, content = storage.file(name)
            return Response(content, media_type=media_type)
        except RefusedError as error:
            return _refusal(error)


def _base_url(request: Request) -> str:
    """Return the URL of this application, including the path at which it is mounted."""
    # Do not use Starlette's `base_url`: it is the URL of the outermost application.
    return f"{request.url.scheme}://{request.url.netloc}{request.scope.get('root_path', '')}"


def _query(request: Request, operation: ApiOperation) -> BaseModel | None:
    if operation.query is None:
        return None
    try:
        return operation.query.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise invalid(_issues(error)) from None


async def _body(request: Request, operation: ApiOperation) -> BaseModel | None:
    if operation.body is None:
        return None
    content = await _read_body(request)
    if not content and operation.body_is_optional:
        content = b"{}"
    with suppress(ValueError):  # `model_validate_json` below refuses invalid JSON
        # pydantic accepts NaN and numbers too large for a float, which no JSON answer can contain.
        if (place := non_finite(from_json(content))) is not None:
            raise invalid([Issue(place, "Input should be a finite number")])
    try:
        return operation.body.model_validate_json(content)
    except ValidationError as error:
        raise invalid(_issues(error)) from None


async def _read_body(request: Request) -> bytes:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > _MOST_BODY_BYTES:
            raise invalid([Issue("body", f"Input should have at most {_MOST_BODY_BYTES} bytes")])
    return bytes(content)


def _issues(error: ValidationError) -> list[Issue]:
    faults = error.errors(include_input=False, include_context=False, include_url=False)
    return [Issue(".".join(str(part) for part in one["loc"]), one["msg"]) for one in faults]


def _content_of(answer: Resource) -> object:
    # Leave out fields that were never set, such as the secret in most answers.
    content = answer.model_dump(mode="json", exclude_unset=True)
    # "A single resource is returned under data" (interface, What the service does: rule 4).
    return content if isinstance(answer, Page) else {"data": content}


def _refusal(error: RefusedError) -> Response:
    # Hint and details are optional (interface, Errors): leave them out instead of sending null.
    content = ErrorResponse(error=error.body).model_dump(mode="json", exclude_none=True)
    return JSONResponse(content, error.status, error.headers)
