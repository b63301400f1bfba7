"""Every error of the client, and what a program can branch on.

    ClientError (WebhookError)
    ├── ApiKeyError (ValueError)       a key that cannot be used
    ├── NoAnswerError                  no answer came; ``may_have_arrived`` says what that means
    ├── UnreadableAnswerError          an answer that is not of the interface
    ├── UploadError                    the storage did not take a file
    └── ApiError                       the service refused
        ├── ValidationFailedError      kind validation
        ├── PermissionDeniedError      kind permission
        ├── NotFoundError              kind not_found
        ├── ConflictError              kind conflict
        ├── LimitError                 kind limit; ``retry_after_seconds``
        ├── PlatformError              kind platform
        └── InternalError              kind internal

Errors hold fields and render them. The key is never among them, nor what was sent.
"""

from __future__ import annotations

from pydantic import JsonValue

from ..errors import WebhookError, shows_half_built
from ..resources import ErrorBody


class ClientError(WebhookError):
    """The base of every error of the client."""


class ApiKeyError(ClientError, ValueError):
    """An API key that cannot be used; the message says what is wrong and never shows it."""


@shows_half_built
class NoAnswerError(ClientError):
    """No answer came to a request.

    Attributes:
        method: of the request.
        path: of the request, without its query.
        reason: what happened instead.
        may_have_arrived: whether the service may have done what was asked. Look before you ask
            again; where this is false, it has not.

    """

    def __init__(self, method: str, path: str, reason: str, *, may_have_arrived: bool) -> None:
        super().__init__(method, path, reason)
        self.method = method
        self.path = path
        self.reason = reason
        self.may_have_arrived = may_have_arrived

    def __str__(self) -> str:
        fate = "it may have been done all the same" if self.may_have_arrived else "it was not sent"
        return f"{self.method} {self.path}: {self.reason}; {fate}"


@shows_half_built
class UnreadableAnswerError(ClientError):
    """An answer that is not of the interface: from something between, or of a later version.

    Attributes:
        method: of the request.
        path: of the request, without its query.
        status: of the answer. With a 2xx, what was asked has been done.
        problems: where it is wrong; never the values found.

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
    """The storage did not take a file: start the upload anew.

    Attributes:
        media_id: the id that was reserved; it stays unfinished.
        reason: what happened.
        status: of the storage's answer, or None where there was none.

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

    Attributes:
        method: of the request.
        path: of the request, without its query.
        status: of the answer.
        code: stable, for a program to branch on.
        kind: the family; decides whether retrying can help.
        message: one sentence for people.
        hint: what to do next, or None.
        details: more; its shape depends on the code.
        retry_after_seconds: when to ask again, where the service says so.

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
        self.code = body.code
        self.kind: str = body.kind
        self.message = body.message
        self.hint = body.hint
        self.details: JsonValue = body.details
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.method} {self.path}: {self.status} {self.code}: {self.message}{hint}"


class ValidationFailedError(ApiError):
    """What was sent is not valid; ``details`` may name the fields."""


class PermissionDeniedError(ApiError):
    """The key, its role or the plan does not allow it."""


class NotFoundError(ApiError):
    """There is no such row in this workspace."""


class ConflictError(ApiError):
    """The state of the row does not allow it, such as deleting a published post."""


class LimitError(ApiError):
    """A limit is reached; ``retry_after_seconds`` says when it is lifted, if that is known."""


class PlatformError(ApiError):
    """The platform refused, not the service."""


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
    """Return the error for a refusal; of the base class for a kind that is not known yet."""
    return _BY_KIND.get(body.kind, ApiError)(method, path, status, body, retry_after_seconds)
