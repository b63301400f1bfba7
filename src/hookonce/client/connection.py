"""Requests to the service: time limits, safe repetition, and the parsing of answers.

These rules hold for every operation:

- The key is sent to the base address only. No redirect is followed. Errors of httpx2 are replaced
  by our own, because their frames hold the header with the key.
- A request is repeated only if the service did not carry it out (429, or no connection was made),
  or if the operation is idempotent. All waits before repetitions stay within the patience.
- An answer has a limit of decoded bytes, and a whole exchange has one time limit.
- A file goes to the address that the service names, with the headers that the service names. But a
  service on the internet cannot send a file to this machine or to a private network.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import from_json, to_json

from ..resources import ErrorResponse, Resource
from .addresses import fault_of_address, is_private_host, is_this_machine
from .errors import ClientError, NoAnswerError, UnreadableAnswerError, UploadError, refusal
from .keys import HiddenKey
from .quota import QuotaWatch

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T", bound=BaseModel)

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

# The largest page, 100 posts with the longest captions, has 6 MB (interface, Limits).
_MOST_ANSWER_BYTES = 16 * 1024 * 1024
_TOO_LONG = f"the answer is longer than {_MOST_ANSWER_BYTES >> 20} MiB; ask for smaller pages"

# Limit the number of values too: a parsed value uses far more memory than its bytes, and an invalid
# value adds an error object. A page of 100 posts with 50 channels each has 20,000 values.
_MOST_VALUES = 100_000
_TOO_MANY = f"the answer has more than {_MOST_VALUES} values; ask for smaller pages"
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)

_BEFORE_A_VALUE = (b",", b"[", b"{")

_ENCODED_TWICE = "the answer is compressed more than once"

# Upload headers that the client never sends, even if the service asks for them. Some control the
# connection or the destination (RFC 9110, 7.2 and 7.6.1). The client computes the length itself.
# The storage must get no cookies.
_NO_UPLOAD_HEADERS = frozenset(
    {
        *("connection", "content-length", "cookie", "expect", "host", "http2-settings"),
        *("keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade"),
    }
)
_PRIVATE_ADDRESS = (
    "the service is on the internet, but named an address on this machine or in a private network;"
    " if this is right, send the file yourself between start_upload and complete"
)

_CLOSED = "the client is closed: make the call inside its block, or make another client"
_ANOTHER_LOOP = "the client belongs to another event loop: make one client in each loop"


class Item(Resource, Generic[T]):
    """An answer with one item, which the service puts under ``data``."""

    data: T


@dataclass(frozen=True, slots=True)
class Operation:
    """A request to the service.

    Attributes:
        path: the path, from ``/v1`` on.
        query: parameters; a parameter that is None is not sent.
        body: sent as JSON, or None.
        is_repeatable: whether the operation is idempotent, so that the client may repeat it.
    """

    method: str
    path: str
    query: Mapping[str, str | int | None] | None = None
    body: Resource | None = None
    is_repeatable: bool = False


class Connection:
    """Sends requests with the key to the base address, and files without the key to the storage.

    Args:
        base_url: the checked address of the service, with or without ``/v1`` at the end.
        patience: how many seconds one call may wait in all before repetitions.
        answer_seconds: how long one answer may take.
        watch: reads the quota from every answer.
        allow_http: allow http to hosts other than this machine.
    """

    def __init__(
        self,
        base_url: str,
        key: HiddenKey,
        *,
        patience: float,
        answer_seconds: float,
        watch: QuotaWatch,
        allow_http: bool,
        transport: httpx2.AsyncBaseTransport | None,
    ) -> None:
        self.base_url: str = base_url.rstrip("/").removesuffix("/v1")  # each operation adds /v1
        self._allow_http = allow_http
        base = urlsplit(self.base_url)
        self._host, self._scheme = base.hostname or "", base.scheme
        # `_attempt` sets this to true after a connection to a private address.
        self._service_is_private = is_private_host(self._host)
        self._key = key
        self._patience = patience
        self._answer_seconds = answer_seconds
        self._watch = watch
        self._http = httpx2.AsyncClient(
            transport=transport,
            timeout=None,  # no limit here: `_exchange` limits the whole exchange
            # Send no cookies: the storage may be on the service's domain, but must not get its
            # cookies.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            follow_redirects=False,
            # A proxy named in the environment cannot reach this machine.
            trust_env=not is_this_machine(self._host),
        )
        # The user's own transport may not support httpx2's trace extension.
        self._is_traced = transport is None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        operation: Operation,
        kind: type[M],
        *,
        before_reading: Callable[[bytes], object] | None = None,
    ) -> M:
        """Send a request, repeat it where that is safe, and return the parsed answer.

        Args:
            kind: the model of the answer.
            before_reading: called with the raw bytes of a 2xx answer before they are parsed.

        Raises:
            ApiError: the service refuses the request.
            NoAnswerError: no answer came.
            UnreadableAnswerError: the answer does not follow the interface.
            ApiKeyError: the provider of the key has no usable key.
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
        size: int,
        seconds: float,
    ) -> None:
        """Send a file's bytes to the storage, once and without the key.

        Args:
            media_id: for the error.
            url: the address that the service names. It is secret: anybody who knows it may write
                there.
            headers: the headers that the service asks for; headers of the connection are left out.
            seconds: how long the whole upload may take.

        Raises:
            UploadError: the storage did not accept the file.
        """
        fault = self._fault_of_upload(url)
        if fault is not None:
            raise UploadError(media_id, fault)
        address = _HiddenPath(url)
        given = {k: v for k, v in headers.items() if k.lower() not in _NO_UPLOAD_HEADERS}
        if self._shows_key(url, *given.values()):
            raise UploadError(media_id, "the service wants the API key sent to the storage")
        file = _Watched(content)
        # Do not call `httpx2.AsyncClient.build_request`, which would add the client's own headers.
        sent = {**given, "content-length": str(size)}
        request = httpx2.Request(method, address, headers=sent, content=file)
        # httpx2 logs the URL of a request. Replace the URL, so that the log does not show its path.
        request.url = address
        is_free = self._service_is_private or address.host == self._host
        result = await self._exchange(request, seconds, _Way(request, may_reach_private=is_free))
        if isinstance(result, _NoAnswer):
            if file.error is not None:
                raise file.error
            raise UploadError(media_id, f"the storage: {result.reason}")
        if not result.is_success:
            status = result.status
            raise UploadError(media_id, f"the storage answered {status}", status)

    def _shows_key(self, *texts: str) -> bool:
        key = self._key.current()
        return any(key in text for text in texts)

    def _fault_of_upload(self, url: str) -> str | None:
        """Return why an upload address is refused by its text; None if its text is allowed."""
        if fault_of_address(url, allow_http=self._allow_http) is not None:
            return "the service named an address that cannot be used"
        parts = urlsplit(url)
        if parts.scheme != "https" and self._scheme == "https":
            return "the service uses https, but named an http address"
        host = parts.hostname or ""
        if host != self._host and not self._service_is_private and is_private_host(host):
            return _PRIVATE_ADDRESS
        return None

    async def _attempt(self, operation: Operation) -> _Answer | _Failure:
        """Send a request once; return a 2xx answer, or the failure."""
        request = self._request(operation)
        way = _Way(request, may_reach_private=True)
        result = await self._exchange(request, self._answer_seconds, way, reads=True)
        self._service_is_private = self._service_is_private or way.reached_private
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
        if result.fault is None and result.is_success:
            return result
        return _refused(operation, result, _key_sent(request))

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
        self, request: httpx2.Request, seconds: float, way: _Way, *, reads: bool = False
    ) -> _Answer | _NoAnswer:
        """Send a request and return the answer; read the answer's content if ``reads`` is true."""
        if self._http.is_closed:
            return _NoAnswer(_CLOSED, may_have_arrived=False, is_lasting=True)
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        way.was_sent = not self._is_traced
        request.extensions = {**request.extensions, "trace": way.note}
        try:
            async with asyncio.timeout(seconds):
                # auth=None: no credentials from a .netrc file or from the URL.
                response = await self._http.send(
                    request, auth=None, follow_redirects=False, stream=True
                )
                try:
                    return await _answer_of(response, reads=reads)
                finally:
                    await response.aclose()
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            reason = f"cannot connect to {request.url.host} ({type(error).__name__})"
            return _NoAnswer(reason, may_have_arrived=False)
        except httpx2.UnsupportedProtocol:
            return _NoAnswer("unknown protocol", may_have_arrived=False, is_lasting=True)
        except _PrivateAddressError:
            return _NoAnswer(_PRIVATE_ADDRESS, may_have_arrived=False, is_lasting=True)
        except (TimeoutError, httpx2.TimeoutException):
            what = "answer" if way.was_sent else "connection"
            return _NoAnswer(f"no {what} within {seconds:g} s", may_have_arrived=way.was_sent)
        except (httpx2.HTTPError, OSError) as error:
            reason = f"the connection broke ({type(error).__name__})"
            return _NoAnswer(reason, may_have_arrived=way.was_sent)
        except Exception as error:  # noqa: BLE001 - any error's frames hold the header with the key
            reason = f"the transport failed ({type(error).__name__}); a repetition would fail too"
            if loop is not self._loop:
                reason = f"{_ANOTHER_LOOP} ({type(error).__name__})"
            return _NoAnswer(reason, may_have_arrived=way.was_sent, is_lasting=True)
        except asyncio.CancelledError as error:
            # Drop the original error, because its frames hold the header with the key.
            error.__context__ = None
            raise error.with_traceback(None) from None
        finally:
            await way.end()


