"""One request to the service: sent under time limits, repeated only where that is safe, and read.

Three things hold here for every operation. The key goes into the header of requests to the base
address and nowhere else: no redirect is followed, and errors of httpx2, whose frames hold the
header, are replaced by our own. A request is sent again only if it was not carried out (429, or the
connection was never made), or if carrying it out twice is the same as once. All waiting before a
repetition stays within the caller's patience.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import quote, urlsplit

import httpx2
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import from_json, to_json

from ..resources import ErrorResponse, Resource
from .errors import ClientError, NoAnswerError, UnreadableAnswerError, UploadError, refusal
from .keys import Key
from .quota import QuotaWatch

M = TypeVar("M", bound=BaseModel)

_RETRY_AFTER = re.compile(r"[0-9]{1,9}")
_PASSING = {
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
_MOST_ATTEMPTS = 5
_FIRST_WAIT_SECONDS = 0.5
_MOST_PROBLEMS = 5

_CLOSED = "the client is closed: make the call inside its block, or make another client"
_ANOTHER_LOOP = "the client has connections of another event loop: make one client in each loop"


@dataclass(frozen=True, slots=True)
class Operation:
    """What to ask of the service.

    Attributes:
        method: of the request.
        path: of the request, from ``/v1`` on.
        query: parameters; those that are None are left out.
        body: what is sent as JSON, or None.
        is_repeatable: whether doing it twice is the same as doing it once.

    """

    method: str
    path: str
    query: Mapping[str, str | int | None] | None = None
    body: Resource | None = None
    is_repeatable: bool = False


class Connection:
    """Sends requests to the base address with the key, and files to the storage without it.

    Args:
        base_url: where the service is, with or without ``/v1`` at its end.
        key: who asks.
        patience: seconds that one call may spend waiting before it asks again.
        answer_seconds: how long an answer may take, as a whole.
        watch: told of the quota.
        allow_http: whether http will do for other hosts than this machine.
        transport: what httpx2 sends with; the network by default.

    """

    def __init__(
        self,
        base_url: str,
        key: Key,
        *,
        patience: float,
        answer_seconds: float,
        watch: QuotaWatch,
        allow_http: bool,
        transport: httpx2.AsyncBaseTransport | None,
    ) -> None:
        self._allow_http = allow_http
        address = self._checked(base_url, "base_url").rstrip("/")
        self.base_url = address.removesuffix("/v1")  # the paths of operations begin with it
        self._key = key
        self._patience = patience
        self._answer_seconds = answer_seconds
        self._watch = watch
        # A proxy in the environment is for the way out of the machine.
        leaves = not _is_this_machine(urlsplit(self.base_url).hostname or "")
        self._http = httpx2.AsyncClient(
            transport=transport, timeout=answer_seconds, follow_redirects=False, trust_env=leaves
        )

        self._loop: asyncio.AbstractEventLoop | None = None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(
        self,
        operation: Operation,
        kind: type[M],
        *,
        before_reading: Callable[[bytes], object] | None = None,
    ) -> M:
        """Return the answer to an operation, read as this kind.

        Args:
            operation: what to ask.
            kind: of the answer.
            before_reading: given the answer of success as it came, even if it cannot be read.

        Raises:
            ApiError: the service refuses.
            NoAnswerError: no answer came.
            UnreadableAnswerError: the answer is not of the interface.
            ApiKeyError: the provider of the key has none.

        """
        left, attempt = self._patience, 1
        while isinstance(outcome := await self._attempt(operation), _Failure):
            wait = _wait_after(outcome, operation, attempt)
            if wait is None or wait > left or attempt == _MOST_ATTEMPTS:
                raise outcome.error
            left, attempt = left - wait, attempt + 1
            await asyncio.sleep(wait)
        if before_reading is not None:
            before_reading(outcome.content)
        return _read(operation, outcome, kind)

    async def send_file(
        self,
        media_id: str,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: AsyncIterator[bytes],
        seconds: float,
    ) -> None:
        """Send a file's bytes to the storage, once and without the key.

        Args:
            media_id: for the error.
            method: as the service said.
            url: as the service said; whoever has it may write there, so its host alone is logged.
            headers: as the service said, with the length.
            content: the bytes.
            seconds: how long it may take.

        Raises:
            UploadError: the storage did not take them.

        """
        try:
            address = _HiddenPath(self._checked(url, "the upload address"))
        except (ValueError, httpx2.InvalidURL):
            address = None
        if address is None:
            raise UploadError(media_id, "the service gave an address that nothing can be sent to")
        file = _Watched(content)
        request = self._http.build_request(method, address, headers=headers, content=file)
        request.url = address  # the constructor makes a copy, which would show all of it
        result = await self._exchange(request, seconds)
        if isinstance(result, _NoAnswer):
            if file.error is not None:
                raise file.error
            raise UploadError(media_id, f"the storage: {result.reason}")
        if not result.is_success:
            status = result.status_code
            raise UploadError(media_id, f"the storage answered {status}", status)

    def _checked(self, url: str, what: str) -> str:
        """Return an address that may be sent to; ValueError for any other, unquoted."""
        try:
            parts = urlsplit(url)
            host, has_user = parts.hostname or "", parts.username is not None
            _ = parts.port  # checked when it is read
            httpx2.URL(url)  # which is stricter
        except (ValueError, httpx2.InvalidURL):
            host, has_user = "", False
            parts = urlsplit("")
        is_safe = parts.scheme == "https" or (
            parts.scheme == "http" and (self._allow_http or _is_this_machine(host))
        )
        if not host or has_user or parts.fragment or not is_safe:
            raise ValueError(
                f"{what} has to be an https URL such as https://api.example.com, without a user or"
                " password; http is for this machine, or with allow_http=True"
            )
        if what == "base_url" and parts.query:
            raise ValueError("base_url has no query")
        return url

    async def _attempt(self, operation: Operation) -> httpx2.Response | _Failure:
        """Return an answer of success, or why there is none."""
        result = await self._exchange(self._request(operation), self._answer_seconds)
        if isinstance(result, _NoAnswer):
            return _Failure(
                NoAnswerError(
                    operation.method,
                    operation.path,
                    result.reason,
                    may_have_arrived=result.may_have_arrived,
                ),
                is_certain=not result.may_have_arrived,
                is_lasting=result.is_lasting,
            )
        self._watch.note(result.headers)
        return result if result.is_success else _refused(operation, result)

    def _request(self, operation: Operation) -> httpx2.Request:
        query = {k: v for k, v in (operation.query or {}).items() if v is not None}
        headers = {"accept": "application/json"}
        content = None
        if operation.body is not None:
            headers["content-type"] = "application/json"
            content = operation.body.model_dump_json().encode()
        url = self.base_url + operation.path
        request = self._http.build_request(
            operation.method, url, params=query or None, headers=headers, content=content
        )
        request.headers["authorization"] = f"Bearer {self._key.current()}"
        return request

    async def _exchange(
        self, request: httpx2.Request, seconds: float
    ) -> httpx2.Response | _NoAnswer:
        if self._http.is_closed:
            return _NoAnswer(_CLOSED, may_have_arrived=False, is_lasting=True)
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        try:
            async with asyncio.timeout(seconds):
                # Without its own authentication: what a .netrc or a URL may say is none of ours.
                return await self._http.send(request, auth=None, follow_redirects=False)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return _NoAnswer(f"cannot connect ({type(error).__name__})", may_have_arrived=False)
        except httpx2.UnsupportedProtocol:
            return _NoAnswer("there is no such protocol", may_have_arrived=False, is_lasting=True)
        except (TimeoutError, httpx2.TimeoutException):
            return _NoAnswer(f"no answer within {seconds:g} s", may_have_arrived=True)
        except (httpx2.HTTPError, OSError) as error:
            return _NoAnswer(f"the exchange broke ({type(error).__name__})", may_have_arrived=True)
        except Exception as error:  # noqa: BLE001 - of any transport: its frames hold the header
            reason = f"the exchange broke ({type(error).__name__}), and would again"
            if loop is not self._loop:
                reason = f"{_ANOTHER_LOOP} ({type(error).__name__})"
            return _NoAnswer(reason, may_have_arrived=True, is_lasting=True)
        except asyncio.CancelledError as error:
            # The frames it came through hold the header.
            error.__context__ = None
            raise error.with_traceback(None) from None


@dataclass(frozen=True, slots=True)
class _NoAnswer:
    reason: str
    may_have_arrived: bool
    is_lasting: bool = False


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why there is no answer of success.

    Attributes:
        error: what the caller is told.
        status: of the answer, or None where none came.
        retry_after: what the answer says of when to ask again.
        is_certain: whether it is certain that nothing was done.
        is_lasting: whether asking again is of no use.

    """

    error: ClientError
    status: int | None = None
    retry_after: float | None = None
    is_certain: bool = False
    is_lasting: bool = False


