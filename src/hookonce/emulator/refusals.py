"""The errors of the API: the status, kind and message of each code (interface, Errors)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple

from pydantic import JsonValue

from ..resources import ErrorBody, ErrorKind

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Issue:
    """A fault in one field of a request.

    Attributes:
        field: its path, such as ``events.0``; empty for the body as a whole.
    """

    field: str
    message: str


class RefusedError(Exception):
    """A refused request: its status, body and headers.

    Attributes:
        status: the HTTP status.
        body: the value of ``error`` in the answer: code, kind, message, hint and details.
        headers: additional headers of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        kind: ErrorKind,
        message: str,
        *,
        hint: str | None = None,
        details: JsonValue = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        super().__init__(code)
        self.status = status
        self.body: ErrorBody = ErrorBody(
            code=code, kind=kind, message=message, hint=hint, details=details
        )
        self.headers = headers


class _Refusal(NamedTuple):
    status: int
    kind: ErrorKind
    message: str
    hint: str | None = None


_REFUSALS: Mapping[str, _Refusal] = MappingProxyType(
    {
        "api.unauthorized": _Refusal(
            401,
            "permission",
            "The API key is missing, revoked, expired or unknown.",
            "Send a key as Authorization: Bearer <key>, or as X-API-Key: <key>.",
        ),
        "api.not_on_plan": _Refusal(
            402,
            "permission",
            "The plan of this workspace does not include the API.",
            "Change to a plan that includes it.",
        ),
        "api.forbidden": _Refusal(
            403,
            "permission",
            "A key with the role {role} may not do this.",
            "Use a key with the role {needed}.",
        ),
        "api.not_found": _Refusal(404, "not_found", "There is nothing at this path."),
        "api.method_not_allowed": _Refusal(405, "validation", "This path takes {allowed} only."),
        "api.quota_exceeded": _Refusal(
            429,
            "limit",
            "The workspace has used up its requests of this day.",
            "Wait as many seconds as the retry-after header says.",
        ),
        "api.internal": _Refusal(500, "internal", "Something went wrong at the service."),
        "first_comment.unsupported": _Refusal(
            422,
            "validation",
            "A first comment was sent for a platform without first comments.",
            "Leave firstComment out for this channel.",
        ),
        "media.not_found": _Refusal(
            422,
            "validation",
            "The post names media that is unknown or not finished.",
            "Complete the upload first, and use the id that it was started under.",
        ),
        "media.failed": _Refusal(409, "conflict", "The upload of this media has failed."),
        "media.not_uploaded": _Refusal(
            409, "conflict", "The bytes of this media have not arrived."
        ),
        "media.storage_quota_exceeded": _Refusal(
            409, "limit", "The plan of this workspace allows {most} bytes of media."
        ),
        "post.publishing": _Refusal(409, "conflict", "The post is going out."),
        "post.pending_approval": _Refusal(409, "conflict", "The post waits for approval."),
        "post.published": _Refusal(409, "conflict", "The post is published, at least in part."),
        "post.not_pending_approval": _Refusal(
            409, "conflict", "The post does not wait for approval."
        ),
        "post.not_scheduled": _Refusal(
            409, "conflict", "The post has no time that could be changed."
        ),
        "post.target_not_retryable": _Refusal(
            409, "conflict", "The channel of the post did not fail."
        ),
        "post.schedule_required": _Refusal(
            422, "validation", "The mode schedule needs a time.", "Send scheduledAt."
        ),
        "post.schedule_in_past": _Refusal(
            422,
            "validation",
            "The time of the post has passed.",
            "Send a scheduledAt in the future, or the mode now.",
        ),
        "post.monthly_limit": _Refusal(
            409,
            "limit",
            "The plan of this workspace allows {most} scheduled posts a month.",
            "Wait for the next month, or change to a larger plan.",
        ),
        "post.no_x_credits": _Refusal(
            409,
            "limit",
            "There are too few X credits left.",
            "Buy credits, or leave the channel on X out.",
        ),
        "queue.no_free_slot": _Refusal(
            409,
            "conflict",
            "The queue of the channel has no free slot.",
            "Add slots to the queue in the app, or choose a time.",
        ),
        "webhook.url_private": _Refusal(
            422,
            "validation",
            "The URL resolves to an address that is not public.",
            "Every address of its host must be reachable from the internet.",
        ),
        "webhook.limit_reached": _Refusal(
            409,
            "limit",
            "The plan of this workspace allows {most} webhook endpoints.",
            "Change one that exists, or change to a larger plan.",
        ),
    }
)


def refused(
    code: str,
    *,
    issues: Sequence[Issue] = (),
    headers: Mapping[str, str] = _NO_HEADERS,
    **values: object,
) -> RefusedError:
    """Return the error that belongs to an error code.

    Args:
        code: one of the table above.
        issues: which fields are wrong, for ``error.details``.
        headers: additional headers of the answer.
        values: fill the placeholders in the message and the hint.
    """
    status, kind, message, hint = _REFUSALS[code]
    return RefusedError(
        status,
        code,
        kind,
        message.format(**values),
        hint=hint and hint.format(**values),
        details=_details(issues) if issues else None,
        headers=headers,
    )


def no_such(resource: str, name: str) -> RefusedError:
    """Return the error for an id that this workspace does not have.

    Args:
        resource: the first part of the code, such as ``post``.
        name: the word for people.
    """
    return RefusedError(
        404,
        f"{resource}.not_found",
        "not_found",
        f"There is no such {name} in this workspace.",
    )


def invalid(issues: Sequence[Issue]) -> RefusedError:
    """Return the error for an invalid body or query; its details name each invalid field."""
    return RefusedError(
        422,
        "validation.failed",
        "validation",
        "The request did not validate.",
        hint="error.details.issues says what is wrong with which field.",
        details=_details(issues),
    )


def blocked(validations: JsonValue) -> RefusedError:
    """Return the error for a post with a target that did not pass its checks."""
    return RefusedError(
        422,
        "validation.failed",
        "validation",
        "A target of the post did not pass its checks.",
        hint="error.details.validations lists the checks. You can still save the post as a draft.",
        details={"validations": validations},
    )


def platform_rejected(code: str, message: str | None) -> RefusedError:
    """Return the error for a reply that its platform did not accept (interface, Errors: 502)."""
    return RefusedError(
        502,
        code,
        "platform",
        message or "The platform did not accept the reply.",
        hint="Nothing was changed; you can send the reply again.",
    )


def at_storage(status: int, message: str) -> RefusedError:
    """Return the error for a request that the storage refuses; the API has no code for it."""
    kind: ErrorKind = "not_found" if status == HTTPStatus.NOT_FOUND else "validation"
    return RefusedError(status, "storage.refused", kind, message)


def _details(issues: Sequence[Issue]) -> JsonValue:
    return {"issues": [{"field": one.field, "message": one.message} for one in issues]}
