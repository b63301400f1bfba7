"""The HTTP API of the service, as an ASGI application: who may call, and how answers look.

The operations are in ``operations``. What the emulator does where the interface is silent stands in
the guide, ``hookonce/guide/interface.md``.
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
from .access import ROLES, Allowance, DailyQuota, KeyRow, Keys, presented_key
from .operations import ApiCall, ApiOperation, Desk, operation_for, row_of
from .refusals import (
    Issue,
    RefusedError,
    at_storage,
    internal,
    invalid,
    not_on_plan,
    quota_used_up,
    unauthorized,
    wrong_role,
)

_log = get_logger("hookonce.emulator.api")

_MOST_BODY_BYTES = 1024 * 1024  # of a request to an operation; media has sizes of its own

_TAKING, _SERVING = "storage", "files"


class Api:
    """Every operation (interface, Endpoints), and the storage beside them; an ASGI application.

    Args:
        desk: what operations work with.
        keys: who may call them.
        quota: how often.

    """

    def __init__(self, desk: Desk, keys: Keys, quota: DailyQuota) -> None:
        self._desk = desk
        self._keys = keys
        self._quota = quota

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
        _, place, *rest = [*app_path(request.scope).split("/"), ""]
        if place in {_TAKING, _SERVING}:
            return await self._at_storage(request, place, rest[0])
        now = self._desk.now
        key = self._keys.in_force(presented_key(request.headers), now)
        if key is None:
            return _refusal(unauthorized())
        allowance = self._quota.spend(self._desk.workspace.limits.requests_per_day, now)
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
        operation, ids = operation_for(request.method, app_path(request.scope))
        if ROLES.index(key.shown.role) < ROLES.index(operation.role):
            raise wrong_role(key.shown.role, operation.role)
        row = row_of(self._desk.workspace, ids)
        answer = await operation.perform(
            ApiCall(
                desk=self._desk,
                key=key.shown,
                base_url=_base_url(request),
                row=row,
                query=_query(request, operation),
                body=await _body(request, operation),
            )
        )
        return JSONResponse(_written(answer), operation.status)

    async def _at_storage(self, request: Request, place: str, name: str) -> Response:
        storage = self._desk.storage
        try:
            if place == _TAKING:
                await storage.take(
                    name, request.method, request.headers, request.stream(), self._desk.now
                )
                return Response(status_code=HTTPStatus.OK)
            if request.method not in {"GET", "HEAD"}:
                raise at_storage(HTTPStatus.METHOD_NOT_ALLOWED, "A file can be read only.")
            media_type, content = storage.file(name)
            return Response(content, media_type=media_type)
        except RefusedError as error:
            return _refusal(error)


def _base_url(request: Request) -> str:
    """Return what leads to this application from outside, also where another one mounts it."""
    # Starlette's own `base_url` is that of the outermost application.
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
    content = await _content(request)
    if not content and operation.body_is_optional:
        content = b"{}"
    with suppress(ValueError):  # what is no JSON at all is refused below
        # pydantic reads NaN, and numbers too large for a float; the answer could not hold either.
        if (place := non_finite(from_json(content))) is not None:
            raise invalid([Issue(place, "Input should be a finite number")])
    try:
        return operation.body.model_validate_json(content)
    except ValidationError as error:
        raise invalid(_issues(error)) from None


async def _content(request: Request) -> bytes:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > _MOST_BODY_BYTES:
            raise invalid([Issue("body", f"Input should have at most {_MOST_BODY_BYTES} bytes")])
    return bytes(content)


def _issues(error: ValidationError) -> list[Issue]:
    faults = error.errors(include_input=False, include_context=False, include_url=False)
    return [Issue(".".join(str(part) for part in one["loc"]), one["msg"]) for one in faults]


def _written(answer: Resource) -> object:
    # A field that was never set, such as the secret of most answers, does not go out.
    written = answer.model_dump(mode="json", exclude_unset=True)
    # "A single resource is returned under data" (interface, What the service does: rule 4).
    return written if isinstance(answer, Page) else {"data": written}


def _refusal(error: RefusedError) -> Response:
    # Hint and details are not required (interface, Errors), nor are they ever null.
    content = ErrorResponse(error=error.body).model_dump(mode="json", exclude_none=True)
    return JSONResponse(content, error.status, error.headers)
