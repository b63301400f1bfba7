"""Every error of the client.

    ClientError (WebhookError)
    ├── ApiKeyError (ValueError)       the API key cannot be used
    ├── NoAnswerError                  no answer came; see ``may_have_arrived``
    ├── UnreadableAnswerError          the answer does not follow the interface
    ├── UploadError                    the storage did not accept a file
    └── ApiError                       the service refused the request
        ├── ValidationFailedError      kind validation
        ├── PermissionDeniedError      kind permission
        ├── NotFoundError              kind not_found
        ├── ConflictError              kind conflict
        ├── LimitError                 kind limit; ``retry_after_seconds``
        ├── PlatformError              kind platform
        └── InternalError              kind internal

Errors hold fields and render them. No field is the key or a request's body.
"""

from __future__ import annotations

from pydantic import JsonValue

from ..errors import WebhookError, shows_half_built
from ..resources import ErrorBody


class ClientError(WebhookError):
    """The base of every error of the client."""


class ApiKeyError(ClientError, ValueError):
    """An API key that cannot be used; the message says why and never shows the key."""


@shows_half_built
class NoAnswerError(ClientError):
    """The service did not answer a request.

    Attributes:
        method: the HTTP method.
        path: the path without its query.
        reason: why no answer came.
        may_have_arrived: whether the service may have carried out the request. If true, check
            before you repeat it; if false, the service did nothing.
    """

    def __init__(self, method: str, path: str, reason: str, *, may_have_arrived: bool) -> None:
        super().__init__(method, path, reason)
        self.method = method
        self.path = path
        self.reason = reason
        self.may_have_arrived = may_have_arrived

    def __str__(self) -> str:
        fate = "the service may have carried it out" if self.may_have_arrived else "it was not sent"
        return f"{self.method} {self.path}: {self.reason}; {fate}"


@shows_half_built
class UnreadableAnswerError(ClientError):
    """An answer that does not follow the interface, from a proxy or a later version of the service.

    Attributes:
        method: the HTTP method.
        path: the path without its query.
        status: the HTTP status; after a 2xx the service has carried out the request.
        problems: where the answer is wrong; never the values found.
    """

    def __init__(self, method: str, path: str, status: int, problems: tuple[str, ...]) -> None:
        super().__init__(method, path, status, problems)
        self.method = method
        self.path = path
        self.status = status
        self.problems = problems

    def __str__(self) -> str:
        return f"{self.method} {self.path}: answered {self.status}; {'; '.join(self.problems)}"


@shows_half_built
class UploadError(ClientError):
    """The storage did not accept a file: start a new upload.

    Attributes:
        media_id: the reserved id, which stays unfinished.
        reason: what happened.
        status: the HTTP status of the storage, or None if no answer came.
    """

    def __init__(self, media_id: str, reason: str, status: int | None = None) -> None:
        super().__init__(media_id, reason, status)
        self.media_id = media_id
        self.reason = reason
        self.status = status

    def __str__(self) -> str:
        return f"upload of {self.media_id}: {self.reason}"


@shows_half_built
class ApiError(ClientError):
    """The service refused a request (interface, Errors).

    The attributes from ``code`` to ``details`` come from the ``body`` of the answer.

    Attributes:
        method: the HTTP method.
        path: the path without its query.
        status: the HTTP status.
        code: a stable name, for a program to branch on.
        kind: the kind of error, which says whether a retry can help.
        message: one sentence for people.
        hint: what to do next, or None.
        details: more, in a shape that depends on the code; or None.
        retry_after_seconds: how long to wait before a repetition, or None.
    """

    def __init__(
        self,
        method: str,
        path: str,
        status: int,
        body: ErrorBody,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(method, path, status, body.code)
        self.method = method
        self.path = path
        self.status = status
        self.code: str = body.code
        self.kind: str = body.kind
        self.message: str = body.message
        self.hint: str | None = body.hint
        self.details: JsonValue = body.details
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.method} {self.path}: {self.status} {self.code}: {self.message}{hint}"


class ValidationFailedError(ApiError):
    """The request is not valid; ``details`` may name the fields."""


class PermissionDeniedError(ApiError):
    """The key, its role or the plan does not allow the request."""


class NotFoundError(ApiError):
    """The workspace has no such item."""


class ConflictError(ApiError):
    """The state of the item does not allow the request: a published post cannot be deleted."""


class LimitError(ApiError):
    """A limit is reached; ``retry_after_seconds`` says how long to wait, if that is known."""


class PlatformError(ApiError):
    """The platform, not the service, refused the request."""


class InternalError(ApiError):
    """The service failed."""


_BY_KIND: dict[str, type[ApiError]] = {
    "validation": ValidationFailedError,
    "permission": PermissionDeniedError,
    "not_found": NotFoundError,
    "conflict": ConflictError,
    "limit": LimitError,
    "platform": PlatformError,
    "internal": InternalError,
}


def refusal(
    method: str, path: str, status: int, body: ErrorBody, retry_after_seconds: float | None
) -> ApiError:
    """Return the error of a refusal; a plain ``ApiError`` if the kind is unknown."""
    return _BY_KIND.get(body.kind, ApiError)(method, path, status, body, retry_after_seconds)