class _PrivateAddressError(Exception):
    """Raised if an upload would connect to this machine or to a private network."""


class _Way:
    """Watches the connection of one request: httpx2 calls ``note`` at each step of the connection.

    Args:
        may_reach_private: whether the request may go to this machine or to a private network.

    Attributes:
        was_sent: whether the service may have received a part of the request.
        reached_private: whether a new connection led to this machine or to a private network.
    """

    def __init__(self, request: httpx2.Request, *, may_reach_private: bool) -> None:
        self._host = request.url.raw_host.decode("ascii")
        self._may_reach_private = may_reach_private
        self._is_direct = True
        self._stream: Any = None
        self.was_sent = False
        self.reached_private = False

    async def note(self, event: str, info: Mapping[str, Any]) -> None:
        """Record a step that httpx2 reports; raise ``_PrivateAddressError`` to stop an upload."""
        match event.partition(".")[2]:
            case "connect_tcp.started":
                # If the connection leads to a different host, that host is a proxy.
                self._is_direct = info["host"] == self._host
            case "connect_tcp.complete":
                self._stream = info["return_value"]
                peer = self._stream.get_extra_info("server_addr")
                self.reached_private = self._is_direct and is_private_host(str(peer[0]))
                if self.reached_private and not self._may_reach_private:
                    raise _PrivateAddressError
            case "send_request_headers.started":
                self._stream = None  # from now on, httpx2's pool will close the connection
                self.was_sent = self.was_sent or info["request"].method != b"CONNECT"

    async def end(self) -> None:
        """Close an unfinished connection, which httpx2 leaks if the task is cancelled."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()


@dataclass(frozen=True, slots=True)
class _Answer:
    """An HTTP answer.

    Attributes:
        content: the decoded bytes; empty if nobody reads them.
        fault: why the content is not read, or None.
    """

    status: int
    headers: httpx2.Headers = field(repr=False)
    content: bytes = field(default=b"", repr=False)
    fault: str | None = None

    @property
    def is_success(self) -> bool:
        return httpx2.codes.is_success(self.status)


async def _answer_of(response: httpx2.Response, *, reads: bool) -> _Answer:
    status, headers = response.status_code, response.headers
    if not reads:
        return _Answer(status, headers)
    if len(headers.get_list("content-encoding", split_commas=True)) > 1:
        # Refuse more than one layer of compression: each layer can multiply the bytes, and the
        # limit counts the outermost layer only.
        return _Answer(status, headers, fault=_ENCODED_TWICE)
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if max(len(content), response.num_bytes_downloaded) > _MOST_ANSWER_BYTES:
            return _Answer(status, headers, fault=_TOO_LONG)
    if _values_in(content) > _MOST_VALUES:
        return _Answer(status, headers, fault=_TOO_MANY)
    return _Answer(status, headers, bytes(content))


def _values_in(content: bytes | bytearray) -> int:
    """Return the number of JSON values; below the limit, a quick upper bound is enough."""
    count = sum(map(content.count, _BEFORE_A_VALUE))
    if count <= _MOST_VALUES:
        return count
    return sum(map(_STRING.sub(b"", content).count, _BEFORE_A_VALUE))


@dataclass(frozen=True, slots=True)
class _NoAnswer:
    reason: str
    may_have_arrived: bool
    is_lasting: bool = False


@dataclass(frozen=True, slots=True)
class _Failure:
    """A request without a 2xx answer.

    Attributes:
        status: the HTTP status; None if no answer came.
        retry_after: the seconds of the Retry-After header, or None.
        is_certain: whether the service certainly did nothing.
        is_lasting: whether a repetition would fail in the same way.
    """

    error: ClientError
    status: int | None = None
    retry_after: float | None = None
    is_certain: bool = False
    is_lasting: bool = False


def _wait_after(failure: _Failure, operation: Operation, attempt: int) -> float | None:
    """Return the seconds to wait before the next attempt, or None to stop."""
    if failure.is_lasting:
        return None
    if failure.status == HTTPStatus.TOO_MANY_REQUESTS:  # the service did not process the request
        return failure.retry_after
    is_passing = failure.status is None or failure.status in _PASSING
    if is_passing and (operation.is_repeatable or failure.is_certain):
        return failure.retry_after or _backoff(attempt)
    return None


class _Watched:
    """Iterates over the pieces of a file; keeps the error if reading the file fails."""

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
    """A URL that hides its path and query, because httpx2 logs the URL of every request."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc.decode('ascii')}/…"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def _refused(operation: Operation, answer: _Answer, key: str) -> _Failure:
    method, path, status = operation.method, operation.path, answer.status
    retry_after = answer.headers.get("retry-after", "").strip()
    seconds = float(retry_after) if _RETRY_AFTER.fullmatch(retry_after) else None
    try:
        # The answer may quote the key, but no error may show the key.
        said = _without(key, from_json(answer.content))
        body = ErrorResponse.model_validate_json(to_json(said)).error
    except ValueError:
        body = None
    error: ClientError
    if answer.fault is not None:
        error = UnreadableAnswerError(method, path, status, (answer.fault,))
    elif body is None:
        is_redirect = httpx2.codes.is_redirect(status)
        what = (
            "the answer is a redirect, and redirects are not followed"
            if is_redirect
            else "the answer is an error without the interface's error body: another server sent it"
        )
        error = UnreadableAnswerError(method, path, status, (what,))
    else:
        error = refusal(method, path, status, body, seconds)
    return _Failure(error, status, seconds)


def _key_sent(request: httpx2.Request) -> str:
    """Return the key from a request's headers, because the provider may have a new key by now."""
    return request.headers["authorization"].removeprefix("Bearer ")


def _without(key: str, value: JsonValue) -> JsonValue:
    """Replace the API key in every string of a JSON value, member names included."""
    match value:
        case str():
            return value.replace(key, "(key)")
        case list():
            return [_without(key, item) for item in value]
        case dict():
            return {name.replace(key, "(key)"): _without(key, v) for name, v in value.items()}
    return value


def _read(operation: Operation, answer: _Answer, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(answer.content)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
    problems = tuple(
        f"{'.'.join(map(str, fault['loc'])) or 'the answer'}: {fault['msg']}"
        for fault in faults[:_MOST_PROBLEMS]
    )
    raise UnreadableAnswerError(operation.method, operation.path, answer.status, problems)


def _backoff(attempt: int) -> float:
    wait = _FIRST_WAIT_SECONDS * 2.0 ** (attempt - 1)
    return wait * random.uniform(0.5, 1.0)  # noqa: S311 - no security depends on the jitter