def _wait_after(failure: _Failure, operation: Operation, attempt: int) -> float | None:
    """Return after how many seconds to ask again, or None for never."""
    if failure.is_lasting:
        return None
    if failure.status == HTTPStatus.TOO_MANY_REQUESTS:  # it was refused, so nothing was done
        return failure.retry_after
    is_passing = failure.status is None or failure.status in _PASSING
    if is_passing and (operation.is_repeatable or failure.is_certain):
        return failure.retry_after or _backoff(attempt)
    return None


class _Watched:
    """A file's pieces; knows the error of the file from one of the network.

    Attributes:
        error: what reading has raised.

    """

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self.error: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                yield piece
        except Exception as error:
            self.error = error
            raise


class _HiddenPath(httpx2.URL):
    """A URL that is shown without its path and query: httpx2 logs the URL of every request."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc.decode('ascii')}/…"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def segment(resource_id: str) -> str:
    """Return an id as a part of a path; ValueError for what would lead elsewhere."""
    if not isinstance(resource_id, str) or resource_id in {"", ".", ".."}:
        raise ValueError(f"an id is text such as 'post_1', not {resource_id!r}")
    return quote(resource_id, safe="")


def _refused(operation: Operation, response: httpx2.Response) -> _Failure:
    method, path, status = operation.method, operation.path, response.status_code
    retry_after = response.headers.get("retry-after", "").strip()
    seconds = float(retry_after) if _RETRY_AFTER.fullmatch(retry_after) else None
    try:
        # Whatever quotes the key back at us, no error shows it.
        said = _without(_key_sent(response), from_json(response.content))
        body = ErrorResponse.model_validate_json(to_json(said)).error
    except ValueError:
        body = None
    error: ClientError
    if body is None:
        what = "a redirect, which is not followed" if response.is_redirect else "no error as such"
        error = UnreadableAnswerError(method, path, status, (f"the answer is {what}",))
    else:
        error = refusal(method, path, status, body, seconds)
    return _Failure(error, status, seconds)


def _key_sent(response: httpx2.Response) -> str:
    """Return the key that was asked with: the provider may have another one by now."""
    return response.request.headers["authorization"].removeprefix("Bearer ")


def _without(key: str, value: JsonValue) -> JsonValue:
    """Return a JSON value with the key in none of its strings, however they were escaped."""
    match value:
        case str():
            return value.replace(key, "(key)")
        case list():
            return [_without(key, item) for item in value]
        case dict():
            return {name.replace(key, "(key)"): _without(key, v) for name, v in value.items()}
    return value


def _read(operation: Operation, response: httpx2.Response, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
    problems = tuple(
        f"{'.'.join(map(str, fault['loc'])) or 'the answer'}: {fault['msg']}"
        for fault in faults[:_MOST_PROBLEMS]
    )
    raise UnreadableAnswerError(operation.method, operation.path, response.status_code, problems)


def _backoff(attempt: int) -> float:
    wait = _FIRST_WAIT_SECONDS * 2.0 ** (attempt - 1)
    return wait * random.uniform(0.5, 1.0)  # noqa: S311 - to spread requests, not to hide anything


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
