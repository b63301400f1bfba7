"""The operations of the API in one table (interface, Endpoints)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, TypeAlias

from pydantic import BaseModel

from ...resources import Page, Resource
from ..access import ADMIN
from ..refusals import no_such, refused
from ..workspace import WorkspaceState
from . import account, comments, media, posts, webhooks
from .bodies import (
    Body,
    ChannelQuery,
    CommentQuery,
    CompletionBody,
    EndpointBody,
    EndpointChange,
    MediaQuery,
    PageQuery,
    PostBody,
    PostQuery,
    ReplyBody,
    UploadBody,
)
from .call import ApiCall, Backend

__all__ = [
    "NOT_SHOWN",
    "OPERATIONS",
    "ApiCall",
    "ApiOperation",
    "Backend",
    "operation_for",
    "row_of",
]

_Result: TypeAlias = Resource | Page[Any]

VIEWER, CONTRIBUTOR, EDITOR = "viewer", "contributor", "editor"


@dataclass(frozen=True)
class ApiOperation:
    """An operation of the API.

    Attributes:
        path: the path, with the name of an id in braces.
        role: the least role that may call it. The interface shows it for webhooks only
            (Authentication 6); the other roles are the emulator's choice.
        status: the status of a success.
    """

    method: str
    path: str
    role: str
    perform: Callable[[ApiCall], Awaitable[_Result]]
    status: HTTPStatus = HTTPStatus.OK
    query: type[BaseModel] | None = None
    body: type[Body] | None = None
    body_is_optional: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path))


_CREATED = HTTPStatus.CREATED

OPERATIONS: tuple[ApiOperation, ...] = (
    ApiOperation("GET", "/v1/me", VIEWER, account.me),
    ApiOperation("GET", "/v1/channels", VIEWER, account.list_channels, query=ChannelQuery),
    ApiOperation("GET", "/v1/posts", VIEWER, posts.list_posts, query=PostQuery),
    ApiOperation("POST", "/v1/posts", CONTRIBUTOR, posts.create, _CREATED, body=PostBody),
    ApiOperation("POST", "/v1/posts/validate", CONTRIBUTOR, posts.validate, body=PostBody),
    ApiOperation("GET", "/v1/posts/{postId}", VIEWER, posts.read),
    ApiOperation("PATCH", "/v1/posts/{postId}", CONTRIBUTOR, posts.replace_post, body=PostBody),
    ApiOperation("DELETE", "/v1/posts/{postId}", CONTRIBUTOR, posts.delete),
    ApiOperation("POST", "/v1/posts/{postId}/publish", EDITOR, posts.publish),
    ApiOperation("GET", "/v1/media", VIEWER, media.list_media, query=MediaQuery),
    ApiOperation(
        "POST", "/v1/media/uploads", CONTRIBUTOR, media.start_upload, _CREATED, body=UploadBody
    ),
    ApiOperation(
        "POST",
        "/v1/media/{mediaId}/complete",
        CONTRIBUTOR,
        media.complete,
        body=CompletionBody,
        body_is_optional=True,
    ),
    ApiOperation("GET", "/v1/comments", VIEWER, comments.list_comments, query=CommentQuery),
    ApiOperation(
        "POST", "/v1/comments/{commentId}/reply", CONTRIBUTOR, comments.reply, body=ReplyBody
    ),
    ApiOperation("POST", "/v1/webhooks", ADMIN, webhooks.create, _CREATED, body=EndpointBody),
    ApiOperation("PATCH", "/v1/webhooks/{webhookId}", ADMIN, webhooks.change, body=EndpointChange),
    ApiOperation("POST", "/v1/webhooks/{webhookId}/test", ADMIN, webhooks.test),
    ApiOperation(
        "GET",
        "/v1/webhooks/{webhookId}/deliveries",
        ADMIN,
        webhooks.list_deliveries,
        query=PageQuery,
    ),
    ApiOperation("POST", "/v1/webhooks/{webhookId}/rotate-secret", ADMIN, webhooks.rotate_secret),
)

NOT_SHOWN: tuple[str, ...] = (
    "GET /v1/capabilities",
    "POST /v1/media/imports",
    "read one channel with its rules",
    "list Pinterest boards",
    "read TikTok creator info",
    "list the live posts of a channel",
    "reschedule a post",
    "approve a post",
    "reject a post",
    "retry failed channels of a post",
    "delete posts in bulk",
    "read the calendar",
    "metrics on each target of a published post",
    "read one media item",
    "delete a media item",
    "read one comment with its thread",
    "hide, unhide, like, mark done and delete a comment",
    "list webhook endpoints",
    "queue slots",
    "direct messages",
    "analytics",
)
"""Features that the interface names without their paths (Endpoints: Gaps).

The emulator does not serve these: it answers as for any unknown path or method.
"""

_Rows: TypeAlias = Callable[[WorkspaceState], Mapping[str, object]]

_ROWS: Mapping[str, tuple[_Rows, str, str]] = MappingProxyType(
    {
        "postId": (lambda workspace: workspace.posts, "post", "post"),
        "mediaId": (lambda workspace: workspace.media, "media", "media item"),
        "commentId": (lambda workspace: workspace.comments, "comment", "comment"),
        "webhookId": (lambda workspace: workspace.endpoints, "webhook", "webhook endpoint"),
    }
)


def operation_for(method: str, path: str) -> tuple[ApiOperation, Mapping[str, str]]:
    """Return the operation of a request, and the ids in its path, each under its name.

    Raises:
        RefusedError: there is no such path, or the path does not accept the method.
    """
    found = [(one, match) for one in OPERATIONS if (match := one.pattern.fullmatch(path))]
    if not found:
        raise refused("api.not_found")
    for operation, match in found:
        if operation.method == method:
            return operation, match.groupdict()
    allowed = ", ".join(dict.fromkeys(operation.method for operation, _ in found))
    raise refused("api.method_not_allowed", headers={"allow": allowed}, allowed=allowed)


def row_of(workspace: WorkspaceState, ids: Mapping[str, str]) -> object:
    """Return the row that the path's id names; None if the path has no id."""
    for name, row_id in ids.items():
        rows, resource, word = _ROWS[name]
        try:
            return rows(workspace)[row_id]
        except KeyError:
            raise no_such(resource, word) from None
    return None
