"""The operations on posts (interface, Endpoints: Posts)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...resources import (
    DeletedPost,
    Page,
    Post,
    PostListItem,
    PostMode,
    PublishedPost,
    SavedPost,
    ValidationResult,
)
from ..checks import PostFindings, check, require_allowed
from ..content import PostRow, TargetRow
from ..moments import optional_moment
from ..paging import page_of
from ..platforms import FIRST_COMMENTS, NEEDS_MEDIA, content_types, settings_issues
from ..refusals import Issue, invalid, refused
from ..states import PostStep
from ..workspace import WorkspaceState
from .bodies import PostBody, PostQuery, TargetBody
from .call import ApiCall, Backend

_CONTRIBUTOR = "contributor"


async def list_posts(call: ApiCall) -> Page[PostListItem]:
    query: PostQuery = call.query
    workspace, wanted = call.backend.workspace, query.channel_ids
    rows = [
        row
        for row in reversed(workspace.posts.values())
        if query.status in {"all", row.status}
        and (not wanted or wanted & {target.channel.id for target in row.targets})
    ]
    return page_of(
        rows,
        PostRow.to_list_item,
        prefix="post",
        limit=query.limit,
        cursor=query.cursor,
        removed=_numbers_outside(rows, workspace),
    )


async def create(call: ApiCall) -> SavedPost:
    backend, body = call.backend, call.body
    post = _read(body, backend)
    findings = _checked(post, body.mode, backend)
    post.number = backend.workspace.next_number()
    backend.workspace.posts[post.id] = post
    return _save(post, findings, call)


async def validate(call: ApiCall) -> ValidationResult:
    body: PostBody = call.body
    post = _read(body, call.backend)
    return check(post, body.mode, call.backend.workspace, call.backend.now).to_resource()


async def read(call: ApiCall) -> Post:
    post: PostRow = call.row
    return post.to_resource()


async def replace_post(call: ApiCall) -> SavedPost:
    """``PATCH /v1/posts/{postId}``: "The body is the whole post, not a partial change"."""
    backend, body, post = call.backend, call.body, call.row
    require_allowed(post, PostStep.SAVE_DRAFT if body.mode == "draft" else PostStep.SUBMIT)
    new = _read(body, backend, {target.channel.id: target.id for target in post.targets})
    new = replace(new, id=post.id, number=post.number, created_at=post.created_at)
    findings = _checked(new, body.mode, backend)
    backend.workspace.posts[post.id] = new
    return _save(new, findings, call)


async def delete(call: ApiCall) -> DeletedPost:
    post: PostRow = call.row
    require_allowed(post, PostStep.DELETE)
    call.backend.publishing.withdraw(post)
    call.backend.workspace.remove_post(post)
    return DeletedPost(id=post.id, deleted=True)


async def publish(call: ApiCall) -> PublishedPost:
    """``POST /v1/posts/{postId}/publish``: "returns at once", before the platforms answer."""
    backend, post = call.backend, call.row
    require_allowed(post, PostStep.PUBLISH)
    # "publishing a draft right away runs the same checks as scheduling" (Versioning 6).
    findings = _checked(post, "now", backend)
    _count(post, findings, backend)
    backend.publishing.send(post)
    return PublishedPost(id=post.id, status=post.status)


def _checked(post: PostRow, mode: PostMode, backend: Backend) -> PostFindings:
    findings = check(post, mode, backend.workspace, backend.now)
    if (refusal := findings.refusal) is not None:
        raise refusal
    return findings


def _save(post: PostRow, findings: PostFindings, call: ApiCall) -> SavedPost:
    backend = call.backend
    if findings.mode != "draft":
        _count(post, findings, backend)
    backend.publishing.save(
        post,
        findings.mode,
        findings.scheduled_at,
        # "the post waits for approval instead of being refused" (States). The interface says this
        # only for the mode schedule; the emulator also does it for the modes now and queue.
        needs_approval=call.key.role == _CONTRIBUTOR and findings.mode != "draft",
    )
    return SavedPost(
        id=post.id,
        status=post.status,
        scheduled_at=optional_moment(post.scheduled_at),
        warnings=findings.warnings,
    )


def _count(post: PostRow, findings: PostFindings, backend: Backend) -> None:
    backend.workspace.posts_this_month(backend.now).add(post.id)
    backend.workspace.x_credits[post.id] = findings.x_credits


def _numbers_outside(rows: list[PostRow], workspace: WorkspaceState) -> Mapping[str, int]:
    """Return the number of each post that is not in ``rows``, by the post's id.

    Between two pages a post can change its status or be deleted. If a cursor names such a post, its
    number tells where the list continues.
    """
    shown = {row.id for row in rows}
    hidden = {row.id: row.number for row in workspace.posts.values() if row.id not in shown}
    return workspace.removed | hidden


def _read(body: PostBody, backend: Backend, known: Mapping[str, str] | None = None) -> PostRow:
    """Return the post that a body describes; RefusedError if a value in the body is invalid.

    Args:
        known: the target ids of the replaced post by channel id; targets keep their ids.
    """
    workspace = backend.workspace
    if issues := list(_unreadable(body, workspace)):
        raise invalid(issues)
    if issues := list(_first_comments(body, workspace)):
        raise refused("first_comment.unsupported", issues=issues)
    if issues := list(_unknown_media(body, workspace)):
        raise refused("media.not_found", issues=issues)
    return PostRow(
        id=backend.new_id("post"),
        number=0,
        created_at=round(backend.now, 3),
        title=body.title,
        caption=body.caption,
        media_ids=list(body.media_ids),
        targets=[_target(target, body, backend, known or {}) for target in body.targets],
        scheduled_at=body.scheduled_seconds,
    )


def _target(
    target: TargetBody, body: PostBody, backend: Backend, known: Mapping[str, str]
) -> TargetRow:
    channel = backend.workspace.channels[target.channel]
    return TargetRow(
        id=known.get(channel.id) or backend.new_id("tgt"),
        channel=channel,
        content_type=target.content_type
        or _default_type(channel.platform, has_media=bool(target.media_ids or body.media_ids)),
        caption=target.caption,
        media_ids=list(target.media_ids),
        first_comment=target.first_comment,
        settings=target.settings,
    )


def _default_type(platform: str, *, has_media: bool) -> str:
    types = content_types(platform)
    if has_media:
        return types[0]
    return next((name for name in types if name not in NEEDS_MEDIA), types[0])


def _unreadable(body: PostBody, workspace: WorkspaceState) -> Iterator[Issue]:
    seen = set()
    for number, target in enumerate(body.targets):
        place = f"targets.{number}"
        channel = workspace.channels.get(target.channel)
        if not {"channel_id", "social_account_id"} & target.model_fields_set:
            yield Issue(f"{place}.channelId", "Field required")
        elif channel is None:
            yield Issue(f"{place}.channelId", "There is no such channel in this workspace")
        elif channel.id in seen:
            yield Issue(f"{place}.channelId", "Each channel can be named once")
        else:
            seen.add(channel.id)
            issues = settings_issues(channel.platform, target.settings)
            for name, message in issues.items():
                yield Issue(f"{place}.settings.{name}", message)


def _first_comments(body: PostBody, workspace: WorkspaceState) -> Iterator[Issue]:
    for number, target in enumerate(body.targets):
        platform = workspace.channels[target.channel].platform
        if target.first_comment and platform not in FIRST_COMMENTS:
            yield Issue(f"targets.{number}.firstComment", f"{platform} has no first comments here")


def _unknown_media(body: PostBody, workspace: WorkspaceState) -> Iterator[Issue]:
    lists = [("mediaIds", body.media_ids)]
    lists += [(f"targets.{n}.mediaIds", target.media_ids) for n, target in enumerate(body.targets)]
    for field, media_ids in lists:
        for number, media_id in enumerate(media_ids):
            row = workspace.media.get(media_id)
            if row is None or row.status != "ready":
                yield Issue(f"{field}.{number}", "There is no such finished media")
