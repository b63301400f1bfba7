"""What the API refuses, and with which status, code and words (interface, Errors)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType

from pydantic import JsonValue

from ..resources import Blocker, ErrorBody, ErrorKind


@dataclass(frozen=True, slots=True)
class Issue:
    """What is wrong with one field of a request.

    Attributes:
        field: its path, such as ``events.0``; empty for the body as a whole.
        message: what is wrong.

    """

    field: str
    message: str


class RefusedError(Exception):
    """A request that is refused; it holds everything of its answer.

    Attributes:
        status: the HTTP status.
        body: what goes out under ``error``.
        headers: headers that belong to this answer.

    """

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        kind: ErrorKind,
        message: str,
        *,
        hint: str | None = None,
        details: JsonValue = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(code)
        self.status = status
        self.body = ErrorBody(code=code, kind=kind, message=message, hint=hint, details=details)
        self.headers = headers


def unauthorized() -> RefusedError:
    """Refuse a request without a key that is in force; which of the four it was stays unsaid."""
    return RefusedError(
        HTTPStatus.UNAUTHORIZED,
        "api.unauthorized",
        "permission",
        "The API key is missing, revoked, expired or unknown.",
        hint="Send a key as Authorization: Bearer <key>, or as X-API-Key: <key>.",
        headers={"www-authenticate": "Bearer"},  # which every 401 has (RFC 9110, 15.5.2)
    )


def not_on_plan() -> RefusedError:
    """Refuse a workspace whose plan has no API access."""
    return RefusedError(
        HTTPStatus.PAYMENT_REQUIRED,
        "api.not_on_plan",
        "permission",
        "The plan of this workspace does not include the API.",
        hint="Change to a plan that includes it.",
    )


def quota_used_up(retry_after: int) -> RefusedError:
    """Refuse a request over the daily quota; more are allowed in so many seconds."""
    return RefusedError(
        HTTPStatus.TOO_MANY_REQUESTS,
        "api.quota_exceeded",
        "limit",
        "The workspace has used up its requests of this day.",
        hint="Wait as many seconds as the retry-after header says.",
        headers={"retry-after": str(retry_after)},
    )


def wrong_role(role: str, needed: str) -> RefusedError:
    """Refuse what the key's role does not allow."""
    return RefusedError(
        HTTPStatus.FORBIDDEN,
        "api.forbidden",
        "permission",
        f"A key with the role {role} may not do this.",
        hint=f"Use a key with the role {needed}.",
    )


def no_such_path() -> RefusedError:
    """Refuse a path that the API does not have."""
    return RefusedError(
        HTTPStatus.NOT_FOUND, "api.not_found", "not_found", "There is nothing at this path."
    )


def wrong_method(allowed: str) -> RefusedError:
    """Refuse a method that a path does not have."""
    return RefusedError(
        HTTPStatus.METHOD_NOT_ALLOWED,
        "api.method_not_allowed",
        "validation",
        f"This path takes {allowed} only.",
        headers={"allow": allowed},
    )


def no_such(what: str, name: str) -> RefusedError:
    """Refuse the id of a row that this workspace does not have.

    Args:
        what: what its code begins with, such as ``post``.
        name: what people call it.

    """
    return RefusedError(
        HTTPStatus.NOT_FOUND,
        f"{what}.not_found",
        "not_found",
        f"There is no such {name} in this workspace.",
    )


def invalid(issues: Sequence[Issue]) -> RefusedError:
    """Refuse a body or query that does not validate; the details name each field."""
    return RefusedError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "validation.failed",
        "validation",
        "The request did not validate.",
        hint="error.details.issues says what is wrong with which field.",
        details=_details(issues),
    )


def _details(issues: Sequence[Issue]) -> JsonValue:
    return {"issues": [{"field": i.field, "message": i.message} for i in issues]}


def no_first_comments(issues: Sequence[Issue]) -> RefusedError:
    """Refuse first comments for platforms that have none."""
    return RefusedError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "first_comment.unsupported",
        "validation",
        "A first comment was sent for a platform without first comments.",
        hint="Leave firstComment out for this channel.",
        details=_details(issues),
    )


def no_such_media(issues: Sequence[Issue]) -> RefusedError:
    """Refuse a post that names an unknown or unfinished media id."""
    return RefusedError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "media.not_found",
        "validation",
        "The post names media that is unknown or not finished.",
        hint="Complete the upload first, and use the id that it was started under.",
        details=_details(issues),
    )


def blocked(validations: JsonValue) -> RefusedError:
    """Refuse a post while a target has a blocking validation error."""
    return RefusedError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "validation.failed",
        "validation",
        "A target of the post did not pass its checks.",
        hint="error.details.validations lists the checks; a draft can be saved all the same.",
        details={"validations": validations},
    )


def refused_for(blocker: Blocker) -> RefusedError:
    """Refuse a post for anything else that keeps it from being scheduled or published."""
    status, kind = _BLOCKERS[blocker.code]
    return RefusedError(status, blocker.code, kind, blocker.message, hint=blocker.hint)


_BLOCKERS: Mapping[str, tuple[HTTPStatus, ErrorKind]] = MappingProxyType(
    {
        "post.schedule_required": (HTTPStatus.UNPROCESSABLE_ENTITY, "validation"),
        "post.schedule_in_past": (HTTPStatus.UNPROCESSABLE_ENTITY, "validation"),
        "queue.no_free_slot": (HTTPStatus.CONFLICT, "conflict"),
        "post.monthly_limit": (HTTPStatus.CONFLICT, "limit"),
        "post.no_x_credits": (HTTPStatus.CONFLICT, "limit"),
    }
)


def conflict(code: str, message: str) -> RefusedError:
    """Refuse what the state of a row does not allow."""
    return RefusedError(HTTPStatus.CONFLICT, code, "conflict", message)


def platform_rejected(code: str, message: str | None) -> RefusedError:
    """Refuse a reply that its platform did not take (interface, Errors: 502)."""
    return RefusedError(
        HTTPStatus.BAD_GATEWAY,
        code,
        "platform",
        message or "The platform did not take the reply.",
        hint="Nothing was changed; the reply can be sent again.",
    )


def storage_full(most: int) -> RefusedError:
    """Refuse a file that the storage quota has no room for."""
    return RefusedError(
        HTTPStatus.CONFLICT,
        "media.storage_quota_exceeded",
        "limit",
        f"The plan of this workspace allows {most} bytes of media.",
    )


def at_storage(status: HTTPStatus, message: str) -> RefusedError:
    """Refuse bytes at the storage address, which is no part of the API."""
    kind: ErrorKind = "not_found" if status is HTTPStatus.NOT_FOUND else "validation"
    return RefusedError(status, "storage.refused", kind, message)


def private_url() -> RefusedError:
    """Refuse a URL that leads to anything but the public internet."""
    return RefusedError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "webhook.url_private",
        "validation",
        "The URL resolves to an address that is not public.",
        hint="Every address of its host must be reachable from the internet.",
    )


def at_endpoint_limit(most: int) -> RefusedError:
    """Refuse one endpoint more than the plan allows."""
    return RefusedError(
        HTTPStatus.CONFLICT,
        "webhook.limit_reached",
        "limit",
        f"The plan of this workspace allows {most} webhook endpoints.",
        hint="Change one that exists, or change to a larger plan.",
    )


def internal() -> RefusedError:
    """Refuse what the service itself could not do."""
    return RefusedError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "api.internal",
        "internal",
        "Something went wrong at the service.",
    )
